"""LossScaler does all that torch.amp.GradScaler does, and takes optimizers that call a closure."""

import copy
import inspect
import pickle
import random
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpkernels.techniques.loss_scaling import LossScaler, StepRecord
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.operators import Reads
from tests.techniques.loss_scaling.optimizers import (
    INF,
    assert_same,
    backward,
    parameter,
    state_of,
    take,
)


def torch_scaler(**arguments: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **arguments)


def trace(scaler: Any, bad: list[bool], lr: float = 0.1) -> list[tuple[float, int, float]]:
    """Scale, tracker and weight after each step of SGD with the gradient 1 or infinity."""
    weight = parameter(1.0)
    optimizer = torch.optim.SGD([weight], lr=lr)
    found = []
    for broken in bad:
        take(scaler, optimizer, INF if broken else 1.0)
        state = scaler.state_dict()
        found.append((state["scale"], state["_growth_tracker"], weight.item()))
    return found


def test_defaults_are_those_of_torch() -> None:
    mine = inspect.signature(LossScaler).parameters
    for name, torchs in inspect.signature(torch.amp.GradScaler).parameters.items():
        assert name == "device" or mine[name].default == torchs.default
    # Every rank takes a step, or none does, unless the user asks for otherwise.
    assert mine["reduce"].default is True


def test_trace_of_twelve_steps() -> None:
    scaler = LossScaler(init_scale=16.0, growth_interval=3)
    bad = [bool(int(flag)) for flag in "000100110000"]
    found = trace(scaler, bad)
    assert [row[0] for row in found] == [16, 16, 32, 16, 16, 16, 8, 4, 4, 4, 8, 8]
    assert [row[1] for row in found] == [1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0, 1]
    weights = [0.9, 0.8, 0.7, 0.7, 0.6, 0.5, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1]
    assert [row[2] for row in found] == pytest.approx(weights, abs=1e-6)
    assert found == trace(torch_scaler(init_scale=16.0, growth_interval=3), bad)
    # The scale grows no further than float32 goes.
    arguments: dict[str, Any] = {"init_scale": 2.0**127, "growth_interval": 1}
    for scaler in (LossScaler(**arguments), torch_scaler(**arguments)):
        assert [row[0] for row in trace(scaler, [False] * 3)] == [2.0**127] * 3


@each("factors", [{}, {"growth_factor": 1.7, "backoff_factor": 0.3}])
def test_random_trace_is_that_of_torch(factors: dict[str, float]) -> None:
    draw = random.Random(0)
    bad = [draw.random() < 0.09 for _ in range(400)]
    arguments: dict[str, Any] = {"growth_interval": 7, **factors}
    mine = trace(LossScaler(**arguments), bad, lr=1e-5)
    assert mine == trace(torch_scaler(**arguments), bad, lr=1e-5)
    assert len({row[0] for row in mine}) > 10


SCALES = [2.0**16, 1000.0, 3.0]


