"""Assignments by the kind of operation: those that the paper compares with, and uniform ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.grouping import Group, Kind, group, key_of
from lpkernels.techniques.assignment.operations import FOLLOWS_ITS_INPUTS
from lpkernels.techniques.assignment.ops import Op, checked_ops
from lpkernels.techniques.assignment.pins import NONE, Pins, held, tie, ties
from lpkernels.techniques.assignment.precisions import PAPER, Formats


def uniform(
    ops: Sequence[Op],
    precision: Literal["low", "high"] = "low",
    *,
    formats: Formats = PAPER,
    pins: Pins = NONE,
) -> Assignment:
    """All tensors in one precision, except those that pins hold and those of unknown operations.

    The paper's 8 bits without arguments; its float32 as
    uniform(ops, "high", formats=Formats.same("fp32")).

    Raises: TypeError, ValueError: Ops that do not fit together, another precision, a glob that
        matches nothing.
    """
    if precision not in ("low", "high"):
        raise ValueError(f"uniform: precision must be 'low' or 'high', got {precision!r}")
    groups = group(ops)
    low = [t.key for each in groups for t in each.tensors] if precision == "low" else []
    made = _assignment(groups, low, formats, pins)
    lowered = [each.index for each in made.groups if any(t.key in made.low for t in each.tensors)]
    return Assignment(made.groups, made.low, tuple(lowered) if low else (), formats, pins)


def operator_based(ops: Sequence[Op], *, formats: Formats = PAPER, pins: Pins = NONE) -> Assignment:
    """Low precision for what enters a GEMM, forward and backward; the ends stay high.

    Low are the weights of GEMMs and their gradients, every result that a GEMM reads, and the
    gradient of a GEMM's result. Of these, high again are the network's inputs; operations that read
    an input, with their weights; all tensors of the last group; and the results, with gradients,
    that operations of the last group read.

    Source: the baseline pi_op of Lee, Sharma, Aiken 2023 (arXiv 2301.13464), as in their released
        code, after Sun et al. 2019 (HFP8).
    Raises: TypeError, ValueError: Ops that do not fit together, a glob that matches nothing.
    """
    ops = checked_ops("operator_based", ops)
    groups = group(ops)
    low = _entering_gemms(ops) - _ends(ops, groups)
    return _assignment(groups, low, formats, pins)


def amp_like(ops: Sequence[Op], *, formats: Formats = PAPER, pins: Pins = NONE) -> Assignment:
    """Our reading of the paper's baseline after torch.amp, which its release cannot run.

    It is as `operator_based`, and more tensors are low: the results of GEMMs, and results and
    gradients of the operations that torch.amp leaves in the type of their inputs or casts to the
    widest of them (activations, pooling, sums, products, concatenation). Norms, softmax and losses
    stay high, as do the ends. Ops without a name of their operation count as none of these.

    Source: none runs: the released code of Lee, Sharma, Aiken 2023 names the baseline (pi_op') and
        has no implementation, so this is ours and no figure of the paper belongs to it.
    Raises: TypeError, ValueError: Ops that do not fit together, a glob that matches nothing.
    """
    ops = checked_ops("amp_like", ops)
    groups = group(ops)
    low = _entering_gemms(ops)
    low |= {
        key
        for op in ops
        if op.is_gemm or op.operation in FOLLOWS_ITS_INPUTS
        for key in _of_result(op.name)
    }
    return _assignment(groups, low - _ends(ops, groups), formats, pins)


def _entering_gemms(ops: Sequence[Op]) -> set[str]:
    gemms = [op for op in ops if op.is_gemm]
    read = {name for op in gemms for name in op.inputs}
    low = {key_of(name, "activation") for name in read}
    low |= {key_of(op.name, "grad_activation") for op in gemms}
    return low | {key for op in gemms for key in _of_params(op)}


def _ends(ops: Sequence[Op], groups: Sequence[Group]) -> set[str]:
    """Keys that stay high at both ends of the network."""
    in_last = {tensor.key for tensor in groups[-1].tensors}
    last = [op for op in ops if key_of(op.name, "activation") in in_last]
    inputs = {op.name for op in ops if not op.inputs}
    first = [op for op in ops if inputs & set(op.inputs)]
    results = inputs | {op.name for op in (*first, *last)}
    results |= {name for op in last for name in op.inputs}
    high = {key for name in results for key in _of_result(name)}
    return high | {key for op in (*first, *last) for key in _of_params(op)}


def _of_result(name: str) -> tuple[str, str]:
    return key_of(name, "activation"), key_of(name, "grad_activation")


def _of_params(op: Op) -> list[str]:
    kinds: tuple[Kind, ...] = ("weight", "grad_weight")
    return [key_of(name, kind) for name in op.full_params for kind in kinds]


def _assignment(
    groups: Sequence[Group], low: Iterable[str], formats: Formats, pins: Pins
) -> Assignment:
    """The assignment with what pins hold; tied tensors that would differ are all high."""
    kept = held(groups, pins)
    keys = [tensor.key for each in groups for tensor in each.tensors]
    chosen = (set(low) | kept.low) - kept.high
    for together in ties(pins, keys):
        if not together <= chosen:
            chosen -= together
    return Assignment(tie(groups, pins), frozenset(chosen), (), formats, pins)
