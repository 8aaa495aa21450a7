"""trace: the operations of a model and its loss."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from lpkernels.nn.observing import EVERYTHING, observe
from lpkernels.nn.observing.tracing import arguments, left_as_found
from lpkernels.nn.scaling import is_leaf
from lpkernels.nn.selecting import check_model
from lpkernels.techniques.assignment.operations import Op
from lpkernels.techniques.assignment.tracing.makers import TracedOp
from lpkernels.techniques.assignment.tracing.recording import Recorder


def trace(
    model: Module,
    loss: Callable[[Any, Any], Tensor],
    batch: tuple[Any, Any],
) -> tuple[Op, ...]:
    """The operations that the model and its loss compute on one batch, as data.

    It runs both once, forward, in the mode the model is in, and follows every call of a function
    of torch: which results it reads, which parameters, and how many elements it makes. Parameters,
    gradients, buffers, training mode and random states are left as found. Operations that the loss
    does not depend on are left out, and so are operations on constants and whole numbers alone.

    - Matrix products and convolutions are GEMMs, whatever their operands. Attention in one call
      and torch's multi-head attention are their products and the softmax between: "scores",
      "softmax", "values", "in_proj_q", "in_proj_k", "in_proj_v", "out_proj". cross_entropy is
      "log_softmax" and "nll_loss".
    - Views are no Ops, nor are copies of the same values (contiguous, clone, casts): an Op that
      reads a view reads the tensor behind it. So the halves of a split are the tensor that was
      split; the paper's release counts them as new ones.
    - An operation in place makes a new result, as if it were not in place.
    - An Op has the name of the module that makes it, if the module makes no other Op and has no
      modules in it; else "<module>.<operation>". The second Op of a name ends in "_1". Operations
      around the model are "loss.<operation>", and the network's inputs are "input" or
      "input.<name>". Whole numbers as inputs, such as tokens, are no Op, for nothing rounds them.
    - Parameters have the names of `named_parameters`. Labels, buffers and constants are no tensors
      of an assignment.
    - An operation that is not known, such as a recurrent layer, whose steps are in one call, is
      held in high precision; one warning names all of them.

    The trace observes functions (`lpkernels.nn.observing`, depth "functions"). A converted model
    calls the same ones as the plain model, so both have equal Ops (but that transformers' Conv1D
    calls addmm, and linear once it is converted). A run follows one way through the Python code, so
    reading a value that depends on the network's floating-point inputs or parameters is refused.
    Decisions by whole numbers (masks, lengths) are taken as this batch takes them; another batch
    may give other Ops, which `Assignment.check` finds out.

    Args:
        model: any module, converted or not.
        loss: from the model's output and the target to a scalar.
        batch: (input, target): the input a tensor, a tuple of arguments or a dict of keyword
            arguments; numel of the Ops counts its examples. Anything that loss takes as target.

    Raises:
        TypeError: no module, or no pair as batch.
        ValueError: a loss that is no scalar, or does not depend on what the model computes.
        NotImplementedError: control flow by values, TorchScript, a compiled module; it says where.

    >>> from lpkernels.techniques.assignment import trace
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> [op.name for op in trace(model, loss, batch)]
    ['input', 'linear', 'loss.log_softmax', 'loss.nll_loss']
    """
    names = followed(model, loss, batch)[1]
    ops, unknown = finished(names)
    if unknown:
        warnings.warn(
            "trace: held in high precision, for what they compute is not known: "
            + ", ".join(unknown),
            stacklevel=2,
        )
    return ops


def followed(
    model: Module,
    loss: Callable[[Any, Any], Tensor] | None,
    batch: tuple[Any, Any],
    *,
    grad: bool = True,
) -> tuple[Recorder, dict[TracedOp, str]]:
    """One run as `trace` describes it: its recorder, and the names of the steps.

    Without a loss the model runs alone, and its steps are those that its output depends on.
    """
    check_model("trace", model)
    given, target = as_pair("trace", batch)
    args, kwargs = arguments(given)
    recorder = Recorder(model, args, kwargs)
    with (
        left_as_found(model, [*args, *kwargs.values()]),
        torch.set_grad_enabled(grad),
        observe(model, recorder, operations=EVERYTHING),
    ):
        output = model(*args, **kwargs)
        value = None if loss is None else loss(output, target)
    if loss is None:
        ends = recorder.steps_of(output)
    else:
        ends = [recorder.step_of(_checked(value))]
    return recorder, named(recorder.steps, ends)


def as_pair(function: str, batch: Any) -> tuple[Any, Any]:
    """A batch of (input, target). function: the caller, as errors name it.

    Raises: TypeError: no tuple or list of two.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(
            f"{function}: batch must be (input, target), got {type(batch).__name__}"
            f"{f' of {len(batch)}' if isinstance(batch, tuple | list) else ''}"
        )
    input, target = batch
    return input, target


def _checked(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"trace: the loss must be a scalar tensor, got {got}; take a mean, say")
    return value


def named(steps: Sequence[TracedOp], ends: Iterable[TracedOp]) -> dict[TracedOp, str]:
    """The steps that these ends depend on, in order, and their names."""
    return _names(_needed(steps, ends))


def finished(names: Mapping[TracedOp, str]) -> tuple[tuple[Op, ...], list[str]]:
    """The Ops, and the operations among them that are not known, with where they are."""
    ops = tuple(
        Op(
            names[step], step.is_gemm, tuple(names[each] for each in step.inputs), _params(step),
            step.numel, step.operation, step.known,
        )
        for step in names
    )  # fmt: skip
    unknown = [f"{step.operation} ({name})" for step, name in names.items() if not step.known]
    return ops, unknown


def _params(step: TracedOp) -> dict[str, int]:
    """The sizes of a step's parameters, in the order of the model: some functions take them in
    another."""
    # A dot says that it is the full name, and no name within the Op.
    return {
        p.name if "." in p.name else f".{p.name}": p.numel
        for p in sorted(step.params, key=lambda p: p.number)
    }


def _needed(steps: Sequence[TracedOp], ends: Iterable[TracedOp]) -> list[TracedOp]:
    """The steps that the ends depend on, the network's inputs among them, and the ends."""
    waiting = list(ends)
    found = set(waiting)
    while waiting:
        new = [step for step in waiting.pop().inputs if step not in found]
        found.update(new)
        waiting += new
    return [step for step in steps if step in found]


def _names(steps: Sequence[TracedOp]) -> dict[TracedOp, str]:
    calls = Counter(step.run for step in steps)
    names: dict[TracedOp, str] = {}
    taken: set[str] = set()
    for step in steps:
        first = name = _name(step, calls[step.run] == 1)
        number = 0
        while name in taken:
            number += 1
            name = f"{first}_{number}"
        names[step] = name
        taken.add(name)
    return names


def _name(step: TracedOp, is_alone: bool) -> str:
    """is_alone: it is the only step of this run of its module."""
    what = step.part or step.operation
    run = step.run
    if run is None:
        return f"input.{what}" if step.part else "input"
    if run.module is None:
        return f"loss.{what}"
    if is_alone and run.name and is_leaf(run.module):
        return run.name
    return f"{run.name}.{what}" if run.name else what
