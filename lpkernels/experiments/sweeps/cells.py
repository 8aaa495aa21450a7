"""The record of a finished or failed cell, cell.json in its folder: made, written, read."""

import json
import os
from pathlib import Path
from typing import Any

from lpkernels import schemas
from lpkernels.experiments.processes.leases import Owner
from lpkernels.experiments.records import RECORDS, Record, Run, sealed, unsealed
from lpkernels.experiments.sweeps.sources import sources_hash
from lpkernels.experiments.sweeps.specification import Cell

CELL = "cell.json"
# The keys that the record of a cell holds at least.
_NEEDED = {"status": str, "values": dict, "cell": str, "error": str}


def cell_record(
    name: str,
    cell: Cell,
    status: str,
    before: list[str],
    *,
    run: Run | None = None,
    error: str = "",
) -> Record:
    """The record in cell.json of the cell of that name: the figures of its run's last epoch, or its
    error.

    before: how former tries ended badly.
    """
    values: dict[str, Any] = {}
    if run is not None and run.epochs:
        values = {k: v for k, v in run.epochs[-1].items() if k != "type"}
        values["seconds"] = round(run.seconds, 3)
    return {
        **schemas.header("cell"),
        "cell": name,
        "arm": cell.arm,
        "axes": dict(cell.axes),
        "seed": cell.seed,
        "status": status,
        "values": values,
        "error": error,
        "metric": run.header["metric"] if run is not None else None,
        "before": before,
        "worker": str(Owner.here()),
        "sources": sources_hash(cell.config),
        "config": cell.config.to_dict(),
    }


def write_cell(folder: Path, record: Record) -> None:
    """Writes the record of a cell, with a digest of it and of the run's records, and sees to it
    that both are on the disk before the folder gets its final name."""
    whole = sealed(record, _run_of(folder))
    with (folder / CELL).open("w", encoding="utf-8") as file:
        file.write(json.dumps(whole, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    records = folder / RECORDS
    if records.is_file():
        with records.open("rb") as file:
            os.fsync(file.fileno())


def _run_of(folder: Path) -> bytes:
    """The records of a cell's run; nothing for one that failed before its run began."""
    path = folder / RECORDS
    return path.read_bytes() if path.is_file() else b""


def read_cell(folder: Path) -> Record:
    """The record of a finished or failed cell.

    Raises: ValueError: there is none, or it or the run's records are damaged.
    """
    path = folder / CELL
    again = f"remove the folder {folder.name} and the next run makes it again"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        run = _run_of(folder)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected the record of a cell ({error}); {again}") from error
    if not isinstance(record, dict) or record.get("kind") != "cell":
        raise ValueError(f"{path}: expected the record of a cell")
    whole = unsealed(record, run)
    if whole is None or whole.get("cell") != folder.name:
        raise ValueError(f"{path}: it or {RECORDS} is damaged, or belongs to another cell; {again}")
    record = schemas.check(whole, path)
    for name, kind in _NEEDED.items():
        if not isinstance(record.get(name), kind):
            raise ValueError(
                f"{path}: expected {name!r} to be a {kind.__name__}, got {record.get(name)!r}"
            )
    return record
