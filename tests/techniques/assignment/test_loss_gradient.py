"""The gradient of the loss's own value, which is rounded nowhere: not in the value, and not in the
scalars that it is the sum of."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lpkernels.techniques.assignment import Formats, Promoter, assign, group, trace, uniform
from lpkernels.techniques.assignment.tracing import Trace, trace_calls
from tests.loops import each
from tests.support.autograd import Computes
from tests.support.techniques import audit
from tests.techniques.assignment.runs import assigned_of, gradients, same

Loss = Callable[[Any, Tensor], Tensor]
#: A scale that the paper's 8 bits, which end at 114,688, do not hold. Gradients of results are
#: smaller by the number of examples.
LARGE = 2.0**20
FAN_OUT = each("fan_out", ["sum", "branches"])


def batch_of(examples: int = 32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(examples, 6), torch.arange(examples) % 5


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))


def ce(y: Tensor, t: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(y, t, reduction=reduction)


def decay(y: Tensor) -> Tensor:
    return y.square().mean()


def in_place(y: Tensor, t: Tensor) -> Tensor:
    total = decay(y)
    total += ce(y, t)
    return total


# By name: a loss, and the operations whose gradients are its own.
PASSING: dict[str, tuple[Loss, str]] = {
    "one": (ce, "nll_loss"),
    "a mean of many": (lambda y, t: ce(y, t, "none").mean(), "mean"),
    "a sum of two": (lambda y, t: ce(y, t) + decay(y), "add nll_loss mean"),
    "Python's sum": (
        lambda y, t: sum([ce(y, t), decay(y)], torch.zeros(())), "add add_1 nll_loss mean",
    ),
    "in place": (in_place, "add nll_loss mean"),
    "a difference": (lambda y, t: -(1.0 - ce(y, t) - decay(y)), "neg sub rsub nll_loss mean"),
    "another shape": (
        lambda y, t: (ce(y, t).reshape(1) + decay(y)).sum().squeeze().clone(),
        "sum add nll_loss mean",
    ),
}  # fmt: skip
# Losses whose parts have gradients of their own.
CHANGING: dict[str, tuple[Loss, str]] = {
    "a factor": (lambda y, t: ce(y, t) + 0.3 * decay(y), "add nll_loss mul"),
    "alpha": (lambda y, t: torch.sub(ce(y, t), decay(y), alpha=0.5), "sub"),
    "twice": (lambda y, t: (lambda a: a + a)(ce(y, t)), "add"),
    "read elsewhere": (lambda y, t: (lambda a: a + a * a)(ce(y, t)), "add mul"),
    "many copies of one": (lambda y, t: ce(y, t).expand(3).sum(), "sum"),
    "many": (lambda y, t: y.square().sum() + ce(y, t), "add sum nll_loss"),
}
LOSSES = PASSING | CHANGING


@each("name", LOSSES)
def test_which_gradients_are_the_loss_s_own(name: str) -> None:
    loss, ops = LOSSES[name]
    plan = trace_calls(network(), loss, batch_of(), grad=True)
    assert plan.unrounded_gradients == {f"loss.{op}.GY" for op in ops.split()}


@FAN_OUT
@each("formats, name", [Formats(), Formats(grad_activation=("fp32", "e5m2:stochastic"))], LOSSES)
def test_no_bit_changes_at_a_scale_that_the_format_holds(name: str, formats: Formats, fan_out: Any):
    loss, model, batch = LOSSES[name][0], network(), batch_of()
    made = uniform(trace(model, loss, batch), formats=formats)

    def found(scale: float) -> dict[str, Tensor]:
        assigned = assign(model, loss, made, promote=None, fan_out=fan_out)
        return {name: grad.clone() for name, grad in gradients(assigned, batch, scale)[1].items()}

    for scale in (2.0**10, 2.0**15):
        passed = found(scale)
        # The same with every gradient rounded.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trace, "unrounded_gradients", frozenset())
            same(passed, found(scale))


@FAN_OUT
@each("name", PASSING)
def test_a_scale_beyond_the_format_trains(name: str, fan_out: Any) -> None:
    loss, model, batch = PASSING[name][0], network(), batch_of()
    assigned = assigned_of(model, batch, 1.0, loss, promote=None, fan_out=fan_out)
    found = gradients(assigned, batch, LARGE)[1]
    assert all(grad.isfinite().all() and grad.any() for grad in found.values())
    assert audit(assigned, batch).departures == ()


def test_a_loss_inside_the_model_s_output() -> None:
    def forward(m: Any, x: Tensor, target: Tensor) -> Any:
        logits = m.layers(x)
        return {"loss": F.cross_entropy(logits, target), "logits": logits}

    batch = (batch_of(), None)
    model = Computes(forward, layers=network())
    inside = assigned_of(model, batch, 1.0, lambda out, _: out["loss"])
    expected = gradients(assigned_of(network(), batch[0], 1.0), batch[0], LARGE)[1]
    assert all(gradient.isfinite().all() for gradient in expected.values())
    found = gradients(inside, batch, LARGE)[1]
    same(found, {f"layers.{name}": gradient for name, gradient in expected.items()})


def test_its_tensor_has_its_price_and_promotes_nothing():
    model, batch = network(), batch_of()
    ops = trace(model, ce, batch)
    made = uniform(ops)
    assert made.is_low("loss.nll_loss.GY")
    assert sum(each.numel for each in made.groups) == sum(each.numel for each in group(ops))
    assigned = assign(model, ce, made, promote=Promoter(made, 0.01))
    for _ in range(3):
        gradients(assigned, batch, 2.0**127)
        assert assigned.step() == ()
    assert assigned.counts["2.GY"].overflow > 0
    assert "loss.nll_loss.GY" not in assigned.counts
