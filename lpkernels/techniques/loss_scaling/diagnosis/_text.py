"""A report as a table of plain text."""

from __future__ import annotations

from collections.abc import Sequence

from lpkernels.techniques.loss_scaling.diagnosis.rows import TensorRow

#: The columns of a report's tables.
HEAD = (
    "layer", "tensor", "format", "count", "zeros", "< normal", "< least", "over", "inf NaN",
    "exponents",
)  # fmt: skip
# The exponents of float32's subnormals are not known.
_LEAST = {-127: "<-126"}
# The first columns hold words, this many of them.
_WORDS = 3


def cells(row: TensorRow) -> tuple[str, ...]:
    """A row as texts."""
    low_high = row.unscaled.exponents
    has = row.float_format is not None
    return (
        row.layer,
        row.name,
        str(row.format),
        short(row.histogram.elements),
        share(row.zeros),
        share(row.below_normal),
        share(row.below_subnormal),
        short(row.overflow) if has else "-",
        short(row.histogram.nonfinite),
        "-" if low_high is None else f"{_LEAST.get(low_high[0], low_high[0])}..{low_high[1]}",
    )


def short(count: int) -> str:
    """A count in at most 5 characters."""
    for unit, name in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        # A count that would round to 1000 of a unit is 1 of the next unit.
        if count >= 0.9995 * unit and count >= 10_000:
            return f"{count / unit:.3g}{name}"
    return str(count)


def share(value: float | None) -> str:
    """A part in percent; a small part is not shown as none."""
    if value is None:
        return "-"
    return "0" if value == 0 else "<0.1%" if value < 0.0005 else f"{value:.1%}"


def text(rows: Sequence[TensorRow]) -> str:
    """The table; where there are no rows, a line that says so."""
    if not rows:
        return "nothing was counted yet"
    lines = [HEAD, *map(cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    table = [_aligned(line, widths) for line in lines]
    return "\n".join([table[0], "  ".join("-" * width for width in widths), *table[1:]])


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    """A line of the table, its numbers moved to the right."""
    columns = enumerate(zip(line, widths, strict=True))
    return "  ".join(c.ljust(w) if i < _WORDS else c.rjust(w) for i, (c, w) in columns).rstrip()
