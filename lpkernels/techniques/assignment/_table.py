"""An assignment as text: a row for each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lpkernels.techniques._table import aligned
from lpkernels.techniques.assignment.grouping import Group

if TYPE_CHECKING:
    from lpkernels.techniques.assignment.assignment import Assignment

_HEAD = ("group", "from", "to", "tensors", "elements", "low", "bits")
# Columns of text; the others are numbers.
_LEFT = (1, 2)


def table(assignment: Assignment) -> str:
    """Group by group: its first and last result, elements, the share that is low, and bits."""
    rows = [_HEAD, *(_row(assignment, group) for group in assignment.groups)]
    lines = aligned(rows, _LEFT)
    of = f"of {assignment.high_bits:,}" if assignment.high_bits else "of none"
    lines.append(
        f"low-precision ratio {assignment.ratio:.4f}, {assignment.bits:,} bits {of} in high "
        f"precision, bit ratio {assignment.bit_ratio:.4f}"
    )
    if assignment.unknown:
        lines.append(f"without what is computed inside {', '.join(assignment.unknown)}")
    return "\n".join(lines)


def _row(assignment: Assignment, group: Group) -> tuple[str, ...]:
    results = [t.key.removesuffix(".Y") for t in group.tensors if t.kind == "activation"]
    first, last = (results[0], results[-1]) if results else ("-", "-")
    low = sum(t.numel for t in group.tensors if t.key in assignment.low)
    share = f"{100 * low / group.numel:.0f}%" if group.numel else "-"
    bits = sum(assignment.formats.bits(t, t.key in assignment.low) for t in group.tensors)
    return (
        str(group.index), first, last, str(len(group.tensors)), f"{group.numel:,}", share,
        f"{bits:,}",
    )  # fmt: skip
