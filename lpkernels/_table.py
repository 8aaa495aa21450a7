"""Tables as plain text, and as HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from dataclasses import dataclass


def aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """The rows as lines: the columns in `left` start at one place, all others end at one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


@dataclass(frozen=True)
class TextTable:
    """The head and the rows below it, and lines of notes below these.

    left: the columns whose cells start at one place.  rule: a line between head and rows.
    """

    rows: Sequence[Sequence[str]]
    left: Collection[int] = ()
    notes: Sequence[str] = ()
    rule: bool = False

    def __str__(self) -> str:
        head, *lines = aligned(self.rows, self.left) if self.rows else [""]
        if self.rule:
            columns = zip(*self.rows, strict=True)
            lines.insert(0, "  ".join("-" * max(map(len, column)) for column in columns))
        return "\n".join([*([head] if self.rows else []), *lines, *self.notes])

    def html(self) -> str:
        """The table as HTML, in which every text is escaped."""
        rows = [
            "".join(
                f'<{tag} style="text-align: {"left" if i in self.left else "right"}">'
                f"{html.escape(cell)}</{tag}>"
                for i, cell in enumerate(row)
            )
            for tag, row in zip(["th", *["td"] * len(self.rows)], self.rows, strict=False)
        ]
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table>{table}</table>" + "".join(
            f"<p>{html.escape(note)}</p>" for note in self.notes
        )


class Tabular:
    """Shows itself as a table: ``str`` of it as text, a notebook as HTML."""

    def _table(self) -> TextTable:
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table().html()
