"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table


def fixed(value: float | None, places: int, scale: float = 1.0) -> str:
    """A number times `scale` with so many decimal places; "" for None and NaN."""
    if value is None or math.isnan(value):
        return ""
    # Adding zero takes the sign from a number that rounds to -0.
    return f"{round(scale * value, places) + 0.0:.{places}f}"


def signed(value: float, places: int, scale: float = 1.0) -> str:
    """As `fixed`, with a plus sign before what is shown above zero."""
    text = fixed(value, places, scale)
    return f"+{text}" if text and float(text) > 0 else text


def interval(low: float, high: float, places: int, scale: float = 1.0) -> str:
    """An interval, its ends as `fixed`; "" where there is none."""
    ends = [fixed(end, places, scale) for end in (low, high)]
    return f"[{', '.join(ends)}]" if all(ends) else ""


def p_text(p: float) -> str:
    """A p value in two digits; "" for NaN."""
    return "" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.2g}"


def bytes_text(size: float) -> str:
    """A number of bytes with a binary unit: 49344 / 8 is "6.02 KiB"."""
    if size < 1024:
        return f"{size:.0f} B"
    power = min(int(math.log2(size)) // 10, 3)
    return f"{size / 1024**power:.2f} {'KMG'[power - 1]}iB"


def make_table(
    columns: Iterable[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Collection[str] = (),
    title: str = "",
    **style: Any,
) -> Table:
    """A table whose columns hold numbers, which stand at the right of their cells, but for `words`,
    which fold where they are too long.

    style: of rich's Table.
    """
    table = Table(title=title or None, **style)
    for name in columns:
        table.add_column(name, justify="left" if name in words else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def details(rows: Mapping[str, str], *, title: str) -> Table:
    """A table of one thing: a row for each of its fields."""
    table = Table(title=title, show_header=False)
    table.add_column("field", no_wrap=True)
    # An accumulator or a recipe is one long word.
    table.add_column("value", overflow="fold")
    for row in rows.items():
        table.add_row(*row)
    return table
