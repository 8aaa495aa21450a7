"""Training steps under an assignment, and the same step written out by hand."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.techniques.assignment import Assigned, Assignment, assign, demote, group, trace
from tests.compare import assert_bit_equal
from tests.techniques.assignment.networks import chain_batch, chain_model

SCALE = 1024.0


def assigned_of(
    model: nn.Module,
    batch: tuple[Any, Any],
    ratio: float = 0.6,
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy,
    **options: Any,
) -> Assigned:
    """A copy of the model under the prefix of its largest groups that reaches the ratio."""
    model = copy.deepcopy(model)
    made = demote(group(trace(model, loss, batch)), ratio)
    return assign(model, loss, made, **options)


def chained(ratio: float = 0.6, **options: Any) -> tuple[Assigned, tuple[Tensor, Tensor]]:
    """`chain_model` under an assignment, from one seed, and a batch for it."""
    torch.manual_seed(1)
    model, batch = chain_model(), chain_batch()
    return assigned_of(model, batch, ratio, **options), batch


def gradients(
    assigned: Assigned, batch: tuple[Any, Any], scale: float = SCALE
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one scaled step, and the gradients of all parameters."""
    for p in assigned.model.parameters():
        p.grad = None
    torch.manual_seed(3)
    value = assigned(*batch)
    (value * scale).backward()
    grads = {n: p.grad for n, p in assigned.model.named_parameters() if p.grad is not None}
    return value.detach(), grads


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Every expected gradient was found, to the bit."""
    for name, gradient in expected.items():
        assert_bit_equal(found[name], gradient, name)


def seen_by(assigned: Assigned) -> list[tuple[str, Tensor, Tensor]]:
    """Grows by each tensor that is rounded: its key, its values, and what they become."""
    seen: list[tuple[str, Tensor, Tensor]] = []
    assigned._table.told = lambda key, *values: seen.append((key, *(v.clone() for v in values)))
    return seen


class Both(torch.autograd.Function):
    """The identity, rounded by one format forward and by another one backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Any, backward: Any) -> Tensor:
        ctx.backward_format = backward
        return lp.quantize(x.detach(), forward)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return lp.quantize(grad, ctx.backward_format), None, None


class ReluOfStored(torch.autograd.Function):
    """ReLU, rounded; its gradient is where the rounded result is above zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Any, backward: Any) -> Tensor:
        y = lp.quantize(x.detach().clamp(min=0), forward)
        ctx.y, ctx.backward_format = y, backward
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return lp.quantize(grad, ctx.backward_format) * (ctx.y > 0), None, None


class LogsOfStored(torch.autograd.Function):
    """The logarithms of softmax, rounded; their gradient is taken from the rounded ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Any, backward: Any) -> Tensor:
        y = lp.quantize(torch.log_softmax(x.detach(), 1), forward)
        ctx.y, ctx.backward_format = y, backward
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = lp.quantize(grad, ctx.backward_format)
        return torch._log_softmax_backward_data(grad, ctx.y, 1, grad.dtype), None, None


def chain_by_hand(
    model: nn.Sequential,
    batch: tuple[Tensor, Tensor],
    made: Assignment,
    scale: float,
    rounds_loss_gradient: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the gradients of one step of `chain_model`."""

    def formats(op: str) -> tuple[Any, Any]:
        return made.format_of(f"{op}.Y"), made.format_of(f"{op}.GY")

    def at(name: str) -> Tensor:
        p = model.get_parameter(name)
        return Both.apply(p, made.format_of(f"{name}.P"), made.format_of(f"{name}.GP"))

    x, target = batch
    y = Both.apply(x, *formats("input"))
    for conv, norm, relu, stride in (("0", "1", "2", 1), ("3", "4", "5", 2)):
        y = Both.apply(F.conv2d(y, at(f"{conv}.weight"), None, stride, 1), *formats(conv))
        affine = (at(f"{norm}.weight"), at(f"{norm}.bias"))
        y = Both.apply(F.batch_norm(y, None, None, *affine, training=True), *formats(norm))
        y = ReluOfStored.apply(y, *formats(relu))
    y = Both.apply(F.avg_pool2d(y, 4), *formats("6"))
    y = Both.apply(F.linear(y.flatten(1), at("8.weight"), at("8.bias")), *formats("8"))
    logs = LogsOfStored.apply(y, *formats("loss.log_softmax"))
    rounded, gradient = formats("loss.nll_loss")
    gradient = gradient if rounds_loss_gradient else "fp32"
    value = Both.apply(F.nll_loss(logs, target), rounded, gradient)
    (value * scale).backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return value.detach(), grads
