"""A report as a table of plain text."""

from __future__ import annotations

from collections.abc import Sequence

from lpkernels.techniques.loss_scaling.diagnosis.rows import TensorRow

#: The columns of a report's tables.
HEAD = (
    "layer", "tensor", "format", "elements", "zeros", "< normal", "< smallest", "overflow",
    "inf, NaN", "exponents",
)  # fmt: skip
LEGEND = (
    "zeros: of all elements; < normal, < smallest: of the finite elements that are not zero, below "
    "the format's smallest normal and smallest value; overflow: elements that it rounds beyond its "
    "largest; exponents: of the smallest and the largest number, unscaled"
)
# So many columns of words come first.
_WORDS = 3


def cells(row: TensorRow) -> tuple[str, ...]:
    """A row as texts."""
    low_high = row.unscaled.exponents
    has = row.float_format is not None
    return (
        row.layer,
        row.name,
        "-" if row.format is None else str(row.format),
        f"{row.histogram.elements:,}",
        share(row.zeros),
        share(row.below_normal),
        share(row.below_subnormal),
        f"{row.overflow:,}" if has else "-",
        f"{row.histogram.nonfinite:,}",
        "-" if low_high is None else f"{low_high[0]}..{low_high[1]}",
    )


def share(value: float | None) -> str:
    """A part in percent; small ones are not shown as none."""
    if value is None:
        return "-"
    return "0" if value == 0 else "<0.1%" if value < 0.0005 else f"{value:.1%}"


def text(rows: Sequence[TensorRow]) -> str:
    """The table; without rows a line that says so."""
    if not rows:
        return "nothing was counted yet"
    lines = [HEAD, *map(cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    table = [_aligned(line, widths) for line in lines]
    return "\n".join([table[0], "  ".join("-" * width for width in widths), *table[1:]])


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    """Numbers to the right."""
    columns = enumerate(zip(line, widths, strict=True))
    return "  ".join(c.ljust(w) if i < _WORDS else c.rjust(w) for i, (c, w) in columns).rstrip()
