"""What training under an assignment keeps for backward, predicted from a trace."""

from __future__ import annotations

from collections.abc import Sequence

from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.grouping import group
from lpkernels.techniques.assignment.ops import Kept, Op, checked_ops
from lpkernels.techniques.assignment.running.keeping import Memory

_FLOAT = 4


def kept_memory(ops: Sequence[Op], assignment: Assignment) -> Memory:
    """What is kept for backward at the moment when it is most, the end of the forward pass.

    Forward keeps what backward will read, each tensor of the assignment once, as codes of its
    format, however many operations read it; backward frees it in reverse and adds nothing. What an
    operation keeps is what autograd saved when it was traced (`Op.keeps`): on the device, in the
    mode and with the frozen parameters of the trace.

    Args:
        ops: of `trace`.
        assignment: of these.
    Returns:
        A Memory, which names in `unknown` the Ops that do not say what they keep: those that no
        trace made. Nothing is counted for them.
    Raises: TypeError, ValueError: Ops that do not fit together, or of another assignment.
    """
    ops = checked_ops("kept_memory", ops)
    assignment.check(group(ops))
    packed = whole = 0
    for kept in {kept for op in ops for kept in op.keeps or ()}:
        is_packed, size = _bytes(kept, assignment)
        packed, whole = packed + is_packed * size, whole + (not is_packed) * size
    unknown = (op.name for op in ops if op.keeps is None and (op.inputs or op.params))
    return Memory(packed, whole, tuple(unknown))


def _bytes(kept: Kept, assignment: Assignment) -> tuple[bool, int]:
    """Whether it is kept as codes, and its bytes."""
    if not kept.keys:
        return False, kept.size
    formats = [assignment.format_of(key).fmt for key in kept.keys]
    # Block and affine formats have no codes.
    bits = min(int(fmt.bits) if isinstance(fmt.bits, int) else 8 * _FLOAT for fmt in formats)
    if bits < 8 * _FLOAT:
        return True, -(-kept.size * bits // 8)
    # A parameter in float32 is there anyway.
    is_there = all(assignment.tensors[key].kind == "weight" for key in kept.keys)
    return False, 0 if is_there else _FLOAT * kept.size
