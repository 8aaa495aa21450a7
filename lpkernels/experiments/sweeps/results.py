"""The results of a sweep: from its folder, or from a file that holds nothing else."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpkernels import schemas
from lpkernels.experiments.records import (
    RECORDS,
    Record,
    Run,
    read_records,
    table_of,
    write_records,
)
from lpkernels.experiments.sweeps.cells import Folder, cell_name, read_cell
from lpkernels.experiments.sweeps.specification import Cell, SweepSpec
from lpkernels.experiments.workloads.workload import ACCURACY, Metric

if TYPE_CHECKING:
    import pandas

KIND = "sweep-results"
# Fields of a cell in a file of results, and of the file's header.
_CELL_FIELDS = ("arm", "axes", "seed", "status", "values", "cell", "error")
_HEADER_FIELDS = ("environments", "cells", "codes")


@dataclass(frozen=True)
class Results:
    """The results of a sweep.

    spec: of the sweep.  metric: the figure by which the cells are compared.
    cells: how many there should be.
    runs: the cells that came to an end, in the order of the specification.
    environments: where the cells ran, each once.
    codes: how many cells each code trained, by the code in words: version, commit, own module.
    broken: for cells that came to an end, why their records cannot be read.
    """

    spec: SweepSpec
    metric: Metric
    cells: int
    runs: list[Run]
    environments: list[Record]
    codes: dict[str, int]
    broken: tuple[str, ...] = ()

    @cached_property
    def table(self) -> pandas.DataFrame:
        """The results as a table of pandas (`table_of`)."""
        return table_of(self.runs)

    @property
    def compare(self) -> str | None:
        """The arm that the specification compares with; None while it has no result."""
        arm = self.spec.compare
        return arm if any(run.arm == arm for run in self.runs) else None

    @property
    def missing(self) -> int:
        """How many cells have no result yet."""
        return self.cells - len(self.runs) - len(self.broken)


def read_results(path: str | Path) -> Results:
    """The results of a sweep's folder, or of a file that `write_results` made.

    Args:
        path: the folder or the file.
    Raises:
        FileNotFoundError: neither is there.
        ValueError: they hold something else.
    """
    if Path(path).is_file():
        return _read_file(Path(path))
    store = Folder(path)
    spec = store.specification()
    runs: dict[str, Run] = {}
    damages: dict[str, str] = {}
    for name in store.finished() | store.given_up():
        try:
            runs[name] = read_cell(store.settled(name))
        except ValueError as error:
            damages[name] = str(error)
    names = {cell_name(cell.config): cell for cell in spec.cells()}
    # The arm is called as the specification calls it now.
    own = [replace(runs[name], arm=names[name].arm) for name in names if name in runs]
    environments = {json.dumps(run.header["environment"]): run.header["environment"] for run in own}
    metrics = [run.metric for run in own if run.header.get("metric")]
    return Results(
        spec,
        metrics[0] if metrics else ACCURACY,
        len(names),
        own,
        [*filter(None, environments.values())],
        dict(Counter(f"lpkernels {r.header['version']}, {r.header['code']}" for r in own)),
        tuple(f"{names[name].label()}: {damages[name]}" for name in names if name in damages),
    )


def share_done(folder: Path, cell: Cell) -> float:
    """The share of a cell's epochs whose records lie in the folder of the cell under way."""
    try:
        lines = (folder / RECORDS).read_bytes().count(b'{"type": "epoch"')
    except OSError:
        return 0.0
    return min(1.0, lines / cell.config.epochs)


def write_results(results: Results, path: str | Path) -> Path:
    """Writes results as JSON lines: the header, then a line a cell with the figures of its last
    epoch."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {name: getattr(results, name) for name in _HEADER_FIELDS}
    about |= {"spec": results.spec.to_dict(), "metric": asdict(results.metric)}
    cells = ({name: getattr(run, name) for name in _CELL_FIELDS} for run in results.runs)
    lines = ({"type": "cell", **cell} for cell in cells)
    write_records(path, [{**schemas.header(KIND), **about}, *lines])
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
        about = {"codes": {}, **header}
        fields: dict[str, Any] = {name: about[name] for name in _HEADER_FIELDS}
        # Nothing is trained by it: settings that this version does not know are no error.
        spec = SweepSpec.model_construct(**about["spec"])
        fields |= {"spec": spec, "metric": Metric(**about["metric"])}
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: the header is none of `lpkernels sweep table --export` ({error}); export the "
            "results again"
        ) from error
    runs = []
    for number, record in enumerate(records[1:], start=2):
        try:
            cell = {name: value for name, value in record.items() if name != "type"}
            values = cell.pop("values")
            runs.append(Run(**cell, epochs=[] if values == {} else [values]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # Somebody may have edited the file.
            raise ValueError(
                f"{path}: line {number} is not the result of a cell; export it again"
            ) from error
    return Results(**fields, runs=runs)


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
