"""Wrong input: what was expected, what came, how to fix it; nothing is changed."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

from lpkernels.techniques.loss_scaling import MasterWeights
from tests.techniques.loss_scaling.optimizers import (
    assert_same,
    gradient,
    parameters,
    snapshot,
    train,
    wrapped,
)


def sgd(held: list[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(held, lr=0.1, **options)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("LBFGS", "LBFGS cannot be wrapped: it evaluates the loss again within a step"),
        ("SparseAdam", "SparseAdam cannot be wrapped: it takes sparse gradients"),
    ],
)
def test_optimizers_of_all_parameters_together_are_refused(name: str, error: str) -> None:
    with pytest.raises(NotImplementedError, match=error):
        MasterWeights(getattr(torch.optim, name)(parameters()), weight="fp16")


def test_every_optimizer_of_torch_is_wrapped_or_refused() -> None:
    """The tests' table and the two that are refused are all that torch has."""
    from tests.techniques.loss_scaling.optimizers import OPTIMIZERS

    made = {type(make(parameters())).__name__ for make in OPTIMIZERS.values()}
    kinds = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    assert kinds == made | {"Optimizer", "LBFGS", "SparseAdam"}


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"must be a torch.optim.Optimizer, got list; make it first"
    ):
        MasterWeights(parameters(), weight="fp16")  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match=r"SGD\(differentiable=True\) cannot be wrapped"):
        MasterWeights(sgd(parameters(), differentiable=True), weight="fp16")


@pytest.mark.parametrize("again", ["inner", "wrapper"])
def test_an_optimizer_is_wrapped_once(again: str) -> None:
    inner = sgd(parameters())
    optimizer = MasterWeights(inner, weight="fp16")
    with pytest.raises(ValueError, match=r"is (wrapped already|a MasterWeights)"):
        MasterWeights(inner if again == "inner" else optimizer, weight="fp16")


def test_the_step_of_the_wrapped_optimizer_is_refused() -> None:
    held = parameters()
    inner = sgd(held)
    optimizer = MasterWeights(inner, weight="fp16")
    before = snapshot(optimizer, held)
    held[0].grad = gradient(held[0], 0, 1)
    with pytest.raises(
        RuntimeError, match=r"the step of the wrapped SGD was called.*wrapper's step"
    ):
        inner.step()
    assert_same(snapshot(optimizer, held), before)


@pytest.mark.parametrize(
    ("formats", "kind", "error"),
    [
        ({"weight": "fp17"}, ValueError, "weight: parse_format: unknown format 'fp17'"),
        ({"weight": 16}, TypeError, "weight: expected a Quantizer, a format or text"),
        ({"state": {"momentum_buffer": 3}}, TypeError, "MasterWeights: state momentum_buffer: exp"),
        ({"master": "affine8"}, ValueError, "master: affine8 cannot be kept as codes.*BlockFormat"),
        ({"state": {"momentum_buffer": "affine8"}}, ValueError, "momentum_buffer: affine8 cannot"),
        ({"compensation": "affine8"}, ValueError, "compensation: affine8 cannot be kept"),
        ({"state": {"exp_avg": "fp16"}}, ValueError, "SGD has no state exp_avg with these options; "
         "its states are momentum_buffer"),
        ({"split": 1}, TypeError, "split must be True or False, got 1"),
        ({"split": True}, ValueError, "split: fp32 is the working copy and a few bits.*got e5m10"),
        ({"split": True, "weight": "bf16", "master": "bf16"}, ValueError, "split: .*expected mast"),
        ({"split": True, "weight": "bf16", "compensation": "bf16"}, ValueError, "split: .*no comp"),
        ({"exceptions": {"7": {}}}, ValueError, r"exceptions\['7'\] matches no parameter of the "
         r"optimizer: 0, 1, 2; the parameters have no names, pass named_parameters=model.named"),
        ({"exceptions": {"*bias": {}}}, ValueError, "the parameters have no names, pass named"),
        ({"exceptions": {"0": "fp32"}}, TypeError, r"exceptions\['0'\] must be a mapping of"),
        ({"exceptions": {"0": {"wieght": "fp32"}}}, ValueError, r"exceptions\['0'\] weight, mas"
         "ter, state, grad, compensation, split, got wieght"),
        ({"exceptions": {"0": {"weight": "e9"}}}, ValueError, r"exceptions\['0'\] weight: parse_f"),
        ({"exceptions": {"0": {"state": {"square": "bf16"}}}}, ValueError, "SGD has no state squ"),
        ({"master": "block4_axis1_e4m3"}, ValueError, "parameter '1' has shape (13,), but mas"),
        ({"weight": "affine8_axis1"}, ValueError, "parameter '1' has shape (13,), but weight="),
        ({"grad": "affine8_axis-2"}, ValueError, "parameter '1' has shape (13,), but grad=aff"),
        ({"compensation": "block4_axis1_e4m3"}, ValueError, "has shape (13,), but compensation="),
        ({"named_parameters": ["a"]}, TypeError, "named_parameters must be pairs (name, "),
        ({"named_parameters": {}}, ValueError, None),
    ],
)  # fmt: skip
def test_formats_that_cannot_be(formats: dict[str, Any], kind: type, error: str | None) -> None:
    held = parameters()
    before = [p.detach().clone() for p in held]
    inner = sgd(held, momentum=0.9)
    if error is None:
        formats = {"named_parameters": {"first": held[0]}}
        error = "named_parameters has no name for parameter 1 of the optimizer"
    error = error if "\\" in error or ".*" in error else re.escape(error)
    with pytest.raises(kind, match=error):
        MasterWeights(inner, **{"weight": "fp16", **formats})
    assert_same([p.detach() for p in held], before)
    # the optimizer may still be wrapped
    MasterWeights(inner, weight="fp16")


