"""The results of a sweep: from its folder, or from a file that holds nothing else."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from lpkernels import schemas
from lpkernels.experiments.records import RECORDS, Record, read_records, write_records
from lpkernels.experiments.sweeps.cells import SPEC, Folder, cell_name, read_cell
from lpkernels.experiments.sweeps.results import Result
from lpkernels.experiments.sweeps.specification import Cell, SweepSpec
from lpkernels.experiments.workloads.workload import ACCURACY, Metric

KIND = "sweep-results"


class Results(NamedTuple):
    """The results of a sweep.

    header: kind, schema, spec (of all that was run there), metric, environments (where the cells
        ran, each once), cells (how many there should be).
    results: of the cells that came to an end, in the order of the specification.
    others: how many cells of other versions of lpkernels lie in the folder, by version.
    broken: for cells that came to an end, why their records cannot be read.
    codes: how many cells each code trained, by the code in words.
    """

    header: Record
    results: list[Result]
    others: dict[str, int]
    broken: tuple[str, ...] = ()
    codes: dict[str, int] = {}  # noqa: RUF012 (a NamedTuple's default, which nothing changes)

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

    begun: the cells under way, or with which the next command goes on, and the share that is done.
    """

    results: Results
    begun: list[tuple[Cell, float]]

    def count(self, status: str) -> int:
        return sum(result.status == status for result in self.results.results)


def read_results(path: str | Path) -> Results:
    """The results of a sweep's folder, or of a file that `write_results` made.

    Args:
        path: the folder or the file. A folder without cells of this version of lpkernels gives
            those of the version with the most cells.
    Raises:
        FileNotFoundError: neither is there.
        ValueError: they hold something else.
    """
    there = _folder(Path(path))
    if there is None:
        return _read_file(Path(path))
    spec = _spec_of(there)
    ended = there.finished() | there.given_up()
    names, others = _names(there, spec.cells(), ended)
    results, records, broken = [], [], []
    for name in filter(ended.__contains__, names):
        try:
            record = read_cell(there.settled(name))
        except ValueError as error:
            broken.append(f"{names[name].label()}: {error}")
        else:
            records.append(record)
            results.append(_result(record, names[name]))
    environments: list[Record] = []
    for record in records:
        if record["environment"] and record["environment"] not in environments:
            environments.append(record["environment"])
    header: Record = {
        **schemas.header(KIND),
        "spec": spec.to_dict(),
        "metric": next((r["metric"] for r in records if r["metric"]), asdict(ACCURACY)),
        "environments": environments,
        "cells": len(names),
    }
    codes = dict(Counter(record["code"] for record in records))
    return Results(header, results, others, tuple(broken), codes)


def _folder(path: Path) -> Folder | None:
    """The folder of a sweep, which its specification names too; None for any other file."""
    if not path.is_file():
        return Folder(path)
    return Folder(path.parent) if path.name == SPEC else None


def _spec_of(there: Folder) -> SweepSpec:
    spec = there.read_spec()
    if spec is None:
        raise FileNotFoundError(
            f"expected the folder of a sweep at {str(there.root)!r}; `lpkernels sweep run` makes "
            "one"
        )
    return spec


def check_is_there(path: str | Path) -> None:
    """Raises FileNotFoundError where `read_results` would find neither a folder nor a file."""
    there = _folder(Path(path))
    if there is not None:
        _spec_of(there)


def _names(
    there: Folder, cells: Sequence[Cell], ended: Collection[str]
) -> tuple[dict[str, Cell], dict[str, int]]:
    """The cells by the names of their folders, and how many cells other versions have there."""
    names = {cell_name(cell.config): cell for cell in cells}
    others: Counter[str] = Counter()
    for name in set(ended).difference(names):
        try:
            others[read_cell(there.settled(name))["version"]] += 1
        except ValueError:
            continue
    if others and not names.keys() & ended:
        (version, _), *_ = others.most_common(1)
        del others[version]
        names = {cell_name(cell.config, version): cell for cell in cells}
    return names, dict(others)


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
    lines = [{"type": "cell", **asdict(r), "axes": dict(r.axes)} for r in results.results]
    write_records(
        path, [{**results.header, "others": results.others, "codes": results.codes}, *lines]
    )
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
    others, codes = header.pop("others", {}), header.pop("codes", {})
    lines = [_line(path, i, found[i]) for i in range(1, len(found))]
    return Results(header, lines, others, codes=codes)


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
    there = _folder(Path(folder))
    if there is None:
        raise ValueError(
            f"expected the folder of a sweep, got the file {str(folder)!r}; write the folder that "
            f"`lpkernels sweep run` made, or `lpkernels sweep table {folder}` for results in a file"
        )
    results, begun = read_results(folder), there.begun()
    cells = {cell_name(cell.config): cell for cell in _spec_of(there).cells()}
    return Status(
        results,
        [(cell, share_done(begun[name], cell)) for name, cell in cells.items() if name in begun],
    )
