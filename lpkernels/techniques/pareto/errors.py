"""The measured errors of configurations, and their file."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpkernels.formats.checks import set_fields
from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats
from lpkernels.techniques.pareto.spaces import FormatSpace

#: The first line of a file of errors.
FIELDS = ("task", "configuration", "memory", "error")


@dataclass(frozen=True)
class ErrorMatrix:
    """Errors of tasks x configurations x seeds.

    Args:
        space: the columns: the FormatSpace of their configurations, or a list of their names. A
            matrix of names has ``space`` None.
        tasks: names, each once.
        errors: (tasks, configurations, seeds), or without seeds; NaN where nothing was measured.
        memory: (tasks, configurations), or (configurations,) for all tasks, above zero, in any
            unit; None: not known here. `training_memory` computes it for formats.

    Attributes:
        names: of the configurations, one for each column.

    Raises:
        TypeError, ValueError: another shape, an infinite error, a name twice, a memory that is NaN,
            infinite or not above zero.

    >>> from lpkernels.techniques.pareto import ErrorMatrix
    >>> matrix = ErrorMatrix(["fp8", "fp16"], ["task"], [[0.4, 0.3]], memory=[1.0, 2.0])
    >>> matrix.names
    ('fp8', 'fp16')
    """

    space: FormatSpace | None
    tasks: tuple[str, ...]
    errors: Floats
    memory: Floats | None
    names: tuple[str, ...]

    def __init__(
        self,
        space: FormatSpace | Sequence[str],
        tasks: Sequence[str],
        errors: Any,
        memory: Any = None,
    ) -> None:
        names: Sequence[str] = space.names if isinstance(space, FormatSpace) else space
        if not isinstance(names, list | tuple):
            raise TypeError(
                f"ErrorMatrix: space must be a FormatSpace or a list of names, got {space!r}"
            )
        names = names_of("ErrorMatrix: space", names)
        tasks = names_of("ErrorMatrix: tasks", tasks)
        e = checks.numbers("ErrorMatrix: errors", errors, 3 if np.ndim(errors) == 3 else 2)
        e = e if e.ndim == 3 else e[:, :, None]
        if e.shape[:2] != (len(tasks), len(names)):
            raise ValueError(
                f"ErrorMatrix: errors must be ({len(tasks)} tasks, {len(names)} configurations, "
                f"seeds), got {e.shape}"
            )
        if np.isinf(e).any():
            raise ValueError("ErrorMatrix: errors must be finite, or NaN where missing; got inf")
        e.flags.writeable = False
        formats = space if isinstance(space, FormatSpace) else None
        of_each = None if memory is None else _memory(memory, e.shape[:2])
        set_fields(self, space=formats, tasks=tasks, errors=e, memory=of_each, names=names)

    @property
    def mean(self) -> Floats:
        """(tasks, configurations): over the seeds that are there, NaN where none is."""
        return mean_over_seeds(self.errors)

    def for_space(self, label: str, space: FormatSpace) -> ErrorMatrix:
        """The matrix whose columns are the configurations of the space, in their order, found by
        their names. label: begins the error.

        Raises: ValueError: the columns are of other configurations.
        """
        of_space = set(space.names)
        other = next((name for name in self.names if name not in of_space), None)
        missing = next((name for name in space.names if name not in self.names), None)
        if other is not None or missing is not None:
            what = f"it has {other!r}" if missing is None else f"it has no {missing!r}"
            raise ValueError(
                f"{label}: its errors are of other configurations: {what}; its columns must be "
                f"called {space.name(0)!r} to {space.name(len(space) - 1)!r}"
            )
        order = [self.names.index(name) for name in space.names]
        memory = None if self.memory is None else self.memory[:, order]
        return ErrorMatrix(space, self.tasks, self.errors[:, order], memory)

    def save(self, path: str | Path) -> Path:
        """Writes a CSV with a line for each error: its task, its configuration, the memory and the
        error. A memory or an error that is not known is empty."""
        path = Path(path)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(FIELDS)
            for i, j, seed in np.ndindex(self.errors.shape):
                error = self.errors[i, j, seed]
                memory = "" if self.memory is None else float(self.memory[i, j])
                writer.writerow(
                    [self.tasks[i], self.names[j], memory, "" if np.isnan(error) else float(error)]
                )
        return path

    @classmethod
    def load(cls, path: str | Path, space: FormatSpace | None = None) -> ErrorMatrix:
        """The matrix of a CSV with the columns task, configuration, memory and error, as `save`
        writes it. Tasks and configurations are in the order in which they first come; several lines
        of one task and configuration are its seeds; what has no line was not measured.

        Args:
            space: the space whose configurations are meant; the file's must be called as these.
                None: the columns of the matrix are only names.

        Raises:
            OSError: the file cannot be read.
            ValueError: another file, a number that is none, or other configurations.
        """
        cells, sizes = _cells(path)
        tasks, names = (list(dict.fromkeys(cell[axis] for cell in cells)) for axis in (0, 1))
        seeds = max(map(len, cells.values()), default=0)
        errors = np.full((len(tasks), len(names), seeds), np.nan)
        memory = np.full(errors.shape[:2], np.nan)
        for (task, name), found in cells.items():
            at = tasks.index(task), names.index(name)
            errors[at][: len(found)] = found
            memory[at] = sizes[task, name]
        try:
            matrix = cls(names, tasks, errors, None if np.isnan(memory).any() else memory)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return matrix if space is None else matrix.for_space(str(path), space)


_Cells = dict[tuple[str, str], Any]


def _cells(path: str | Path) -> tuple[_Cells, _Cells]:
    """The errors and the memory in a file, by task and configuration."""
    errors: dict[tuple[str, str], list[float]] = {}
    sizes: dict[tuple[str, str], float] = {}
    for where, task, name, size, error in _lines(path):
        errors.setdefault((task, name), []).append(_number(where, "error", error))
        memory = _number(where, "memory", size)
        before = sizes.setdefault((task, name), memory)
        if not np.array_equal(before, memory, equal_nan=True):
            raise ValueError(
                f"{where}: {task!r} in {name!r} has memory {size or 'none'} here and {before} above"
            )
    return errors, sizes


def _lines(path: str | Path) -> Iterator[list[str]]:
    """The lines below the head of a matrix's file, each after the words for its place."""
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        try:
            head, *lines = list(csv.reader(file)) or [[]]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path}: expected a CSV of errors, got no text: {error}") from error
    if tuple(head) != FIELDS:
        raise ValueError(
            f"{path}: expected a CSV of errors whose first line is {','.join(FIELDS)!r}, got "
            f"{','.join(head)[:80]!r}"
        )
    for number, found in enumerate(lines, 2):
        where = f"{path}, line {number}"
        if len(found) != len(FIELDS):
            raise ValueError(f"{where}: expected {','.join(FIELDS)}, got {','.join(found)[:80]!r}")
        yield [where, *found]


