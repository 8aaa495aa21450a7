"""The memory that training under an assignment keeps for backward, by a formula."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.operations import (
    READS_NOTHING_BACK,
    Op,
    by_their_result,
    canonical,
    checked_ops,
    group,
    key_of,
)

_FLOAT_BITS = 32


def kept_memory(ops: Sequence[Op], assignment: Assignment) -> int:
    """The bytes of the assignment's tensors that the forward pass keeps for backward.

    It counts each tensor once at its width, however many operations keep it: the operands and the
    weight of a product, the result of a ReLU, softmax and their like, and the inputs and the scale
    of every other operation. Sums, means, joins, moves and dropouts keep none. In float32 and in
    formats without codes an element takes 32 bits; parameters in float32 are there anyway.

    Statistics, masks, indices and copies in another order are not counted: `Assigned.memory` tells
    what a step kept in all.

    Args:
        ops: of `trace`.
        assignment: of these.
    Raises: TypeError, ValueError: Ops that do not fit together, or of another assignment.

    >>> from lpkernels.techniques.assignment import kept_memory, trace, uniform
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> ops = trace(model, loss, batch)
    >>> kept_memory(ops, uniform(ops, "low"))
    48
    """
    ops = checked_ops("kept_memory", ops)
    assignment.check(group(ops))
    # A matrix product reads its weight for the gradient of its input, if that has one.
    learning: set[str] = set()
    keys: set[str] = set()
    for op in ops:
        keys.update(_kept(op, learning))
        if op.params or learning.intersection(op.inputs):
            learning.add(op.name)
    return sum(_bytes(key, assignment) for key in keys)


def _kept(op: Op, learning: set[str]) -> Iterator[str]:
    """The keys of the tensors that the operation keeps; learning: the Ops before it that have a
    gradient."""
    name = canonical(op.operation)
    has_gradient = bool(op.params or learning.intersection(op.inputs))
    if not has_gradient or (name in READS_NOTHING_BACK and not op.is_gemm):
        return
    if by_their_result(name) and not op.is_gemm:
        yield key_of(op.name, "activation")
        return
    yield from (key_of(each, "activation") for each in op.inputs)
    if not op.is_gemm or name.startswith("conv") or learning.intersection(op.inputs):
        weights = (each for each in op.full_params if not each.endswith("bias"))
        yield from (key_of(each, "weight") for each in weights)


def _bytes(key: str, assignment: Assignment) -> int:
    tensor, bits = assignment.tensors[key], assignment.format_of(key).fmt.bits
    width = int(bits) if isinstance(bits, int) else _FLOAT_BITS
    if width >= _FLOAT_BITS and tensor.kind == "weight":
        return 0
    return -(-tensor.numel * min(width, _FLOAT_BITS) // 8)