def test_states_of_an_optimizer_without_any() -> None:
    with pytest.raises(ValueError, match=r"SGD has no state momentum_buffer .*; it keeps none"):
        MasterWeights(sgd(parameters()), weight="fp16", state={"momentum_buffer": "bf16"})


@pytest.mark.parametrize(
    ("dtype", "weight"),
    [(torch.float16, "bf16"), (torch.bfloat16, "fp16"), (torch.float16, "fixed8_f4")],
)
def test_a_dtype_that_does_not_hold_the_working_copy(dtype: torch.dtype, weight: str) -> None:
    with pytest.raises(
        ValueError, match=r"parameter '0' is .*, which does not hold every value of"
    ):
        MasterWeights(sgd(parameters(dtype)), weight=weight)


def test_parameters_that_are_no_floats() -> None:
    p = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"parameter '0' must be float16.*, got torch.complex64"):
        MasterWeights(sgd([p]), weight="fp16")


def test_a_group_that_cannot_be_added_changes_nothing() -> None:
    held = parameters()
    optimizer = MasterWeights(torch.optim.Adagrad(held[:1]), weight="fp16")
    before = copy.deepcopy(optimizer.state_dict())
    half = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"parameter '1' is torch.bfloat16, which does not hold"):
        optimizer.add_param_group({"params": [half]})
    assert_same(optimizer.state_dict(), before)
    assert len(optimizer.optimizer.param_groups) == 1 and not optimizer.optimizer.state


def test_a_group_without_names() -> None:
    model = nn.Linear(2, 2)
    inner = sgd([model.weight])
    names = {"weight": model.weight}
    optimizer = MasterWeights(inner, weight="fp16", named_parameters=names)
    with pytest.raises(ValueError, match="named_parameters has no name for parameter 1"):
        optimizer.add_param_group({"params": [model.bias]})
    assert len(optimizer.param_groups) == len(inner.param_groups) == 1


# --- steps ---


def test_sparse_gradients() -> None:
    table = nn.Embedding(4, 3, sparse=True)
    optimizer = MasterWeights(sgd([table.weight]), weight="fp16")
    before = snapshot(optimizer, [table.weight])
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(
        TypeError, match=r"gradient of parameter '0' is torch.sparse_coo.*sparse=Fal"
    ):
        optimizer.step()
    assert_same(snapshot(optimizer, [table.weight]), before)


