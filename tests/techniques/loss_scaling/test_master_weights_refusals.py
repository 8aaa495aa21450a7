"""Wrong input: errors say the expected value, the given value and the fix; nothing is changed."""

import copy
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim

from lpkernels.techniques.loss_scaling import MasterWeights
from tests.support.refusals import refused
from tests.techniques.loss_scaling import optimizers


def sgd(held: list[nn.Parameter], **options: Any) -> optim.Optimizer:
    return optim.SGD(held, lr=0.1, **options)


def wrap(optimizer: Any, weight: str = "fp16", **formats: Any) -> MasterWeights:
    return MasterWeights(optimizer, weight=weight, **formats)


def numbers(dtype: torch.dtype) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, dtype=dtype))]


HALF, BRAIN = torch.float16, torch.bfloat16
test_an_optimizer_that_cannot_be_wrapped_is_refused = refused(
    [
        (lambda: wrap(optim.LBFGS(optimizers.parameters())), NotImplementedError, "LBFGS"),
        (lambda: wrap(optim.SparseAdam(optimizers.parameters())), NotImplementedError,
         "SparseAdam"),
        (lambda: wrap(sgd(optimizers.parameters(), differentiable=True)), NotImplementedError,
         "SGD .*differentiable=True"),
        (lambda: wrap(sgd(numbers(torch.complex64))), TypeError, "parameter '0' .*complex64"),
        *((partial(wrap, sgd(numbers(dtype)), weight), ValueError, "parameter '0' is ")
          for dtype, weight in ((HALF, "bf16"), (BRAIN, "fp16"), (HALF, "fixed8_f4"))),
    ],
)  # fmt: skip


def test_every_optimizer_of_torch_is_wrapped_or_refused() -> None:
    """The tests' table and the two that are refused are all that torch has."""
    made = {type(make(optimizers.parameters())) for make in optimizers.OPTIMIZERS.values()}
    kinds = [kind for kind in vars(optim).values() if isinstance(kind, type)]
    of_torch = {kind for kind in kinds if issubclass(kind, optim.Optimizer)}
    assert of_torch == made | {optim.Optimizer, optim.LBFGS, optim.SparseAdam}


def test_a_wrapped_optimizer_is_neither_wrapped_again_nor_stepped() -> None:
    held = optimizers.parameters()
    inner = sgd(held)
    optimizer = wrap(inner)
    before = optimizers.snapshot(optimizer, held)
    with pytest.raises(ValueError, match="is wrapped already"):
        wrap(inner)
    held[0].grad = optimizers.gradient(held[0], 0, 1)
    with pytest.raises(RuntimeError, match=r"step of the wrapped SGD was called.*wrapper's step"):
        inner.step()
    optimizers.assert_same(optimizers.snapshot(optimizer, held), before)


# This format is for states that are never negative.
LINEAR = "block128_linear4_sfp32"
# The optimizer is SGD with momentum, of parameters of the shapes (7, 9), (13,) and ().
FORMATS = [
    ({"weight": "fp17"}, "weight: .*'fp17'"), ({"master": "affine8"}, "master: affine8"),
    ({"weight": "block32_k_e4m3"}, "weight=.* along 'k'"),
    ({"weight": "nvfp4_2d"}, "'1' .* weight="), ({"master": "block4_axis1_e4m3"}, "'1' .* master="),
    ({"grad": "affine8_axis-2"}, "'1' .* grad="),
    *(({name: LINEAR}, f"{name}: {LINEAR} has no zero")
      for name in ("weight", "master", "grad", "state")),
    ({"state": {"momentum_buffer": LINEAR}}, "exp_avg_sq"),
]  # fmt: skip


@pytest.mark.parametrize("formats, word", FORMATS)
def test_a_format_that_cannot_be_kept_is_refused_and_the_weights_stay(
    formats: dict[str, Any], word: str
) -> None:
    held = optimizers.parameters()
    before = [p.detach().clone() for p in held]
    inner = sgd(held, momentum=0.9)
    with pytest.raises(ValueError, match=word):
        wrap(inner, **formats)
    optimizers.assert_same([p.detach() for p in held], before)
    # The optimizer may still be wrapped.
    wrap(inner)


FORMATS_OF_A_GROUP = [
    ({"weight": "e9"}, ValueError, "weight"), ({"master": None}, TypeError, "master"),
    ({"state": LINEAR}, ValueError, "state"),
]  # fmt: skip