def _number(where: str, field: str, text: str) -> float:
    """The number of a cell; NaN for an empty one."""
    try:
        return float(text) if text else np.nan
    except ValueError:
        raise ValueError(f"{where}: {field} must be a number or empty, got {text!r}") from None


def _memory(memory: Any, shape: tuple[int, int]) -> Floats:
    found = checks.positive("ErrorMatrix: memory", memory)
    if found.shape not in (shape, shape[1:]):
        raise ValueError(f"ErrorMatrix: memory must be {shape} or {shape[1:]}, got {found.shape}")
    return np.broadcast_to(found, shape)


def names_of(label: str, names: Sequence[str]) -> tuple[str, ...]:
    """Names, each once. label: begins the error.

    Raises: TypeError, ValueError: no list of texts, an empty text, a name twice.
    """
    found = tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"{label} must be a list of names, got {names!r}")
    for i, name in enumerate(found):
        if not name or name in found[:i]:
            what = f"{name!r} twice" if name else f"an empty one at {i}"
            raise ValueError(f"{label}: each must have a name of its own, got {what}")
    return found


def mean_over_seeds(errors: Floats) -> Floats:
    """The mean over the last axis of the errors that are there; NaN where none is."""
    there = (~np.isnan(errors)).sum(axis=-1)
    return np.where(there > 0, np.nansum(errors, axis=-1) / np.maximum(there, 1), np.nan)
