"""The lines that benchmarks append to their results."""

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record


def keep(path: Path, record: dict[str, Any]) -> None:
    """Appends a record, with the time and the machine."""
    when = datetime.now(timezone.utc).isoformat()
    append_record(path, {**record, "when": when, "environment": environment("cpu")})