def test_a_model_that_was_converted_afterwards() -> None:
    model = nn.Linear(2, 2)
    optimizer = MasterWeights(sgd(list(model.parameters())), weight="fp16")
    model.half()
    model(torch.ones(1, 2, dtype=torch.float16)).sum().backward()
    with pytest.raises(
        RuntimeError, match=r"parameter '0' was torch.float32 on cpu .*torch.float16"
    ):
        optimizer.step()


def test_a_value_without_a_code() -> None:
    held = parameters()
    optimizer = MasterWeights(sgd(held, momentum=0.9), weight="fp32", master="fixed16_f8")
    train(optimizer, held, [1])
    before = snapshot(optimizer, held)
    held[0].grad = torch.full_like(held[0], torch.nan)
    held[1].grad = held[2].grad = None
    with pytest.raises(ValueError, match=r"master of parameter '0': pack: .*; a loss scaler skips"):
        optimizer.step()
    assert_same(snapshot(optimizer, held), before)


# --- state_dict ---


def broken(state: dict[str, Any], what: str) -> dict[str, Any]:
    state = copy.deepcopy(state)
    if what == "bare":
        del state["master_weights"]
    elif what == "groups":
        state["param_groups"][0]["params"].pop()
    elif what == "shapes":
        state["master_weights"]["parameters"][1]["shape"] = [14]
    elif what == "formats":
        state["master_weights"]["parameters"][1]["formats"]["state"] = "e4m3fn"
    elif what == "tensors":
        state["state"][1]["master"] = state["state"][1]["master"][:-1]
    elif what == "lacks":
        state["state"][1] = {}
    return state


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("bare", "expected that of a MasterWeights, got one without 'master_weights'; load that"),
        ("groups", "this optimizer has groups of [3] parameters, the state_dict of [2]"),
        ("shapes", "parameter '1' has shape (13,), that of the state_dict (called '1') (14,)"),
        ("formats", "parameter '1' has state='e8m23', in the state_dict it is 'e4m3fn'; make"),
        ("tensors", "master of parameter '1' must have shape (26,) in e6m9, got (25,)"),
        ("lacks", "the state_dict lacks what it kept of '1'"),
    ],
)
def test_a_state_dict_that_does_not_fit(what: str, error: str) -> None:
    held = parameters()
    optimizer = wrapped("adam", held, weight="e4m3fn", master="e6m9")
    train(optimizer, held, [1])
    before = snapshot(optimizer, held)
    with pytest.raises(ValueError, match=re.escape(error)):
        optimizer.load_state_dict(broken(optimizer.state_dict(), what))
    assert_same(snapshot(optimizer, held), before)


# --- what a second moment in a narrow format does ---


@pytest.mark.parametrize(
    ("make", "state", "below"),
    [
        (lambda p: torch.optim.Adam(p), "fp16", "0.0055"),
        (lambda p: torch.optim.Adam(p), {"exp_avg_sq": "fp16:toward_zero"}, "0.0077"),
        (lambda p: torch.optim.RMSprop(p), "fp16", "0.0017"),
        (lambda p: torch.optim.Adagrad(p), "fixed16_f8", "0.044"),
    ],
)
def test_a_second_moment_that_stays_zero_is_said(make: Any, state: Any, below: str) -> None:
    with pytest.warns(UserWarning, match=f"stays 0 where every .gradient. is below {below}"):
        MasterWeights(make(parameters()), weight="fp32", state=state)


@pytest.mark.parametrize("state", ["bf16", "fp16:stochastic", "block32_e4m3", {"exp_avg": "fp16"}])
def test_other_second_moments_are_not(state: Any, recwarn: pytest.WarningsRecorder) -> None:
    MasterWeights(torch.optim.Adam(parameters()), weight="fp32", state=state)
    assert not [w for w in recwarn if "MasterWeights" in str(w.message)]


def test_the_second_moment_does_as_the_warning_says() -> None:
    p = nn.Parameter(torch.zeros(2))
    with pytest.warns(UserWarning):
        optimizer = MasterWeights(torch.optim.Adam([p]), weight="fp32", state="fp16")
    for _ in range(20):
        p.grad = torch.tensor([5.4e-3, 5.5e-3])
        optimizer.step()
    kept = optimizer.state[p]["exp_avg_sq"]
    assert float(kept[0]) == 0.0 < float(kept[1])
