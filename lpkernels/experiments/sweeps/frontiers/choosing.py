"""Which configurations of a task to measure, and predictions of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lpkernels.experiments.records import Record, read_records
from lpkernels.techniques.checks import Floats, Ints
from lpkernels.techniques.pareto import (
    ErrorMatrix,
    choose,
    cold_start,
    complete,
    embed,
    frontier_band,
    held_out_residuals,
    predict,
    select,
)
from lpkernels.techniques.pareto.prediction import FrontierBand, band

if TYPE_CHECKING:
    from lpkernels.experiments.sweeps.frontiers.study import Measured

#: The lambda with which the paper's code completes matrices.
LAM = 0.1
#: The records of `bench.frontier_study`.
CHOICES = "frontier choices"


@dataclass(frozen=True)
class Frontier:
    """The frontier of a task, measured and predicted.

    memory: (configurations,) bytes.  measured: (configurations,) errors, NaN where there is none.
    predicted: (configurations,) errors; of a measured one its own.
    band: the bands of the frontier and of each configuration.
    how: "measured" (everything is), "known" (from other tasks), "alone" (from the task's own grid).
    names: of the configurations, for pictures; (): without.
    """

    memory: Floats
    measured: Floats
    predicted: Floats
    band: FrontierBand
    how: str
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Known:
    """Errors of other tasks, and the rank of the embeddings that are learned from them."""

    errors: Floats
    rank: int

    @classmethod
    def of(cls, matrix: ErrorMatrix, task: str, rank: int) -> Known:
        """The matrix without `task`, so that nothing about a task is learned from itself.

        Raises: ValueError: a rank above the data, a configuration that no other task has measured.
        """
        rows = [i for i, name in enumerate(matrix.tasks) if name != task]
        errors = matrix.mean[rows]
        errors = errors[~np.isnan(errors).all(axis=1)]
        # One is left out where residuals are taken.
        most = min(len(errors) - 1, errors.shape[1])
        if not 1 <= rank <= most:
            raise ValueError(
                f"rank: expected 1 to {most}, for {len(errors)} known tasks beside {task!r} in "
                f"{errors.shape[1]} configurations, got {rank}; know more tasks, or use a smaller "
                "rank"
            )
        nobody = np.flatnonzero(np.isnan(errors).all(axis=0))
        if len(nobody):
            raise ValueError(
                f"known: no task has an error in {len(nobody)} of the {errors.shape[1]} "
                f"configurations, such as {matrix.names[nobody[0]]!r}; measure it, or "
                "leave it out of the space"
            )
        return cls(errors, rank)

    @property
    def embeddings(self) -> Floats:
        """(rank, configurations), of the completed matrix."""
        seen = ~np.isnan(self.errors)
        if seen.all():
            return embed(self.errors, self.rank)
        completed = complete(self.errors, seen, rank=self.rank, lam=LAM)
        return embed(completed.values, self.rank)


def choose_next(
    known: Known,
    memory: Floats,
    n: int,
    *,
    asked: list[int],
    cap: float | None = None,
    method: str = "greedy",
) -> Ints:
    """The configurations to measure beside those asked for, until there are n.

    Args:
        cap: only configurations with at most that many bytes; None: all.
        method: of `select`.
    Raises: ValueError: a cap below the cheapest configuration, n above the number of configurations
        below the cap.
    """
    if len(asked) >= n:
        return np.array([], dtype=np.int64)
    among = np.arange(len(memory))
    if cap is not None:
        among = np.flatnonzero(memory <= cap)
        if not len(among):
            raise ValueError(
                f"cap: {cap:.0f} bytes are below the cheapest configuration's {memory.min():.0f}"
            )
    left = np.setdiff1d(among, asked)
    if n - len(asked) > len(left):
        raise ValueError(
            f"measure: expected at most {len(asked) + len(left)}, all that there are, got {n}"
        )
    y = known.embeddings
    # With fewer measurements than dimensions, or below a cap, so many dimensions can be seen.
    y = y[: max(1, min(len(y), n, len(among)))]
    return select(y, n=n - len(asked), measured=asked, among=left, method=method)


def frontier_of(
    memory: Floats, measured: Floats, *, known: Known | None = None, level: float = 0.9
) -> Frontier:
    """The frontier of a task, predicted where it is not measured.

    Args:
        memory, measured: (configurations,), NaN where no error is known.
        known: errors of other tasks; None: the task's own grid is all there is, and `measured` is
            (low, high) or (low, high, accumulators).
    Raises: ValueError: too few measurements; the message says what to measure.
    """
    flat = measured.ravel()
    chosen = np.flatnonzero(~np.isnan(flat))
    if len(chosen) == len(flat):
        whole = band(memory, flat, np.stack([flat, flat]), level, "frontier_of")
        return Frontier(memory, flat, flat, whole, "measured")
    if not len(chosen):
        raise ValueError("nothing is measured yet; `lpkernels frontier run` measures")
    if known is None:
        return _alone(memory, measured, chosen, level)
    y = known.embeddings[: min(known.rank, len(chosen))]
    residuals = held_out_residuals(known.errors, len(y))
    found = flat[chosen]
    bands = frontier_band(y, chosen, found, memory, residuals=residuals, level=level)
    predicted = np.clip(predict(y, chosen, found), 0, 1)
    return Frontier(memory, flat, predicted, bands, "known")


def _alone(memory: Floats, measured: Floats, chosen: Ints, level: float) -> Frontier:
    shape, flat = measured.shape, measured.ravel()
    known = {int(i): float(flat[i]) for i in chosen}
    found = cold_start(shape, memory, _refuse, n=len(known), measured=known, level=level)
    predicted = np.clip(found.predicted, 0, 1)
    return Frontier(memory, flat, predicted, found.band, "alone")


def _refuse(index: int) -> Any:
    raise AssertionError(f"configuration {index} is not measured")


def frontiers(
    found: Measured, *, task: str = "", known: ErrorMatrix | None = None, rank: int = 3
) -> dict[str, Frontier]:
    """The frontier of each task that has measurements, by the task's name.

    Args:
        task: only this one; "": all.
        known: errors of other tasks, by which the rest is predicted; None: by the task's own grid.
        rank: of the embeddings, with `known`.
    Raises: ValueError: no such task, nothing or too little measured, known errors of other
        configurations, a rank above the data.
    """
    spec, matrix = found.spec, found.matrix
    if known is not None:
        known = known.for_space("known", spec.space)
    wanted = [task] if task else [name for name in spec.tasks if found.asked[name]]
    if not wanted:
        raise ValueError("nothing is measured yet; `lpkernels frontier run` measures")
    result = {}
    for name in wanted:
        memory = spec.memory(name)
        errors = matrix.mean[matrix.tasks.index(name)].reshape(spec.space.shape)
        others = None if known is None else Known.of(known, name, rank)
        try:
            frontier = frontier_of(memory, errors, known=others)
        except ValueError as error:
            raise ValueError(f"task {name}: {error}") from error
        result[name] = replace(frontier, names=spec.space.names)
    return result


def best(frontier: Frontier, cap: float) -> int:
    """The configuration of least error, measured or predicted, with at most `cap` bytes.

    Raises: ValueError: a cap below the cheapest configuration.
    """
    cheapest = frontier.memory.min()
    if cap < cheapest:
        raise ValueError(
            f"cap: {cap:.0f} bytes are below the cheapest configuration's {cheapest:.0f}"
        )
    return choose(frontier.memory, frontier.predicted, cap)


def read_choices(path: str | Path) -> list[Record]:
    """The rows that `bench.frontier_study` recorded: how good each way of choosing is on a matrix.

    Raises: FileNotFoundError: no such file.  ValueError: other records.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"expected records of bench.frontier_study at {str(path)!r}")
    found = read_records(path)
    if not found or found[0].get("kind") != CHOICES:
        raise ValueError(f"{path}: expected records of bench.frontier_study")
    return [record for record in found if record["type"] == "average"]
