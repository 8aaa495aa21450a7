"""Result records: JSON lines, a header (the run, its machine and its versions), then a line per
epoch; and the table that all results are read into."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass

from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.processes.torchrun import ALONE, Processes
from lpkernels.experiments.training.config import RunConfig, recorded_settings
from lpkernels.experiments.workloads.workload import ACCURACY, Metric

if TYPE_CHECKING:
    import pandas

KIND = "run"
RECORDS = "records.jsonl"
_SEAL = "sha256"

Record = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """The place of a training run in a sweep: an arm, the value of each axis in the order of the
    axes, and a seed."""

    arm: str
    axes: dict[str, Any]
    seed: int

    def label(self) -> str:
        """The place in words."""
        values = (f"{name} {value}" for name, value in self.axes.items())
        return ", ".join([self.arm, *values, f"seed {self.seed}"])


@checked_dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Run(Place):
    """A run, or a cell of a sweep, and its figures. The arm of a run without a sweep is its name.

    status: "finished", "diverged" (the loss is not finite at the end, or every update of the last
        epoch was skipped: a result too), "begun" (epochs are missing) or "failed" (a cell that
        ended in an error, twice).
    epochs: in order, each with epoch, train_loss, test_loss, the workload's own figures
        (train_accuracy, test_accuracy), lr, skipped_steps, the figures of the run's callbacks, and
        seconds; a figure that is not finite is None. A file of results has the last epoch alone.
    cell: the name of its folder in a sweep.  error: the last line of the error of one that failed.
    header: config, accumulator, metric, environment, processes; empty in a file of results.
    """

    status: Literal["finished", "diverged", "begun", "failed"]
    epochs: list[Record] = field(default_factory=list)
    cell: str = ""
    error: str = ""
    header: Record = field(default_factory=dict)

    @property
    def config(self) -> RunConfig:
        versions = self.header.get("environment", {}).get("versions", {})
        return RunConfig.from_dict(self.header["config"], versions.get("lpkernels", ""))

    @property
    def metric(self) -> Metric:
        """The figure by which runs of this workload are compared."""
        return Metric(**self.header["metric"])

    @property
    def finished(self) -> bool:
        """Whether no epoch is missing."""
        return self.status in ("finished", "diverged")

    @property
    def values(self) -> Record:
        """The figures of the last epoch, with the seconds of all epochs."""
        last = self.epochs[-1] if self.epochs else {}
        return {**last, "seconds": self.seconds} if "seconds" in last else last

    @property
    def seconds(self) -> float:
        """Time spent in the epochs, training and test together."""
        return round(sum(epoch["seconds"] for epoch in self.epochs), 3)


def run_of(header: Record, epochs: list[Record]) -> Run:
    """The run of a header and its epochs, whose figures say how it ended."""
    config, last = header["config"], epochs[-1] if epochs else {}
    updates = last.get("updates")
    lost = any(last.get(name, 0.0) is None for name in ("train_loss", "test_loss"))
    lost = lost or (bool(updates) and last["skipped_steps"] >= updates)
    place = config["name"], dict[str, Any](), config["seed"]
    if len(epochs) < config["epochs"]:
        return Run(*place, "begun", epochs, header=header)
    return Run(*place, "diverged" if lost else "finished", epochs, header=header)


def table_of(runs: Iterable[Run], *, epochs: bool = False) -> pandas.DataFrame:
    """The table of results, a row for each run: arm, the axes, seed, status, cell, then the figures
    of the last epoch.

    A figure that has the name of another column is called "<name>_figure". A value of an axis that
    is a list is a tuple, and None is "none".

    Args:
        epochs: a row for each epoch instead. Before the figures, which are NaN where they are not
            finite, stand the number of the run and every setting by the name of its option.
    """
    import pandas

    runs = list(runs)
    axes = dict.fromkeys(name for run in runs for name in run.axes)
    own, rows = ["arm", *axes, "seed", "status", "cell"], []
    for number, run in enumerate(runs):
        places = [_hashable(run.axes.get(name)) for name in axes]
        place = dict(zip(own, [run.arm, *places, run.seed, run.status, run.cell], strict=True))
        if epochs:
            place = {"run": number, **recorded_settings(run.header["config"]), **place}
        for figures in run.epochs if epochs else [run.values]:
            rows.append(place | {f"{k}_figure" if k in place else k: figures[k] for k in figures})
    dtype = None if epochs else object
    return pandas.DataFrame(rows, columns=None if rows else own, dtype=dtype)


def figure_names(table: pandas.DataFrame) -> list[str]:
    """The columns of a table of results that hold figures."""
    return list(table.columns)[table.columns.get_loc("cell") + 1 :]


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return "none" if value is None else value


def header(
    config: RunConfig, accumulator: str, metric: Metric = ACCURACY, processes: Processes = ALONE
) -> Record:
    """The first record of a run."""
    return {
        **schemas.header(KIND),
        "config": config.to_dict(),
        "accumulator": accumulator,
        "metric": asdict(metric),
        **machine(config, processes),
    }


def machine(config: RunConfig, processes: Processes) -> Record:
    """The circumstances in which a run starts or goes on: versions, machine, commit, processes."""
    how = {"count": processes.count, "sharded": processes.sharded}
    return {"environment": environment(config.device), "processes": how}


def line_of(record: Record) -> str:
    """The line of a record in its file; values that are not finite become null."""
    return json.dumps(_plain(record), allow_nan=False) + "\n"


def sealed(record: Record, other: bytes = b"") -> Record:
    """The record with a digest of it and of `other`, by which `unsealed` notices damage."""
    return {**record, _SEAL: _digest(record, other)}


def unsealed(record: Record, other: bytes = b"") -> Record | None:
    """The record without its digest; None if the record or `other` has changed since `sealed`. A
    record of an earlier version, without a digest, is returned as it is."""
    content = {name: value for name, value in record.items() if name != _SEAL}
    return content if record.get(_SEAL) in (None, _digest(content, other)) else None


def _digest(record: Record, other: bytes) -> str:
    return hashlib.sha256(json.dumps(record).encode() + other).hexdigest()


def append_record(path: Path, record: Record) -> str:
    """Adds the line of `record` to `path`, flushes it and returns it."""
    line = line_of(record)
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
    return line


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Replaces the file at once: a reader sees the old lines or the new ones."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.replace(path)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """As `write_lines`, with the lines of `records`."""
    write_lines(path, map(line_of, records))


def read_records(path: Path) -> list[Record]:
    """All records of a file, in the shapes of today, without a last line that was cut short.

    Raises: ValueError: another line is no JSON, or of a schema that this version does not know.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected JSON lines, got no text: {error}") from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}: line {number} is not a JSON record: {error}") from error
    return schemas.check_all(records, path)


