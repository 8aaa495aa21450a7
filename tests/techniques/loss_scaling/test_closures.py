"""Optimizers that evaluate the loss themselves."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpkernels.techniques.loss_scaling import LossScaler, StepRecord
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.reads import Reads
from tests.techniques.loss_scaling.optimizers import INF, assert_same, state_of

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
    """A closure that computes the loss of a regression; evaluation i is multiplied by factors[i],
    and the others by 1."""
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
    for a, b in zip(ours[0].parameters(), plain[0].parameters(), strict=True):
        assert_bit_equal(a.detach(), b.detach())


@each("kind, when", itertools.product(KINDS, [0, 2]))
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
    factors = [1.0, 1.0]
    if bad is not None:
        factors[bad] = INF
    closure = closure_of(*ours, scaler.scale, factors)
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
    scaler = LossScaler()
    with scaler.separately(optimizer):
        scaler.scale(model(X).sum()).backward()
    with pytest.raises(RuntimeError, match="a closure computes gradients anew"):
        scaler.step(optimizer, closure_of(model, optimizer, scaler.scale))
    # The optimizer's step does nothing.
    optimizer.step = lambda closure=None: None
    with pytest.raises(RuntimeError, match="the optimizer never called its closure"):
        LossScaler().step(optimizer, lambda: torch.tensor(0.0))
