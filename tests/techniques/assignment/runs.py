"""Training steps under an assignment, and the same step written out by hand."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.techniques import assignment
from tests.compare import assert_bit_equal
from tests.techniques.assignment.networks import demoted, seeded_chain

SCALE = 1024.0


def assigned_of(
    model: nn.Module,
    batch: tuple[Any, Any],
    ratio: float = 0.6,
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy,
    **options: Any,
) -> assignment.Assigned:
    """A copy of the model under the prefix of its largest groups that reaches the ratio."""
    model = copy.deepcopy(model)
    return assignment.assign(model, loss, demoted(model, batch, ratio, loss), **options)


def chained(
    ratio: float = 0.6, **options: Any
) -> tuple[assignment.Assigned, tuple[Tensor, Tensor]]:
    """`chain_model` under an assignment, from one seed, and a batch for it."""
    model, batch = seeded_chain()
    return assigned_of(model, batch, ratio, **options), batch


def gradients(
    assigned: assignment.Assigned, batch: tuple[Any, Any], scale: float = SCALE
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one scaled step, and the gradients of all parameters."""
    assigned.model.zero_grad()
    torch.manual_seed(3)
    value = assigned(*batch)
    (value * scale).backward()
    return value.detach(), _gradients_of(assigned.model)


def stepped(assigned: assignment.Assigned, batch: tuple[Any, Any]) -> tuple[str, ...]:
    """The keys of the tensors that are promoted after another step."""
    gradients(assigned, batch)
    return assigned.step()


def same(gradients: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Every expected gradient is there, to the bit."""
    for name, gradient in expected.items():
        assert_bit_equal(gradients[name], gradient, name)


def seen_by(assigned: assignment.Assigned) -> list[tuple[str, Tensor, Tensor]]:
    """Grows by each tensor that is rounded, and each gradient that passes: its key, its values, and
    its rounded values."""
    roundings: list[tuple[str, Tensor, Tensor]] = []
    table: Any = assigned._table

    def watched(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def watching(x: Tensor, key: str, **options: Any) -> Tensor:
            with torch._C.DisableTorchFunction():
                before = x.detach().clone()
                y = function(x, key, **options)
                roundings.append((key, before, y.detach().clone()))
            return y

        return watching

    table.rounded, table.passed = watched(table.rounded), watched(table.passed)
    return roundings


class _Rounded(torch.autograd.Function):
    """function(x) in one format. Its gradient is given the rounded result, and the gradient that
    arrives in another format."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, formats: Any, function: Any, gradient: Any) -> Tensor:
        y = lp.quantize(function(x.detach()), formats[0])
        ctx.y, ctx.format, ctx.gradient = y, formats[1], gradient
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.gradient(lp.quantize(grad, ctx.format), ctx.y), None, None, None


def _rounded(x: Tensor, formats: Any) -> Tensor:
    return _Rounded.apply(x, formats, lambda x: x, lambda grad, y: grad)


def _relu(x: Tensor, formats: Any) -> Tensor:
    return _Rounded.apply(x, formats, torch.relu, lambda grad, y: grad * (y > 0))


def _log_softmax(x: Tensor, formats: Any) -> Tensor:
    def gradient(grad: Tensor, y: Tensor) -> Tensor:
        return torch._log_softmax_backward_data(grad, y, 1, grad.dtype)

    return _Rounded.apply(x, formats, lambda x: torch.log_softmax(x, 1), gradient)


def chain_by_hand(
    model: nn.Sequential,
    batch: tuple[Tensor, Tensor],
    rules: assignment.Assignment,
    scale: float,
    rounds_loss_gradient: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the gradients of one step of `chain_model`."""

    def formats(op: str) -> tuple[Any, Any]:
        return rules.format_of(f"{op}.Y"), rules.format_of(f"{op}.GY")

    def at(name: str) -> Tensor:
        own = rules.format_of(f"{name}.P"), rules.format_of(f"{name}.GP")
        return _rounded(model.get_parameter(name), own)

    x, target = batch
    y = _rounded(x, formats("input"))
    for conv, norm, relu, stride in (("0", "1", "2", 1), ("3", "4", "5", 2)):
        y = _rounded(F.conv2d(y, at(f"{conv}.weight"), None, stride, 1), formats(conv))
        affine = (at(f"{norm}.weight"), at(f"{norm}.bias"))
        y = _rounded(F.batch_norm(y, None, None, *affine, training=True), formats(norm))
        y = _relu(y, formats(relu))
    y = _rounded(F.avg_pool2d(y, 4), formats("6"))
    y = _rounded(F.linear(y.flatten(1), at("8.weight"), at("8.bias")), formats("8"))
    logs = _log_softmax(y, formats("loss.log_softmax"))
    rounded, gradient = formats("loss.nll_loss")
    gradient = gradient if rounds_loss_gradient else "fp32"
    value = _rounded(F.nll_loss(logs, target), (rounded, gradient))
    (value * scale).backward()
    return value.detach(), _gradients_of(model)


def _gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