def read_run(path: str | Path) -> Run:
    """The run whose records are in `path`, a file or the folder of a run.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not records of a run, or of a schema this version does not know.
    """
    path = Path(path)
    path = path / RECORDS if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(
            f"expected the records of a run at {str(path)!r}; `lpkernels train` writes them"
        )
    records = read_records(path)
    if not records or not isinstance(records[0], dict) or records[0].get("type") != "header":
        raise ValueError(
            f"{path}: expected a header as first record; is this a {RECORDS} of `lpkernels train`?"
        )
    kind = records[0].get("kind")
    if kind != KIND:
        also = "`lpkernels report --html` and the command that made them show them"
        raise ValueError(f"{path}: expected the records of a run, got those of a {kind}; {also}")
    epochs = [
        {name: value for name, value in record.items() if name != "type"}
        for record in records
        if record.get("type") == "epoch"
    ]
    return run_of(records[0], epochs)


def find_runs(folder: str | Path) -> dict[Path, Run]:
    """The runs in `folder` and below by the paths of their records, and in their order; a file is
    one run.

    In the folder of a sweep these are the finished cells, by name and seed, and not the runs under
    way.
    """
    folder = Path(folder)
    if folder.is_file():
        return {folder: read_run(folder)}
    runs = {path: read_run(path) for path in folder.rglob(RECORDS) if not _is_begun(path)}

    def order(path: Path) -> tuple[str, str, int]:
        place, run = path.parent.parent, runs[path]
        if place.name != "cells":
            return str(path.parent), "", 0
        return str(place), run.arm, run.seed

    return {path: runs[path] for path in sorted(runs, key=order)}


def _is_begun(path: Path) -> bool:
    """Whether the records are of a cell of a sweep that is under way."""
    place = path.parent.parent.parent
    return place.name == "work" and (place.parent / "sweep.json").is_file()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
