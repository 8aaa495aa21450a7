"""Plans and measurements as text: the cells of their tables, and the notes below."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lpkernels._table import TextTable, aligned

#: The columns of a plan that hold words; the others hold numbers.
WORDS = ("block", "gemm", "accumulator", "notes")
#: The meanings of a plan's columns.
COLUMNS = (
    "block: the layers of one stage, each cell of the layer that needs most; length: products in a "
    "sum; m_p: mantissa bits of a product; nzr: share of the products that is not zero; normal: "
    "mantissa bits of one sum, without the hidden one; chunked: the same of sums in chunks / the "
    "chunk's length; exponents: powers of two from typical products to the largest sum, and how "
    "many exponent bits more than these need the accumulator has"
)
_PLAN = ("block", "gemm", "length", "m_p", "nzr", "normal", "chunked", "exponents", "accumulator")
#: The column of a plan with fixed-point operands.
FIXED = "never overflows in"
_SHARES = ("swamped", "swamped_chunks", "overflowed")
_FIGURE = re.compile(r"(\d+(?:\.\d+)?)")


def plan_cells(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The table of the rows of a plan's blocks, as records hold rows, its head first.

    A block's name stands in its first row. "4/64" are the mantissa bits with chunks, and their
    length. Fixed-point operands have the bits of a fixed-point accumulator that they never
    overflow. Notes stand by number, where there are any; notes that differ in figures alone have
    one number.
    """
    fixed = any(row.get("integer_bits") for row in rows)
    numbers = {kind: str(i) for i, kind in enumerate(_notes(rows), start=1)}
    cells = [(*_PLAN, *([FIXED] if fixed else []), *(["notes"] if numbers else []))]
    block = None
    for row in rows:
        integer = [f"{row['integer_bits']} bits" if row["integer_bits"] else ""] if fixed else []
        cells.append(
            (
                "" if row["layer"] == block else row["layer"],
                row["gemm"],
                str(row["length"]),
                str(row["product_bits"]),
                f"{row['nzr']:.0%}",
                str(row["man_bits"]),
                f"{row['chunk_bits']}/{row['chunk']}" if row["chunk"] < row["length"] else "-",
                _exponents(row),
                row["accumulator"],
                *integer,
                *([" ".join(numbers[kind] for kind in _notes([row]))] if numbers else []),
            )
        )
        block = row["layer"]
    return cells


def plan_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The notes of the table, numbered.

    A note of several rows stands once, with their count, and with the least and the largest of each
    figure in which it differs between them.
    """
    return [
        f"{i}: {_merged(notes)}" + (f" ({count} rows)" if count > 1 else "")
        for i, (notes, count) in enumerate(_notes(rows).values(), start=1)
    ]


def plan_text(rows: Sequence[Mapping[str, Any]]) -> TextTable:
    """The table with its notes."""
    cells = plan_cells(rows)
    left = [i for i, name in enumerate(cells[0]) if name in WORDS]
    return TextTable(cells, left, plan_notes(rows))


def measured_text(found: Sequence[Mapping[str, Any]]) -> str:
    """A row for each measurement; a column stands where some row has something to say there."""
    columns = {
        "accumulator": [each["accumulator"] for each in found],
        "length": [str(each["length"]) for each in found],
        "sums": [str(each["sums"]) for each in found],
        "m_p": [str(each["product_bits"]) for each in found],
        "vrr": [f"{each['vrr']:.4f} +- {each['vrr_error']:.4f}" for each in found],
        "nmse": [f"{each['nmse']:.2e} +- {each['nmse_error']:.0e}" for each in found],
        **{name.replace("_", " "): [_share(each[name]) for each in found] for name in _SHARES},
        "of sums": ["" if e["counted"] in (0, e["sums"]) else str(e["counted"]) for e in found],
    }
    told = [(name, *cells) for name, cells in columns.items() if any(cells)]
    return "\n".join(aligned(list(zip(*told, strict=True)), (0,)))


def _notes(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[list[str], int]]:
    """The notes that differ in figures alone, and how many rows have some of them, by the text
    without figures."""
    found: dict[str, tuple[list[str], int]] = {}
    for row in rows:
        of_row: dict[str, list[str]] = {}
        for note in row["notes"]:
            of_row.setdefault(_FIGURE.sub("0", note), []).append(note)
        for kind, notes in of_row.items():
            others, count = found.get(kind, ([], 0))
            found[kind] = ([*others, *notes], count + 1)
    return found


def _merged(notes: Sequence[str]) -> str:
    """One text for notes that differ in figures alone, which become ranges."""
    columns = zip(*(_FIGURE.split(note) for note in notes), strict=True)
    return "".join(_range(column) if i % 2 else column[0] for i, column in enumerate(columns))


def _range(figures: Sequence[str]) -> str:
    low, high = min(figures, key=float), max(figures, key=float)
    return low if float(low) == float(high) else f"{low} to {high}"


def _exponents(row: Mapping[str, Any]) -> str:
    if row["exponents"] is None:
        return "not measured" if row["growth"] is None else "-"
    low, high = row["exponents"]
    more = row["headroom"]
    return f"{low}..{high}" + ("" if more is None else f" {more:+}")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
