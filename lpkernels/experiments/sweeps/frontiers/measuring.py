"""Measures what a study asks for, on the sweep engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lpkernels.experiments.sweeps.frontiers.choosing import Known, choose_next
from lpkernels.experiments.sweeps.frontiers.specification import FrontierSpec
from lpkernels.experiments.sweeps.frontiers.store import (
    Measured,
    check_metric,
    check_space,
    every_cell,
    joined_spec,
    read_measured,
    write_study_spec,
)
from lpkernels.experiments.sweeps.sweep import run_sweep
from lpkernels.experiments.sweeps.worker import Train
from lpkernels.experiments.workloads.registry import find
from lpkernels.techniques.pareto import ErrorMatrix, cold_start

if TYPE_CHECKING:
    from rich.console import Console

#: Measurements of a task where nothing says how many: with known tasks, and beyond the cover of
#: every row and column of its grid without.
MEASURED, BEYOND_COVER = 8, 5


@dataclass(frozen=True)
class Engine:
    """How cells are run; fields as the arguments of `run_sweep`."""

    jobs: int | None = None
    engine: str = "processes"
    retry_failed: bool = False
    console: Console | None = None
    train: Train | None = None

    def run(self, spec: FrontierSpec, folder: Path, cells: Iterable[tuple[str, int]]) -> None:
        """Runs the cells that the folder lacks."""
        wanted = list(cells)
        if wanted:
            run_sweep(
                spec.sweep(wanted),
                folder,
                jobs=self.jobs,
                engine=self.engine,
                retry_failed=self.retry_failed,
                console=self.console,
                train=self.train,
            )


def run_study(
    spec: FrontierSpec,
    folder: str | Path,
    *,
    known: ErrorMatrix | None = None,
    n: int | None = None,
    everything: bool = False,
    rank: int = 3,
    cap: float | None = None,
    method: str = "greedy",
    engine: Engine | None = None,
) -> Measured:
    """Measures each task of `spec` in a few configurations, and returns all that the folder holds.

    The choice of what to measure is written down before it runs: a call may be stopped at any
    moment, and the same call then goes on with the same choice. Several such calls, on any
    machines, may share the folder.

    Args:
        folder: where results go; made if absent.
        known: errors of other tasks in the same configurations, by which `select` chooses; None: a
            cold start on each task alone, one measurement after the other behind its cover.
        n: how many configurations of each task; None: 8, or without known tasks 5 beyond the cover.
        everything: all configurations, which makes a matrix that other studies know.
        rank, cap, method: of the choice, with `known`.
        engine: how cells are run.
    Raises:
        ValueError: the folder is another study's, known errors are of other configurations, a cap
            below the cheapest configuration, n or rank above what there is, a workload whose figure
            is no share. Nothing has run then.
        Interrupted, OSError, RuntimeError, ModuleNotFoundError: as `run_sweep`.
    """
    path, engine = Path(folder), engine or Engine()
    for task in spec.tasks:
        check_metric(find(spec.config(task).workload).metric)
    if known is not None:
        check_space(known, spec)
    if cap is not None and (known is None or everything):
        raise ValueError("cap: of the choice by known tasks; give known, or leave cap out")
    joined = joined_spec(path, spec)
    # The tasks of this call, with the seeds of all.
    spec = replace(spec, seeds=joined.seeds)
    if everything:
        cells = every_cell(spec, list(spec.tasks))
    elif known is not None:
        cells = _chosen(spec, path, known, MEASURED if n is None else n, rank, cap, method)
    else:
        cells = _cover(spec, n)
    write_study_spec(path, joined)
    engine.run(spec, path, cells)
    if known is None and not everything:
        for task in spec.tasks:
            _finish_cold(spec, path, task, _count(spec, n), engine)
    return read_measured(path)


def _asked(spec: FrontierSpec, folder: Path) -> dict[str, list[int]]:
    """The configurations chosen before: a choice that was stopped goes on as it began."""
    try:
        return read_measured(folder).asked
    except FileNotFoundError:
        return {}


def _chosen(
    spec: FrontierSpec,
    folder: Path,
    known: ErrorMatrix,
    n: int,
    rank: int,
    cap: float | None,
    method: str,
) -> list[tuple[str, int]]:
    if n < 1:
        raise ValueError(f"measure: expected at least 1, got {n}")
    before = _asked(spec, folder)
    cells = []
    for task in spec.tasks:
        asked = before.get(task, [])
        others = Known.of(known, task, rank)
        memory = spec.memory(task)
        more = choose_next(others, memory, n, asked=asked, cap=cap, method=method)
        cells += [(task, int(index)) for index in (*asked, *more)]
    return cells


def _count(spec: FrontierSpec, n: int | None) -> int:
    cover, most = max(_grid(spec)), len(spec.space)
    return min(cover + BEYOND_COVER, most) if n is None else n


def _grid(spec: FrontierSpec) -> tuple[int, int]:
    return spec.space.shape[0], math.prod(spec.space.shape[1:])


def _cover(spec: FrontierSpec, n: int | None) -> list[tuple[str, int]]:
    """A cover of every row and every column of the grid of each task, by its diagonals."""
    (rows, columns), count = _grid(spec), _count(spec, n)
    least, most = max(rows, columns, 3), len(spec.space)
    if rows < 2 or columns < 2 or not least <= count <= most:
        raise ValueError(
            f"measure: without known tasks expected {least} to {most}, for every row and column of "
            f"a grid of at least 2 x 2, {rows} x {columns} here; got {count}"
        )
    first = [(i % rows) * columns + i % columns for i in range(max(rows, columns))]
    return [(task, index) for task in spec.tasks for index in first]


def _finish_cold(spec: FrontierSpec, folder: Path, task: str, count: int, engine: Engine) -> None:
    found = read_measured(folder)
    asked = found.asked[task]
    engine.run(spec, folder, [(task, index) for index in asked])
    errors = _mean(read_measured(folder), task)
    measured = {index: float(errors[index]) for index in asked}
    measure = _measuring(spec, folder, task, engine)
    memory = spec.memory(task)
    # Configurations of the cover that gave no error are asked for again, which trains nothing.
    lost = sum(math.isnan(error) for error in measured.values())
    n = min(max(count, len(measured) + lost), len(spec.space))
    cold_start(spec.space.shape, memory, measure, n=n, measured=measured)


def _measuring(
    spec: FrontierSpec, folder: Path, task: str, engine: Engine
) -> Callable[[int], float]:
    def measure(index: int) -> float:
        engine.run(spec, folder, [(task, index)])
        return float(_mean(read_measured(folder), task)[index])

    return measure


def _mean(found: Measured, task: str) -> Sequence[float] | np.ndarray:
    return found.matrix.mean[found.matrix.tasks.index(task)]