@pytest.mark.parametrize("formats, kind, error", FORMATS_OF_A_GROUP)
def test_a_format_that_a_group_cannot_have_is_refused(
    formats: dict[str, Any], kind: type, error: str
) -> None:
    """Neither at first nor later; nothing is changed."""
    held = optimizers.parameters()
    with pytest.raises(kind, match=error):
        wrap(optim.Adagrad([{"params": held[:1]}, {"params": held[1:], **formats}]))
    optimizer = wrap(optim.Adagrad(held[:1]))
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(kind, match=error):
        optimizer.add_param_group({"params": held[1:], **formats})
    optimizers.assert_same(optimizer.state_dict(), before)
    assert len(optimizer.optimizer.param_groups) == 1 and not optimizer.optimizer.state
    optimizers.assert_same([p.detach() for p in held[1:]], optimizers.parameters()[1:])


# The last gradient leaves a value without a code.
ONES = torch.ones(7, 9)


GRADIENTS = [
    (ONES.to_sparse(), TypeError, "gradient of parameter '0' is torch.sparse_coo"),
    (ONES.half(), RuntimeError, "parameter '0' was torch.float32 .*torch.float16"),
    (ONES * torch.nan, ValueError, "master of parameter '0'"),
]


@pytest.mark.parametrize("wrong, error, message", GRADIENTS)
def test_a_step_that_cannot_be_changes_nothing(wrong: Any, error: Any, message: str) -> None:
    held = optimizers.parameters()
    optimizer = wrap(sgd(held, momentum=0.9), "fp32", master="fixed16_f8")
    optimizers.train(optimizer, held, [1])
    held[0].data = held[0].data.to(wrong.dtype)
    held[0].grad, held[1].grad, held[2].grad = wrong, None, None
    before = optimizers.snapshot(optimizer, held)
    with pytest.raises(error, match=message):
        optimizer.step()
    optimizers.assert_same(optimizers.snapshot(optimizer, held), before)


@pytest.mark.parametrize(
    "kind, message",
    [
        (optim.Adagrad, "Adagrad has no state square with .* it keeps step, sum"),
        (optim.SGD, "SGD has no state square with these options; it keeps none"),
        (optim.Adam, "Adam has no state square with .* it keeps step, exp_avg, exp_avg_sq"),
    ],
)
def test_a_format_for_a_state_that_there_is_not_is_refused_at_the_step(
    kind: Any, message: str
) -> None:
    held = optimizers.parameters()
    optimizer = wrap(kind(held, lr=0.1), state={"square": "bf16"})
    held[0].grad = ONES
    before = optimizers.snapshot(optimizer, held)
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    optimizers.assert_same(optimizers.snapshot(optimizer, held), before)


STATES = [
    (lambda s: s["param_groups"][0]["params"].pop(),
     r"groups of \[3\] .* \[2\]"),
    (lambda s: s["state"][1].update(master=s["state"][1]["master"][:-1]),
     r"master of parameter '1' .* \(26,\) .* \(25,\)"),
    (lambda s: s["state"][1].clear(), "the state_dict has no counts of '1'"),
]  # fmt: skip


@pytest.mark.parametrize("broken, error", STATES)
def test_a_state_dict_that_does_not_fit(broken: Any, error: str) -> None:
    held = optimizers.parameters()
    optimizer = optimizers.wrapped("adam", held, weight="e4m3fn", master="e6m9")
    optimizers.train(optimizer, held, [1])
    before = optimizers.snapshot(optimizer, held)
    state = copy.deepcopy(optimizer.state_dict())
    broken(state)
    with pytest.raises(ValueError, match=error):
        optimizer.load_state_dict(state)
    optimizers.assert_same(optimizers.snapshot(optimizer, held), before)


MOMENTS = [
    (optim.Adam, "fp16", "0.0055"),
    (optim.Adam, {"exp_avg_sq": "fp16:toward_zero"}, "0.0077"), (optim.RMSprop, "fp16", "0.0017"),
    (optim.Adagrad, "fixed16_f8", "0.044"),
    *((optim.Adam, state, "")
      for state in ("bf16", "fp16:stochastic", "block32_e4m3", {"exp_avg": "fp16"})),
]  # fmt: skip


@pytest.mark.parametrize("kind, state, below", MOMENTS)
def test_a_second_moment_that_stays_zero_is_said(kind: Any, state: Any, below: str) -> None:
    with warnings.catch_warnings(record=True) as said:
        wrap(kind(optimizers.parameters()), "fp32", state=state)
    texts = [str(warning.message) for warning in said]
    assert [f"stays 0 where every |gradient| is below {below}" in text for text in texts] == (
        [True] if below else []
    )


def test_the_second_moment_does_as_the_warning_says() -> None:
    p = nn.Parameter(torch.zeros(2))
    with pytest.warns(UserWarning):
        optimizer = wrap(optim.Adam([p]), "fp32", state="fp16")
    for _ in range(20):
        p.grad = torch.tensor([5.4e-3, 5.5e-3])
        optimizer.step()
    kept = optimizer.state[p]["exp_avg_sq"]
    assert float(kept[0]) == 0.0 < float(kept[1])
