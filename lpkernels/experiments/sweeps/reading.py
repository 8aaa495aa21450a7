"""The results of a sweep: from its folder, or from a file that holds nothing else."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from lpkernels import schemas
from lpkernels.experiments.records import RECORDS, Record, read_records, write_records
from lpkernels.experiments.sweeps.cells import read_cell
from lpkernels.experiments.sweeps.log import all_cells, specs_of
from lpkernels.experiments.sweeps.places import LOG, Places
from lpkernels.experiments.sweeps.results import Result
from lpkernels.experiments.sweeps.sources import cell_name, config_digits, version_of
from lpkernels.experiments.sweeps.specification import Cell, SweepSpec, merged
from lpkernels.experiments.workloads.workload import ACCURACY, Metric
from lpkernels.formats.elsewhere import nearest

KIND = "sweep-results"


class Results(NamedTuple):
    """The results of a sweep.

    header: kind, schema, spec (of all that was run there), metric, sources (the version of the
        cells), environments (where they ran, each once), cells (how many there should be).
    results: of the cells that came to an end, in the order of the specification.
    others: how many finished cells of other versions lie in the folder, by version.
    broken: for cells that came to an end, why their records cannot be read.
    """

    header: Record
    results: list[Result]
    others: dict[str, int]
    broken: tuple[str, ...] = ()

    @property
    def spec(self) -> SweepSpec:
        return SweepSpec.from_dict(self.header["spec"])

    @property
    def compare(self) -> str | None:
        """The arm that the specification compares with; None while it has no result."""
        arm = self.spec.compare
        return arm if any(result.arm == arm for result in self.results) else None

    @property
    def missing(self) -> int:
        """How many cells have no result yet."""
        return int(self.header["cells"]) - len(self.results) - len(self.broken)


class Status(NamedTuple):
    """How far a sweep is.

    running: the cells that are held, each with its owner, the share that is done, and for how many
        seconds it has made no step: an owner that lives may hang all the same.
    begun: the cells that no worker holds now, and that the next worker goes on with or tries again.
    strangers: files and folders here that are no sweep's; nobody looks into them.
    """

    results: Results
    running: list[tuple[Cell, str, float, float]]
    begun: list[Cell]
    strangers: list[str]

    def count(self, status: str) -> int:
        return sum(result.status == status for result in self.results.results)


def read_results(path: str | Path, *, sources: str = "") -> Results:
    """The results of a sweep's folder, or of a file that `write_results` made.

    Args:
        path: the folder or the file.
        sources: the version, which is the last part of its cells' names; "": this package's version
            or, where it has no cells, the only other one.
    Raises:
        FileNotFoundError: neither is there.
        ValueError: they hold something else, or several other versions, and none was chosen.
    """
    places = _places(Path(path))
    if places is None:
        return _read_file(Path(path))
    specs = specs_of(places)
    cells = all_cells(specs)
    ended = places.finished() | places.given_up()
    names = _names(cells, ended, sources)
    results, broken = [], []
    for name in filter(ended.__contains__, names):
        try:
            read = read_cell(places.settled(name))
        except ValueError as error:
            broken.append(f"{names[name].label()}: {error}")
        else:
            results.append(_result(read, names[name]))
    chosen = set(map(version_of, names))
    others = Counter(version_of(name) for name in ended if version_of(name) not in chosen)
    header: Record = {
        **schemas.header(KIND),
        "spec": merged(specs).to_dict(),
        **_metric_and_environments([places.settled(result.cell) for result in results]),
        "sources": sorted(chosen),
        "cells": len(cells),
    }
    return Results(header, results, dict(others), tuple(broken))


def _places(path: Path) -> Places | None:
    """The folder of a sweep, which its log names too; None for any other file."""
    if not path.is_file():
        return Places(path)
    return Places(path.parent) if path.name == LOG else None


def check_is_there(path: str | Path) -> None:
    """Raises FileNotFoundError where `read_results` would find neither a folder nor a file."""
    places = _places(Path(path))
    if places is not None:
        specs_of(places)


def _names(cells: Sequence[Cell], ended: set[str], sources: str) -> dict[str, Cell]:
    """The cells by the names of their folders."""
    there = Counter(map(version_of, ended))
    own: dict[str, Cell] = {}
    if not sources:
        try:
            own = {cell_name(cell.config): cell for cell in cells}
        except ValueError:
            # A workload whose module is not at hand: its results can be read all the same.
            if not there:
                raise
        if own and (not there or own.keys() & ended):
            return own
        if len(there) > 1:
            versions = ", ".join(f"{version} ({n} cells)" for version, n in there.items())
            raise ValueError(
                f"no cell is of this version of lpkernels' sources; choose one of {versions} "
                "(option --sources), or run the sweep again"
            )
        sources = next(iter(there))
    elif sources not in there:
        listed = nearest(sources, there, "`lpkernels sweep status` lists all") or "none"
        raise ValueError(f"sources: expected one of {listed}, got {sources!r}")
    return {f"{config_digits(cell.config)}-{sources}": cell for cell in cells}


def _result(record: Record, cell: Cell) -> Result:
    """The arm is called as the specification calls it now."""
    return Result(
        arm=cell.arm,
        axes=cell.axes,
        seed=cell.seed,
        status=record["status"],
        values=record["values"],
        cell=record["cell"],
        error=record["error"],
    )


def _metric_and_environments(folders: Sequence[Path]) -> Record:
    metric: Record | None = None
    environments: list[Record] = []
    for folder in folders:
        try:
            with (folder / RECORDS).open(encoding="utf-8") as file:
                header = json.loads(file.readline())
        except (OSError, ValueError):
            # A cell that failed before its run began.
            continue
        if not isinstance(header, dict):
            continue
        header = schemas.check(header, folder / RECORDS)
        metric = metric or header.get("metric")
        found = header.get("environment")
        if found and found not in environments:
            environments.append(found)
    return {"metric": metric or asdict(ACCURACY), "environments": environments}


def write_results(results: Results, path: str | Path) -> Path:
    """Writes results as JSON lines: the header, then a line a cell."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"type": "cell", **asdict(r), "axes": dict(r.axes)} for r in results.results]
    write_records(path, [{**results.header, "others": results.others}, *lines])
    return path


