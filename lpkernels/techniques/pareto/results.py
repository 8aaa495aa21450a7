"""The measured errors of a study, and the file that holds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpkernels.schemas import line
from lpkernels.techniques import saving
from lpkernels.techniques.pareto import checks
from lpkernels.techniques.pareto.checks import Floats
from lpkernels.techniques.pareto.spaces import FormatSpace

#: The name of what the file holds.
KIND = "error matrix"


@dataclass(frozen=True)
class ErrorMatrix:
    """Errors of tasks x configurations of a space x seeds.

    Args:
        space: FormatSpace whose configurations are the columns.
        tasks: names, each once.
        errors: (tasks, configurations, seeds), or without seeds; NaN where nothing was measured.

    Raises:
        TypeError, ValueError: another shape, an infinite error, a name twice.
    """

    space: FormatSpace
    tasks: tuple[str, ...]
    errors: Floats

    def __init__(self, space: FormatSpace, tasks: Sequence[str], errors: Any) -> None:
        if not isinstance(space, FormatSpace):
            raise TypeError(f"ErrorMatrix: space must be a FormatSpace, got {space!r}")
        names = tuple(tasks)
        if isinstance(tasks, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"ErrorMatrix: tasks must be a list of names, got {tasks!r}")
        if len(set(names)) != len(names):
            raise ValueError("ErrorMatrix: each task must have a name of its own")
        e = checks.numbers("ErrorMatrix", "errors", errors, 3 if np.ndim(errors) == 3 else 2)
        e = e if e.ndim == 3 else e[:, :, None]
        if e.shape[:2] != (len(names), len(space)):
            raise ValueError(
                f"ErrorMatrix: errors must be ({len(names)} tasks, {len(space)} configurations, "
                f"seeds), got {e.shape}"
            )
        if np.isinf(e).any():
            raise ValueError("ErrorMatrix: errors must be finite, or NaN where missing; got inf")
        e.flags.writeable = False
        object.__setattr__(self, "space", space)
        object.__setattr__(self, "tasks", names)
        object.__setattr__(self, "errors", e)

    @property
    def mean(self) -> Floats:
        """(tasks, configurations): over the seeds that are there, NaN where none is."""
        there = (~np.isnan(self.errors)).sum(axis=2)
        total = np.nansum(self.errors, axis=2)
        return np.where(there > 0, total / np.maximum(there, 1), np.nan)

    def save(self, path: str | Path) -> Path:
        """Writes one JSON object, with null for NaN: its schema, space, tasks and errors."""
        path = Path(path)
        errors = [
            [[None if np.isnan(error) else float(error) for error in cell] for cell in row]
            for row in self.errors
        ]
        found = {**line(KIND), "space": json.loads(self.space.to_json())}
        found |= {"tasks": list(self.tasks), "errors": errors}
        path.write_text(json.dumps(found) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path, space: FormatSpace | None = None) -> ErrorMatrix:
        """The matrix of a file.

        Args:
            space: the space whose configurations are meant; None: whichever the matrix was measured
                on.

        Raises:
            FileNotFoundError: no such file.
            ValueError: not an error matrix, one of a later schema, or of another space.
        """
        found = saving.read(path, KIND, "an error matrix", "ErrorMatrix.save")
        measured = FormatSpace.from_json(json.dumps(found["space"]))
        if space is not None and measured != space:
            raise ValueError(
                f"{path}: its errors are of another space: {measured}; expected {space}"
            )
        errors = np.array(found["errors"], dtype=np.float64)
        return cls(measured, found["tasks"], errors)
