"""One run of a model under observation that leaves it as found."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from lpkernels.nn.observing.observer import Depth, observe
from lpkernels.nn.observing.operators import Operators
from lpkernels.nn.observing.visiting import Visitor
from lpkernels.nn.ranges_and_scales import KeptScales
from lpkernels.nn.selecting import check_model


def trace(
    model: Module,
    visitor: Visitor,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    operations: Container[str] | None = None,
    depth: Depth = "functions",
    operators: Operators | None = None,
) -> None:
    """Run the model once, in the mode it is in, and tell the visitor of its calls (`observe`).

    Parameters, their gradients, buffers, training mode, hooks and the states of torch's random
    generators are afterwards what they were, to the bit, also if the model raises; lazy layers get
    their sizes. For that all values are copied before, except on the meta device.

    Args:
        model: any module.
        inputs, kwargs: the arguments of the model.
        loss: makes a scalar of the model's output. Its gradients are computed for the parameters
            and for inputs that require one. None: forward alone, without gradients.
        visitor, operations, depth, operators: as in `observe`. Calls of loss are told too.

    Raises:
        ValueError: loss gives no finite scalar (on the meta device nobody knows), or one without a
            gradient; and as `observe` does.
    """
    check_model("trace", model)
    given = [*inputs, *(kwargs or {}).values()]
    with (
        left_as_found(model, given),
        torch.set_grad_enabled(loss is not None),
        observe(model, visitor, operations=operations, depth=depth, operators=operators),
    ):
        output = model(*inputs, **(kwargs or {}))
        if loss is not None:
            _backward(loss(output), model, given)


def _backward(value: Any, model: Module, given: list[Any]) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss must be a scalar tensor, got {got}; take a mean, say")
    leaves = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    leaves += [p for p in model.parameters() if p.requires_grad]
    if not value.requires_grad or not leaves:
        raise ValueError(
            "the loss has no gradient, so there is no backward pass; give the model parameters "
            "that require one, and run it without torch.no_grad and .detach()"
        )
    if not value.is_meta and not bool(torch.isfinite(value.detach())):
        raise ValueError(f"the loss is {value.item()}; use inputs on which it is finite")
    torch.autograd.grad(value, leaves, allow_unused=True)


def arguments(given: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """A model's arguments: a mapping by name, a tuple or list in order, or one alone."""
    if isinstance(given, Mapping):
        return (), given
    # A packed sequence is one argument, though torch made its class from tuple.
    several = isinstance(given, tuple | list) and not isinstance(given, PackedSequence)
    return (given if several else (given,)), {}


@contextmanager
def left_as_found(model: Module, inputs: list[Any]) -> Iterator[None]:
    """Puts everything back that `trace` promises, after an error too."""
    modules = [(m, m.training) for m in model.modules()]
    # TorchScript keeps its tensors where only their values can be changed.
    python = [m for m, _ in modules if not isinstance(m, torch.jit.ScriptModule)]
    tables: list[dict[str, Any]] = [t for m in python for t in (m._parameters, m._buffers)]
    held = [(table, dict(table)) for table in tables]
    found = [*model.parameters(), *model.buffers()]
    known = {id(t): t for t in found if not is_lazy(t)}
    gradients = [(t, t.grad) for t in known.values() if t.is_leaf]
    known |= {id(g): g for _, g in gradients if g is not None}
    values = [(t, t.detach().clone()) for t in known.values() if not t.is_meta]
    scales = [(m, m.of_training()) for m, _ in modules if isinstance(m, KeptScales)]
    with torch.random.fork_rng(_cuda_devices([*known.values(), *inputs])):
        try:
            yield
        finally:
            for module, mode in modules:
                module.training = mode
            for table, before in held:
                table.clear()
                table.update(before)
            for kept, state in scales:
                kept.before, kept.waits, kept.is_updated = state
            for tensor, gradient in gradients:
                tensor.grad = gradient
            for tensor, value in values:
                if not _same_bits(tensor, value):
                    # `data` makes no new version, which a graph that holds the tensor would refuse.
                    tensor.data.copy_(value)


def _cuda_devices(values: list[Any]) -> list[int]:
    devices = {x.device.index for x in values if isinstance(x, Tensor) and x.is_cuda}
    if torch.cuda.is_initialized():
        devices.add(torch.cuda.current_device())
    return sorted(devices)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    a = a.detach()
    if a.layout != torch.strided:
        return False
    if type(a) is not Tensor or a.is_quantized or a.is_conj() or a.is_neg():
        return torch.equal(a, b)
    return torch.equal(*(x.contiguous().view(-1).view(torch.uint8) for x in (a, b)))