def _read_file(path: Path) -> Results:
    found = read_records(path)
    header = found[0] if found and isinstance(found[0], dict) else {}
    if header.get("kind") != KIND:
        raise ValueError(
            f"{path}: expected results that `lpkernels sweep table --export` wrote, got "
            f"{header.get('kind')!r}"
        )
    try:
        SweepSpec.from_dict(header["spec"])
        Metric(**header["metric"]), int(header["cells"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: this version of lpkernels cannot read its specification; read it with the "
            f"one that wrote it: {error}"
        ) from error
    others = header.pop("others", {})
    return Results(header, [_line(path, i, found[i]) for i in range(1, len(found))], others)


def _line(path: Path, number: int, record: Any) -> Result:
    """The result of a line of a file, which somebody may have edited."""
    try:
        values = {k: v for k, v in record.items() if k != "type"}
        result = Result(**{**values, "axes": tuple(values["axes"].items())})
        sound = isinstance(result.values, dict) and isinstance(result.seed, int)
        if sound and all(isinstance(each, str) for each in (result.arm, result.status)):
            return result
    except (AttributeError, KeyError, TypeError):
        pass
    raise ValueError(f"{path}: line {number + 1} is not the result of a cell; export it again")


def read_status(folder: str | Path) -> Status:
    """How far the sweep in a folder is; errors as in `read_results`, and for a file of results."""
    places = _places(Path(folder))
    if places is None:
        raise ValueError(
            f"expected the folder of a sweep, got the file {str(folder)!r}; write the folder that "
            f"`lpkernels sweep run` made, or `lpkernels sweep table {folder}` for results in a file"
        )
    results = read_results(folder)
    tries, held = places.tries(), places.held()
    running, begun = [], []
    for cell in all_cells(specs_of(places)):
        name = cell_name(cell.config)
        if name not in tries or places.is_settled(name):
            continue
        note = held.get(name)
        if note is None or note.owner.surely_dead():
            begun.append(cell)
        else:
            running.append((cell, str(note.owner), note.share, note.idle))
    return Status(results, running, begun, places.strangers())
