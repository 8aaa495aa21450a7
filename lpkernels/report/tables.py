"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table


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
