"""Plans and measurements as text: the cells of their tables, and the notes below."""

from __future__ import annotations

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


def plan_cells(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The table of the rows of a plan's blocks, as records hold rows, its head first.

    A block's name stands in its first row. "4/64" are the mantissa bits with chunks, and their
    length. Notes stand by number, where there are any.
    """
    numbers = {note: str(i) for i, note in enumerate(_counts(rows), start=1)}
    cells = [(*_PLAN, *(["notes"] if numbers else []))]
    block = None
    for row in rows:
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
                *([" ".join(numbers[note] for note in row["notes"])] if numbers else []),
            )
        )
        block = row["layer"]
    return cells


def plan_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The notes of the table, numbered; a note of several rows stands once, with their count."""
    return [
        f"{i}: {note}" + (f" ({count} rows)" if count > 1 else "")
        for i, (note, count) in enumerate(_counts(rows).items(), start=1)
    ]


def plan_text(rows: Sequence[Mapping[str, Any]], *sentences: str) -> TextTable:
    """The table with its notes, and the sentences below these."""
    cells = plan_cells(rows)
    left = [i for i, name in enumerate(cells[0]) if name in WORDS]
    return TextTable(cells, left, [*plan_notes(rows), *filter(None, sentences)])


def measurement_text(values: Mapping[str, Any]) -> str:
    """A measurement as a row with its head; a column without a value is left out."""
    shares = ("swamped", "swamped_chunks", "overflowed")
    columns = {
        "accumulator": values["accumulator"],
        "length": str(values["length"]),
        "sums": str(values["sums"]),
        "m_p": str(values["product_bits"]),
        "vrr": f"{values['vrr']:.4f} +- {values['vrr_error']:.4f}",
        "nmse": f"{values['nmse']:.2e} +- {values['nmse_error']:.0e}",
        **{s.replace("_", " "): f"{values[s]:.2%}" for s in shares if values[s] is not None},
    }
    if 0 < values["counted"] < values["sums"]:
        columns["of sums"] = str(values["counted"])
    return "\n".join(aligned([list(columns), list(columns.values())], (0,)))


def _counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The notes of all rows, and how many rows have them."""
    counts: dict[str, int] = {}
    for row in rows:
        for note in row["notes"]:
            counts[note] = counts.get(note, 0) + 1
    return counts


def _exponents(row: Mapping[str, Any]) -> str:
    if row["exponents"] is None:
        return "not measured" if row["growth"] is None else "-"
    low, high = row["exponents"]
    more = row["headroom"]
    return f"{low}..{high}" + ("" if more is None else f" {more:+}")
