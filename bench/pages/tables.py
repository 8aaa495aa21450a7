"""The tables of the pages: the cells as written, and the cells that follow from the records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.pages.records import EmptyCell, Fields, Row, Source, evaluated

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]

PAGES = ("README.md", "bench/NOTES.md", "docs/*.md")
KEYS = {
    "record", "records", "where", "let", "rows", "names", "reference", "columns", "cells", "given",
}  # fmt: skip
OPENING = "<!-- table\n"
COMMENT = re.compile(rf"^{OPENING}((?:(?!-->).)*)^-->\Z", re.DOTALL | re.MULTILINE)
DECIMALS = re.compile(r"\d\.\d")
CODE = re.compile(r"`[^`]*`")
BAR = re.compile(r"(?<!\\)\|")

_NOT_KEPT = "the runs were not kept, as the page says"
#: Tables that have decimals and no record, by page and first two headings; and why.
NO_RECORD = {
    ("docs/formats.md", "name | bits"): "definitions, held by tests/project/test_docs.py",
    ("docs/formats.md", "elsewhere | alias"): "versions of specifications, and numbers of papers",
    ("docs/formats.md", "rule | X of the scale 2^X"): "a version of a specification",
    ("docs/formats.md", "steps | formats"): "targets of formats",
    ("docs/formats.md", "name | made by"): "the number of a paper",
    ("docs/mixed-precision.md", "one run each, seed 0 | test PSNR (dB)"): _NOT_KEPT,
    ("docs/compare.md", "package | what it rounds"): "versions, and a figure of cpfloat's",
    ("bench/NOTES.md", "operands -> accumulator | tier"): _NOT_KEPT,
    ("bench/NOTES.md", " | 1 thread, processor time"): _NOT_KEPT,
    ("bench/NOTES.md", "operands, outer sum in fp32 | of torch's rate"): _NOT_KEPT,
    ("docs/assignments.md", "word | meaning"): "a default value",
    ("docs/backends.md", "name | needs"): "a version",
    ("docs/layers.md", " | "): "versions",
    ("docs/layers.md", "model | `fp8_wang2018`, forward"): "tests/project/test_zoo.py holds it",
    ("docs/promises.md", "promise | what holds it"): "tests/project/test_attacks.py holds counts",
    (
        "docs/cyclic-precision.md",
        "schedule | mean bits",
    ): "computed from the schedules' definitions; tests/techniques/cpt/test_schedule.py holds it",
    ("docs/master-weights.md", " | arguments"): "numbers of papers",
    (
        "docs/scaled-formats.md",
        "recipe | input, weight, gradient of the output",
    ): "numbers of papers",
    ("docs/tensor-cores.md", "wrong in | fits, results in fp32"): _NOT_KEPT,
}


@dataclass
class Table:
    """A table of a page. line: of its headings, from 0.  comment: the TOML above it, or None."""

    page: str
    line: int
    headings: list[str]
    rows: list[list[str]]
    comment: str | None

    @property
    def key(self) -> tuple[str, str]:
        return self.page, " | ".join(self.headings[:2])

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line + 1}"


class Cell(NamedTuple):
    """The right text of a cell. row, column: from 0."""

    row: int
    column: int
    text: str


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in BAR.split(line.strip())[1:-1]]


def tables_of(page: str, text: str) -> Iterator[Table]:
    """The tables of a page, outside of blocks of code."""
    lines, fenced, at = text.split("\n"), False, 0
    while at < len(lines):
        fenced ^= lines[at].startswith("```")
        end = at
        while not fenced and end < len(lines) and lines[end].startswith("|"):
            end += 1
        if end > at:
            above = COMMENT.search("\n".join(lines[:at]))
            rows = [cells_of(line) for line in lines[at + 2 : end]]
            yield Table(page, at, cells_of(lines[at]), rows, above[1] if above else None)
        at = max(end, at + 1)


def has_decimals(cell: str) -> bool:
    return DECIMALS.search(CODE.sub("", cell)) is not None


def expected(table: Table, root: Path) -> Iterator[Cell]:
    """The cells that follow from records.

    Raises: ValueError: the comment, a column or a row of the page does not fit the records.
    """
    said = comment_of(table)
    asked = said.get("records", {"": {}})
    sources = {name: Source.of(root, said | own) for name, own in asked.items()}
    wanted = [wanted_of(said, row) for row in table.rows]
    for source in sources.values():
        check_arms(source, wanted)
    for number, row in enumerate(table.rows):
        chosen = {name: Row(source, wanted[number]) for name, source in sources.items()}
        if not any(map(len, chosen.values())):
            raise ValueError(f"row {row[0]!r}: no record has {wanted[number]}")
        texts = {**said.get("columns", {}), **said.get("cells", {}).get(row[0], {})}
        for heading, text in texts.items():
            names = chosen.get("") or Fields(chosen)
            try:
                found = str(evaluated(f"f'''{text}'''", names))
            except EmptyCell:
                found = ""
            except ValueError as error:
                raise ValueError(f"row {row[0]!r}, column {heading!r}: {error}") from error
            yield Cell(number, table.headings.index(heading), found)


def comment_of(table: Table) -> dict[str, Any]:
    """The comment above a table, read and checked.

    Raises: ValueError: it does not fit the table, or leaves out a column that has decimals.
    """
    said = tomllib.loads(table.comment or "")
    if unknown := said.keys() - KEYS:
        raise ValueError(f"expected keys {', '.join(sorted(KEYS))}, got {', '.join(unknown)}")
    if len(set(table.headings)) < len(table.headings):
        raise ValueError("two columns have one heading; give each its own")
    if any(len(row) != len(table.headings) for row in table.rows):
        raise ValueError(f"expected {len(table.headings)} cells in each row, as there are headings")
    cells = said.get("cells", {})
    held = {*said.get("columns", {}), *said.get("given", [])}
    lost = held.union(*cells.values()).difference(table.headings)
    lost |= cells.keys() - {row[0] for row in table.rows}
    if lost:
        raise ValueError(f"the comment names {', '.join(sorted(lost))}, which the table lacks")
    first = len(said.get("rows", [])) or 1
    for row in table.rows:
        known = held | cells.get(row[0], {}).keys()
        for heading, cell in list(zip(table.headings, row, strict=True))[first:]:
            if has_decimals(cell) and heading not in known:
                raise ValueError(f"column {heading!r} has decimals: name it in columns or in given")
    return said


def wanted_of(said: dict[str, Any], row: Sequence[str]) -> dict[str, Any]:
    """The fields that a row's records must have."""
    names = said.get("names", {})
    fields = zip(said.get("rows", []), row, strict=False)
    return {name: names.get(cell, cell) for name, cell in fields}