@each("fused, scale, unscales", [False, True], SCALES, [False, True])
def test_weights_are_those_of_torch(fused: bool, scale: float, unscales: bool) -> None:
    ends = []
    for scaler in (LossScaler(init_scale=scale), torch_scaler(init_scale=scale)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        for step in range(6):
            optimizer.zero_grad()
            x = torch.randn(4, 5) * (INF if step == 3 else 1)
            scaler.scale(model(x).square().mean()).backward()
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        ends.append(dict(model.state_dict()))
    assert_same(*ends)


def test_states_go_both_ways() -> None:
    mine, theirs = LossScaler(init_scale=16.0, growth_interval=3), torch_scaler(init_scale=16.0)
    trace(mine, [False, False, True, False])
    theirs.load_state_dict(mine.state_dict())
    assert theirs.state_dict() == {name: mine.state_dict()[name] for name in theirs.state_dict()}
    bad = [False, False, False, True, False]
    assert trace(theirs, bad) == trace(mine, bad)
    fresh = LossScaler()
    fresh.load_state_dict(theirs.state_dict())
    assert trace(fresh, bad) == trace(theirs, bad)
    assert all(type(value) in (float, int, bool) for value in mine.state_dict().values())
    # The state of a scaler in use is replaced.
    fresh.load_state_dict(LossScaler(init_scale=8.0).state_dict())
    assert fresh.get_scale() == fresh.scale(torch.ones(())).item() == 8.0


Pair = namedtuple("Pair", "one two")


def test_scale_takes_nested_iterables() -> None:
    scaler, one = LossScaler(init_scale=4.0), torch.ones(2)
    assert torch.equal(scaler.scale(one), one * 4)
    assert scaler.scale(one.half()).dtype == torch.float16
    nested = scaler.scale([one, (one, [one])])
    assert isinstance(nested[1], tuple) and torch.equal(nested[1][1][0], one * 4)
    pair = scaler.scale(Pair(one, [one]))
    assert isinstance(pair, Pair) and torch.equal(pair.two[0], one * 4)
    assert [x.item() for x in scaler.scale(x for x in (torch.ones(()),))] == [4.0]
    for wrong in (3, "loss", {"loss": one}, [one, None]):
        with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
            scaler.scale(wrong)


def test_order_of_calls_is_checked_as_by_torch() -> None:
    weight = parameter()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for make, early in ((LossScaler, RuntimeError), (torch_scaler, AssertionError)):
        scaler: Any = make()
        for call in (scaler.unscale_, scaler.step):
            with pytest.raises(early, match="scale"):
                call(optimizer)
        scaler.scale(torch.ones(()))
        with pytest.raises(early, match="No inf checks were recorded prior to update"):
            scaler.update()
        weight.grad = None
        with pytest.raises(early, match="No inf checks were recorded for this optimizer"):
            scaler.step(optimizer)
        if make is LossScaler:
            scaler.update()
        scaler = make()
        backward(scaler, [weight])
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        with pytest.raises(RuntimeError, match=r"step\(\) has already been called since"):
            scaler.step(optimizer)
        with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step"):
            scaler.unscale_(optimizer)


def test_float16_gradients_are_not_unscaled() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for scaler in (LossScaler(init_scale=2.0), torch_scaler(init_scale=2.0)):
        backward(scaler, [weight])
        with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
            scaler.unscale_(optimizer)


@each("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_gradients_of_other_dtypes_are_unscaled(dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.ones(2, dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = LossScaler(init_scale=8.0)
    scaler.scale((weight * 0.5).sum().real).backward()
    scaler.unscale_(optimizer)
    assert torch.equal(weight.grad, torch.full((2,), 0.5, dtype=dtype))


def test_sparse_gradients_are_checked_and_unscaled() -> None:
    for bad in (False, True):
        table = nn.Embedding(4, 2, sparse=True)
        before = table.weight.detach().clone()
        optimizer = torch.optim.SparseAdam(table.parameters())
        scaler = LossScaler(init_scale=8.0)
        loss = table(torch.tensor([1, 1, 3])).sum() * (INF if bad else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        assert torch.equal(before, table.weight) == bad
        assert scaler.last_step.ran != bad


def test_disabled_does_nothing() -> None:
    weight = parameter()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = LossScaler(enabled=False)
    assert not scaler.is_enabled() and LossScaler().is_enabled()
    backward(scaler, [weight], 0.5)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert weight.item() == 0.5 and scaler.last_step is None
    assert scaler.step(optimizer, lambda: torch.tensor(3.0)) == 3.0
    scaler.update()
    scaler.load_state_dict({"nothing": 1})
    assert (scaler.get_scale(), scaler.state_dict()) == (1.0, {})


def test_a_scale_and_factors_are_read_and_set() -> None:
    scaler = LossScaler()
    for new in (8.0, torch.tensor(4.0), torch.tensor([16.0]), 2.0, 1):
        scaler.update(new)
        assert scaler.scale(torch.ones(())).item() == scaler.get_scale() == float(new)
    scaler.update(4.0)
    assert scaler.get_scale() == 4.0
    scaler.set_growth_factor(3.0)
    scaler.set_backoff_factor(0.25)
    scaler.set_growth_interval(7)
    read = (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
    assert read == (3.0, 0.25, 7)
    assert scaler.state_dict()["growth_interval"] == 7


def test_copies_go_on_by_themselves() -> None:
    scaler = LossScaler(init_scale=16.0, growth_interval=2, floor=2.0)
    trace(scaler, [False, True, False])
    state = scaler.state_dict()
    for other in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
        assert other.state_dict() == state
        trace(other, [True])
        assert scaler.state_dict() == state
    weight = parameter()
    backward(scaler, [weight])
    scaler.unscale_(torch.optim.SGD([weight], lr=0.1))
    with pytest.raises(RuntimeError, match="at the beginning of an iteration"):
        pickle.dumps(scaler)


X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def problem(kind: Any, **arguments: Any) -> tuple[nn.Linear, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, kind(model.parameters(), **arguments)


def closure_of(
    model: nn.Module,
    optimizer: Any,
    scale: Callable[[Tensor], Tensor],
    factors: list[float] | None = None,
) -> Callable[[], Tensor]:
    """A closure that computes the loss of a regression, the first losses multiplied by factors."""
    left = list(factors or ())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(X).squeeze(1) - X[:, 0]).square().mean() * (left.pop(0) if left else 1.0)
        scale(loss).backward()
        return loss

    return closure


KINDS = [
    (torch.optim.LBFGS, {"max_iter": 4}),
    (torch.optim.LBFGS, {"max_iter": 4, "line_search_fn": "strong_wolfe"}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.Adam, {"lr": 0.1, "fused": True}),
]


@each("kind, arguments", KINDS)
def test_closure_steps_as_without_scaling(kind: Any, arguments: dict[str, Any]) -> None:
    ours, plain = problem(kind, **arguments), problem(kind, **arguments)
    scaler = LossScaler()
    for _ in range(3):
        loss = scaler.step(ours[1], closure_of(*ours, scaler.scale))
        scaler.update()
        want = plain[1].step(closure_of(*plain, lambda loss: loss))
        assert_bit_equal(loss.detach(), want.detach())
        assert scaler.last_step == StepRecord(ran=True)
    assert_same(dict(ours[0].state_dict()), dict(plain[0].state_dict()))


@each("kind, when", KINDS, [0, 2])
def test_evaluation_that_is_not_finite_undoes_the_step(kind: Any, when: int) -> None:
    kind, arguments = kind
    model, optimizer = problem(kind, **arguments)
    scaler = LossScaler(init_scale=16.0, named_parameters=model.named_parameters())
    scaler.step(optimizer, closure_of(model, optimizer, scaler.scale))
    scaler.update()
    before, groups = state_of(optimizer), [{**g, "params": 0} for g in optimizer.param_groups]
    evaluates_once = kind is not torch.optim.LBFGS
    factors = [1.0] * when + [INF]
    result = scaler.step(optimizer, closure_of(model, optimizer, scaler.scale, factors))
    skipped = when == 0 or not evaluates_once
    assert (result is None) == skipped and bool(scaler.ran) != skipped
    assert torch.equal(model.weight, before[0][0]) == skipped
    if skipped:
        assert_same(state_of(optimizer), before)
        assert [{**g, "params": 0} for g in optimizer.param_groups] == groups
        assert scaler.last_step == StepRecord(ran=False, parameter="weight")
    scaler.update()
    assert scaler.get_scale() == (8.0 if skipped else 16.0)
    # The scaler goes on from there.
    scaler.step(optimizer, closure_of(model, optimizer, scaler.scale))
    assert scaler.last_step == StepRecord(ran=True)


class Sharpness(torch.optim.Optimizer):
    """An optimizer that uses the gradient at a point uphill of here, as SAM (Foret et al. 2020)."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"]]
        here = [p.clone() for p in parameters]
        for p in parameters:
            self.state[p]["uphill"] = p.grad.clone()
            p.add_(p.grad, alpha=0.05)
        with torch.enable_grad():
            loss = closure()
        for p, weight in zip(parameters, here, strict=True):
            p.copy_(weight - 0.1 * p.grad)
        return loss


@each("bad", [None, 0, 1])
def test_optimizer_that_starts_from_gradients(bad: int | None) -> None:
    ours, plain = problem(Sharpness, lr=0.1), problem(Sharpness, lr=0.1)
    before = state_of(ours[1])
    scaler = LossScaler()
    closure = closure_of(*ours, scaler.scale, [INF if i == bad else 1.0 for i in range(2)])
    closure()
    scaler.unscale_(ours[1])
    scaler.step(ours[1], closure)
    closure = closure_of(*plain, lambda loss: loss)
    closure()
    plain[1].step(closure)
    assert scaler.last_step.ran == (bad is None)
    assert_same(state_of(ours[1]), before if bad is not None else state_of(plain[1]))


def test_closure_may_unscale_and_clip() -> None:
    model, optimizer = problem(torch.optim.LBFGS, max_iter=3)
    scaler = LossScaler()
    plain = closure_of(model, optimizer, scaler.scale)

    def closure() -> Tensor:
        loss = plain()
        scaler.unscale_(optimizer)
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.5) < 100
        return loss

    scaler.step(optimizer, closure)
    assert scaler.last_step.ran
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        scaler.step(optimizer, closure)


def test_closure_reads_once_an_evaluation() -> None:
    model, optimizer = problem(torch.optim.SGD, lr=0.1)
    scaler = LossScaler()
    closure = closure_of(model, optimizer, scaler.scale)
    with Reads() as reads:
        scaler.step(optimizer, closure)
        scaler.update()
    assert reads.count == 1


def test_wrong_closures_are_refused() -> None:
    model, optimizer = problem(torch.optim.LBFGS)
    scaler = LossScaler()
    with pytest.raises(RuntimeError, match=r"the closure computed gradients without scaler\.scale"):
        scaler.step(optimizer, closure_of(model, optimizer, lambda loss: loss))
    scaler = LossScaler()
    scaler.scale(model(X).sum()).backward()
    with pytest.raises(TypeError, match="closure"):
        scaler.step(optimizer)
    # The optimizer's step does nothing.
    optimizer.step = lambda closure=None: None
    with pytest.raises(RuntimeError, match="the optimizer never called its closure"):
        LossScaler().step(optimizer, lambda: torch.tensor(0.0))
