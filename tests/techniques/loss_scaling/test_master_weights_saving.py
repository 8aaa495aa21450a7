"""Resuming to the same bits, testing and saving with masters, copies of optimizers."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.techniques.loss_scaling import MasterWeights
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.techniques.loss_scaling.optimizers import (
    NARROW,
    PAIRS,
    RECIPES,
    assert_same,
    flagged_step,
    parameters,
    set_gradients,
    snapshot,
    train,
    wrapped,
)

pytestmark = pytest.mark.filterwarnings("ignore:MasterWeights:UserWarning")


def from_file(value: Any, **options: Any) -> Any:
    """The value as torch.load reads it from what torch.save wrote."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


@each("name, recipe", PAIRS)
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(name: str, recipe: str) -> None:
    held = parameters(shapes=[(7, 9)])
    optimizer = wrapped(name, held, **RECIPES[recipe])
    train(optimizer, held, [1, 2])
    saved = {"optimizer": optimizer.state_dict(), "weights": [p.detach() for p in held]}
    loaded = from_file(saved, weights_only=True)
    train(optimizer, held, [3, 4])

    # The other optimizer is made from other weights and another seed.
    torch.manual_seed(77)
    resumed = [nn.Parameter(torch.randn(7, 9))]
    other = wrapped(name, resumed, **RECIPES[recipe])
    other.load_state_dict(loaded["optimizer"])
    with torch.no_grad():
        resumed[0].copy_(loaded["weights"][0])
    assert_same(other.state_dict(), loaded["optimizer"])
    train(other, resumed, [3, 4])
    assert_same(snapshot(other, resumed), snapshot(optimizer, held))


def test_a_state_dict_is_not_touched_by_who_loads_it() -> None:
    held = parameters()
    optimizer = wrapped("adam", held, **NARROW)
    train(optimizer, held, [1])
    state = copy.deepcopy(optimizer.state_dict())
    kept = copy.deepcopy(state)
    optimizer.load_state_dict(state)
    train(optimizer, held, [2, 3])
    optimizer.param_groups[0]["lr"] = 7.0
    assert_same(state, kept)


def test_states_begun_in_a_skipped_step_are_not_saved() -> None:
    held = parameters()
    optimizer = wrapped("momentum", held, weight="fp16")
    before = copy.deepcopy(optimizer.state_dict())
    set_gradients(held, 1)
    flagged_step(optimizer, 1.0)
    assert_same(optimizer.state_dict(), before)


def test_options_and_hooks_are_loaded() -> None:
    optimizer = wrapped("momentum", parameters(), weight="fp16")
    optimizer.param_groups[0]["lr"] = 0.25
    state = copy.deepcopy(optimizer.state_dict())
    other = wrapped("momentum", parameters(), weight="fp16")
    calls: list[str] = []
    other.register_load_state_dict_pre_hook(lambda *_: calls.append("before"))
    other.register_load_state_dict_post_hook(lambda *_: calls.append("after"))
    other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == other.optimizer.param_groups[0]["lr"] == 0.25
    assert calls == ["before", "after"]


@each("copied", [copy.deepcopy, lambda pair: from_file(pair, weights_only=False)])
def test_copies_go_on_to_the_same_bits(copied: Any) -> None:
    held = parameters()
    optimizer = wrapped("adam", held, **NARROW)
    train(optimizer, held, [1, 2])
    others, other = copied((held, optimizer))
    train(optimizer, held, [3, 4])
    train(other, others, [3, 4])
    assert_same(snapshot(other, others), snapshot(optimizer, held))
    with pytest.raises(RuntimeError, match="the step of the wrapped Adam was called"):
        other.optimizer.step()


# --- masters in the model ---


@each("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_masters_are_lent_and_given_back_even_after_an_error(dtype: torch.dtype) -> None:
    held = parameters(dtype)
    optimizer = wrapped("momentum", held, weight="bf16")
    train(optimizer, held, [1, 2])
    before = snapshot(optimizer, held)
    with optimizer.masters():
        for p in held:
            assert p.dtype == torch.float32 and p.requires_grad
            assert_bit_equal(p.detach(), optimizer.state[p]["master"])
            # Whatever is done inside has no effect after it.
            p.data.fill_(7.0)
    assert_same(snapshot(optimizer, held), before)
    with pytest.raises(KeyError), optimizer.masters():
        raise KeyError
    assert_same(snapshot(optimizer, held), before)
    train(optimizer, held, [3])


def test_a_model_is_tested_and_saved_with_masters() -> None:
    model = nn.Linear(4, 3)
    whole = copy.deepcopy(model)
    optimizer = MasterWeights(torch.optim.SGD(model.parameters(), lr=0.1), weight="e4m3fn")
    x = torch.randn(5, 4)
    assert not torch.equal(model(x), whole(x))
    with optimizer.masters():
        assert_bit_equal(model(x).detach(), whole(x).detach())
        saved = {name: t.clone() for name, t in model.state_dict().items()}
    assert_same(saved, dict(whole.state_dict()))
    assert_bit_equal(model.weight.detach(), lp.quantize(whole.weight.detach(), "e4m3fn"))


def test_nothing_is_changed_within_the_block() -> None:
    optimizer = wrapped("sgd", parameters(), weight="bf16")
    state = optimizer.state_dict()
    with optimizer.masters():
        for what in ("step", "load_state_dict", "take_weights"):
            with pytest.raises(RuntimeError, match=f"{what}: .* leave the block first"):
                getattr(optimizer, what)(*([state] if what == "load_state_dict" else []))
        with pytest.raises(RuntimeError, match=r"masters: .* leave the block first"):
            optimizer.masters().__enter__()