def check_arms(source: Source, wanted: list[dict[str, Any]]) -> None:
    """Raises ValueError where arms are compared and one has no row."""
    if source.reference is None:
        return
    rows = {str(each[source.rows[0]]) for each in wanted}
    if lost := {source.arm(record) for record in source.records} - rows:
        raise ValueError(f"no row for {', '.join(sorted(lost))} of {source.path.name}")


def differing(table: Table, root: Path) -> list[Cell]:
    """The cells that differ from the records."""
    if table.comment is None:
        return []
    return [
        cell for cell in expected(table, root) if table.rows[cell.row][cell.column] != cell.text
    ]


def faults(page: str, text: str, root: Path) -> Iterator[str]:
    """The faults of a page's tables."""
    tables = list(tables_of(page, text))
    for table in tables:
        try:
            for row, column, found in differing(table, root):
                cells = table.rows[row]
                yield (
                    f"{page}:{table.line + 3 + row}: row {cells[0]!r}, column "
                    f"{table.headings[column]!r}: the record gives {found!r}, the page has "
                    f"{cells[column]!r}; python -m bench.pages --write renews the page"
                )
        except ValueError as error:
            yield f"{table.place}: {error}"
        bare = table.comment is None and table.key not in NO_RECORD
        if bare and any(has_decimals(cell) for row in table.rows for cell in row):
            yield f"{table.place}: the table has decimals, and no comment names their record"
    if text.count(OPENING) != sum(table.comment is not None for table in tables):
        yield f"{page}: a comment {OPENING.strip()!r} does not stand directly above a table"


def written(page: str, text: str, root: Path) -> str:
    """The page with the cells that the records give."""
    lines = text.split("\n")
    for table in tables_of(page, text):
        for row, column, found in differing(table, root):
            table.rows[row][column] = found
            lines[table.line + 2 + row] = f"| {' | '.join(table.rows[row])} |"
    return "\n".join(lines)


def pages(root: Path) -> dict[str, str]:
    """The text of each page, by its path below `root`."""
    found = [path for name in PAGES for path in sorted(root.glob(name))]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in found}


def check(root: Path) -> list[str]:
    """The faults of the tables of all pages."""
    texts = pages(root)
    found = [fault for page, text in texts.items() for fault in faults(page, text, root)]
    there = {table.key for page, text in texts.items() for table in tables_of(page, text)}
    gone = [f"NO_RECORD names a table that is gone: {key}" for key in NO_RECORD.keys() - there]
    return found + gone
