"""Result records: JSON lines, a header (the run, its machine and its versions), then a line per
epoch."""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.processes.torchrun import ALONE, Processes
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.workloads.workload import ACCURACY, Metric

KIND = "run"
RECORDS = "records.jsonl"
_SEAL = "sha256"

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """The records of one run.

    header: type, kind, schema, config, accumulator, metric, environment, processes.
    epochs: in order, each with type, epoch, train_loss, test_loss, the workload's own figures
        (train_accuracy, test_accuracy), lr, skipped_steps, the figures of the run's callbacks, and
        seconds; a figure that is not finite is None.
    """

    header: Record
    epochs: list[Record] = field(default_factory=list)

    @property
    def config(self) -> RunConfig:
        versions = self.header.get("environment", {}).get("versions", {})
        return RunConfig.from_dict(self.header["config"], versions.get("lpkernels", ""))

    @property
    def metric(self) -> Metric:
        """The figure by which runs of this workload are compared."""
        return Metric(**self.header["metric"])

    @property
    def name(self) -> str:
        return str(self.header["config"]["name"])

    @property
    def finished(self) -> bool:
        return len(self.epochs) >= int(self.header["config"]["epochs"])

    @property
    def diverged(self) -> bool:
        """Whether the last epoch's loss is not finite, or it skipped every update there was."""
        if not self.epochs:
            return False
        epoch = self.epochs[-1]
        if any(epoch.get(name, 0.0) is None for name in ("train_loss", "test_loss")):
            return True
        updates = epoch.get("updates")
        return bool(updates) and epoch["skipped_steps"] >= updates

    @property
    def seconds(self) -> float:
        """Time spent in the epochs, training and test together."""
        return float(sum(epoch["seconds"] for epoch in self.epochs))

    def curve(self, field: str) -> dict[int, float]:
        """The figures of the epochs that have the field, by their numbers; NaN for None."""
        figures = {epoch["epoch"]: epoch[field] for epoch in self.epochs if field in epoch}
        return {epoch: math.nan if x is None else float(x) for epoch, x in figures.items()}


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


def begins_with(path: Path, lines: Iterable[str]) -> bool:
    """Whether the file is there and begins with `lines`."""
    whole = "".join(lines).encode()
    try:
        with path.open("rb") as file:
            return file.read(len(whole)) == whole
    except OSError:
        return False


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
    return Run(records[0], [record for record in records if record.get("type") == "epoch"])


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
        place, config = path.parent.parent, runs[path].header["config"]
        if place.name != "cells":
            return str(path.parent), "", 0
        return str(place), str(config["name"]), int(config["seed"])

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
