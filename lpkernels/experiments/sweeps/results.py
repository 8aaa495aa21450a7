"""The results of a sweep: from its folder, or from a file that holds nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass

from lpkernels import schemas
from lpkernels.experiments.records import RECORDS, Record, read_records, write_records
from lpkernels.experiments.sweeps.cells import Folder, cell_name, read_cell
from lpkernels.experiments.sweeps.specification import Cell, Place, SweepSpec
from lpkernels.experiments.workloads.workload import ACCURACY, Metric

if TYPE_CHECKING:
    import pandas

KIND = "sweep-results"
# What a result takes from the record of its cell.
_ENDED = ("status", "values", "cell", "error")


@checked_dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Result(Place):
    """The result of one cell's run.

    status: "finished", "diverged" (the loss is not finite at the end, or every update of the last
        epoch was skipped: a result too) or "failed" (an error, twice).
    values: the fields of the record of its last epoch; a figure that is not finite is None.
        seconds: of the whole run.  Empty where it failed.
    cell: the name of its folder.  error: the last line of the error of one that failed.
    """

    status: str
    values: dict[str, Any] = field(default_factory=dict)
    cell: str = ""
    error: str = ""


def table_of(results: Sequence[Result]) -> pandas.DataFrame:
    """A row for each cell: arm, the axes, seed, status, cell, then the fields of `values`.

    A field that has the name of an axis is called "<name>_figure". A value of an axis that is a
    list is a tuple, and None is "none".
    """
    import pandas

    axes = dict.fromkeys(name for result in results for name in result.axes)
    own = ["arm", *axes, "seed", "status", "cell"]
    rows = []
    for result in results:
        places = [_hashable(result.axes.get(name)) for name in axes]
        row = [result.arm, *places, result.seed, result.status, result.cell]
        values = {f"{k}_figure" if k in own else k: v for k, v in result.values.items()}
        rows.append(dict(zip(own, row, strict=True)) | values)
    return pandas.DataFrame(rows, columns=None if rows else own, dtype=object)


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return "none" if value is None else value


@dataclass(frozen=True)
class Results:
    """The results of a sweep.

    header: kind, schema, spec (of all that was run there), metric, environments (where the cells
        ran, each once), cells (how many there should be), others (how many cells of other versions
        of lpkernels lie in the folder, by version), codes (how many cells each code trained, by the
        code in words).
    results: of the cells that came to an end, in the order of the specification.
    broken: for cells that came to an end, why their records cannot be read.
    """

    header: Record
    results: list[Result]
    broken: tuple[str, ...] = ()

    @cached_property
    def table(self) -> pandas.DataFrame:
        """The results as a table of pandas (`table_of`)."""
        return table_of(self.results)

    @property
    def spec(self) -> SweepSpec:
        return SweepSpec(**self.header["spec"])

    @property
    def metric(self) -> Metric:
        """The figure by which the cells are compared."""
        return Metric(**self.header["metric"])

    @property
    def others(self) -> dict[str, int]:
        return dict(self.header["others"])

    @property
    def codes(self) -> dict[str, int]:
        return dict(self.header["codes"])

    @property
    def compare(self) -> str | None:
        """The arm that the specification compares with; None while it has no result."""
        arm = self.spec.compare
        return arm if any(result.arm == arm for result in self.results) else None

    @property
    def missing(self) -> int:
        """How many cells have no result yet."""
        return int(self.header["cells"]) - len(self.results) - len(self.broken)


def read_results(path: str | Path) -> Results:
    """The results of a sweep's folder, or of a file that `write_results` made.

    Args:
        path: the folder or the file. A folder without cells of this version of lpkernels gives
            those of the version with the most cells.
    Raises:
        FileNotFoundError: neither is there.
        ValueError: they hold something else.
    """
    if Path(path).is_file():
        return _read_file(Path(path))
    store = Folder(path)
    spec = store.specification()
    records: dict[str, Record] = {}
    damages: dict[str, str] = {}
    for name in store.finished() | store.given_up():
        try:
            records[name] = read_cell(store.settled(name))
        except ValueError as error:
            damages[name] = str(error)
    cells = spec.cells()
    names = {cell_name(cell.config): cell for cell in cells}
    others = Counter(r["version"] for name, r in records.items() if name not in names)
    if others and not names.keys() & {*records, *damages}:
        version = max(others, key=others.__getitem__)
        del others[version]
        names = {cell_name(cell.config, version): cell for cell in cells}
    own = {name: records[name] for name in names if name in records}
    environments = {json.dumps(r["environment"]): r["environment"] for r in own.values()}
    header: Record = {
        **schemas.header(KIND),
        "spec": spec.to_dict(),
        "metric": next((r["metric"] for r in own.values() if r["metric"]), asdict(ACCURACY)),
        "environments": [*filter(None, environments.values())],
        "cells": len(names),
        "others": dict(others),
        "codes": dict(Counter(record["code"] for record in own.values())),
    }
    # The arm is called as the specification calls it now.
    results = [
        Result(cell.arm, cell.axes, cell.seed, *(own[name][k] for k in _ENDED))
        for name, cell in names.items()
        if name in own
    ]
    broken = (f"{names[n].label()}: {damages[n]}" for n in names if n in damages)
    return Results(header, results, tuple(broken))


def share_done(folder: Path, cell: Cell) -> float:
    """The share of a cell's epochs whose records lie in the folder of the cell under way."""
    try:
        lines = (folder / RECORDS).read_bytes().count(b'{"type": "epoch"')
    except OSError:
        return 0.0
    return min(1.0, lines / cell.config.epochs)


def write_results(results: Results, path: str | Path) -> Path:
    """Writes results as JSON lines: the header, then a line a cell."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ({"type": "cell", **asdict(result)} for result in results.results)
    write_records(path, [results.header, *lines])
    return path


def _read_file(path: Path) -> Results:
    records = read_records(path)
    header = records[0] if records and isinstance(records[0], dict) else {}
    if header.get("kind") != KIND:
        raise ValueError(
            f"{path}: expected results that `lpkernels sweep table --export` wrote, got "
            f"{header.get('kind')!r}"
        )
    try:
        SweepSpec(**header["spec"])
        Metric(**header["metric"]), int(header["cells"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: this version of lpkernels cannot read its specification; read it with the "
            f"one that wrote it: {error}"
        ) from error
    results = []
    for number, record in enumerate(records[1:], start=2):
        try:
            results.append(Result(**{k: v for k, v in record.items() if k != "type"}))
        except (AttributeError, ValueError) as error:
            # Somebody may have edited the file.
            raise ValueError(
                f"{path}: line {number} is not the result of a cell; export it again"
            ) from error
    return Results({"others": {}, "codes": {}, **header}, results)


def read_status(folder: str | Path) -> tuple[Results, list[tuple[Cell, float]]]:
    """How far the sweep in a folder is: its results, and the cells under way, or with which the
    next command goes on, with the share of each that is done.

    Raises: FileNotFoundError, ValueError: as `read_results`, and for a file of results.
    """
    if Path(folder).is_file():
        raise ValueError(
            f"expected the folder of a sweep, got the file {str(folder)!r}; write the folder that "
            f"`lpkernels sweep run` made, or `lpkernels sweep table {folder}` for results in a file"
        )
    results, begun = read_results(folder), Folder(folder).begun()
    cells = {cell_name(cell.config): cell for cell in results.spec.cells()}
    return results, [
        (cells[name], share_done(begun[name], cells[name])) for name in cells if name in begun
    ]
