"""The lines that benchmarks append to their results, and the lines that are there."""

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record, read_records


def keep(path: Path, record: dict[str, Any]) -> None:
    """Appends a record, with the time and the machine."""
    when = datetime.now(timezone.utc).isoformat()
    append_record(path, {**record, "when": when, "environment": environment("cpu")})


def held(path: Path, *names: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The records of a file, if there is one, by the values of these fields."""
    records = read_records(path) if path.exists() else []
    return {tuple(record[name] for name in names): record for record in records}
