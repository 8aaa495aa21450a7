"""A study: a sweep with chosen cells, the configurations of each task that tell most.

Its folder is a sweep's, which holds the specification of the study too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lpkernels.experiments.processes.folders import owned
from lpkernels.experiments.sweeps.cells import Folder
from lpkernels.experiments.sweeps.frontiers.choosing import Known, choose_next
from lpkernels.experiments.sweeps.frontiers.specification import (
    FrontierSpec,
    joined_spec,
    read_study_spec,
    write_study_spec,
)
from lpkernels.experiments.sweeps.results import read_results
from lpkernels.experiments.sweeps.statistics import figures_of
from lpkernels.experiments.sweeps.sweep import run_sweep
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.techniques.pareto import ErrorMatrix, cold_start
from lpkernels.techniques.pareto.cold_start import cover

#: Measurements of a task where nothing says how many: with known tasks, and beyond the cover of
#: every row and column of its grid without.
MEASURED, BEYOND_COVER = 8, 5


class Measured(NamedTuple):
    """The measurements in a folder.

    matrix: the errors of all tasks, NaN where there is none.
    asked: of each task the configurations that were chosen so far, whether they ended or not.
    lost: cells that ended without an error, by their words.
    """

    spec: FrontierSpec
    matrix: ErrorMatrix
    asked: dict[str, list[int]]
    lost: list[str]

    def errors(self, task: str) -> np.ndarray:
        """(configurations,), the means over the seeds of a task."""
        return self.matrix.mean[self.matrix.tasks.index(task)]


def read_measured(folder: str | Path) -> Measured:
    """The measurements in a folder; errors as `read_study_spec` and `read_results`, and ValueError
    unless the workload's figure is a share of 0 to 1, such as accuracy."""
    spec = read_study_spec(folder)
    tasks, seeds = list(spec.tasks), list(spec.seeds)
    places, asked = _places(spec), _asked(spec, folder)
    errors = np.full((len(tasks), len(spec.space), len(seeds)), np.nan)
    lost: list[str] = []
    if any(asked.values()):
        results = read_results(folder)
        _check_metric(results.metric)
        figures = figures_of(results.table, results.metric.field)
        for result, figure in zip(results.results, figures, strict=True):
            task, index = places[result.arm]
            if math.isnan(figure):
                lost.append(f"{result.arm}, seed {result.seed}: {result.error or result.status}")
            else:
                errors[tasks.index(task), index, seeds.index(result.seed)] = 1 - figure
    return Measured(spec, ErrorMatrix(spec.space, tasks, errors), asked, lost)


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
    **how: Any,
) -> Measured:
    """Measures each task of `spec` in a few configurations, and returns all that the folder holds.

    The choice of configurations is written down before they run: a call may be stopped at any
    moment, and the same call then goes on with the same choice. The folder belongs to this
    call until it returns.

    Args:
        folder: where results go; made if absent.
        known: errors of other tasks in the same configurations, by which `select` chooses; None: a
            cold start on each task alone, one measurement after the other behind its cover.
        n: how many configurations of each task; None: 8, or without known tasks 5 beyond the cover.
        everything: measure all configurations, which makes a matrix that other studies can take as
            known.
        rank, cap, method: of the choice, with `known`.
        how: jobs, engine, retry_failed, console and train, as for `run_sweep`.
    Raises:
        ValueError: the folder is another study's, known errors are of other configurations, a cap
            below the cheapest configuration, too large an n or rank, a workload with a figure that
            is no share. Nothing has run then.
        BlockingIOError, Interrupted, OSError, RuntimeError, ModuleNotFoundError: as `run_sweep`.
    """
    path = Path(folder)
    for task in spec.tasks:
        _check_metric(find(spec.config(task).workload).metric)
    if known is not None:
        known = known.for_space("known", spec.space)
    if cap is not None and (known is None or everything):
        raise ValueError("cap: of the choice by known tasks; give known, or leave cap out")
    joined = joined_spec(path, spec)
    # The tasks of this call, with the seeds of all.
    spec = spec.replace(seeds=joined.seeds)
    before = _asked(spec, path)
    if everything:
        chosen = {task: list(range(len(spec.space))) for task in spec.tasks}
    elif known is not None:
        count = MEASURED if n is None else n
        chosen = _by_known(spec, before, known, count, rank, cap, method)
    else:
        first = _cover(spec, n)
        chosen = {task: list(dict.fromkeys([*first, *before[task]])) for task in spec.tasks}
    path.mkdir(parents=True, exist_ok=True)
    with owned(path):
        write_study_spec(path, joined)
        run_sweep(spec.sweep((task, i) for task in chosen for i in chosen[task]), path, **how)
        if known is None and not everything:
            for task in spec.tasks:
                _measure_more(spec, path, task, chosen[task], n, how)
        return read_measured(path)


def _measure_more(
    spec: FrontierSpec,
    path: Path,
    task: str,
    chosen: list[int],
    n: int | None,
    how: dict[str, Any],
) -> None:
    """A cold start on a task alone, behind the configurations that were chosen before."""

    def measure(index: int) -> float:
        run_sweep(spec.sweep([(task, index)]), path, **how)
        return float(read_measured(path).errors(task)[index])

    errors = read_measured(path).errors(task)
    former = {index: float(errors[index]) for index in chosen}
    # Configurations that gave no error are asked for again, which trains nothing.
    lost = sum(map(math.isnan, former.values()))
    most = min(max(_count(spec, n), len(former) + lost), len(spec.space))
    cold_start(spec.space.shape, spec.memory(task), measure, n=most, measured=former)


def _check_metric(metric: Metric) -> None:
    """Raises ValueError unless 1 less the metric is an error in 0..1."""
    if not (metric.higher and metric.percent):
        raise ValueError(
            f"a frontier needs a share such as accuracy, whose rest is an error of 0 to 1, got "
            f"{metric.label}"
        )


def _places(spec: FrontierSpec) -> dict[str, tuple[str, int]]:
    """Tasks and configurations by the arm that trains them."""
    return {spec.arm(task, i): (task, i) for task in spec.tasks for i in range(len(spec.space))}


def _asked(spec: FrontierSpec, folder: str | Path) -> dict[str, list[int]]:
    """The configurations of each task that were chosen so far: a choice that was stopped goes on as
    it began."""
    places = _places(spec)
    asked: dict[str, list[int]] = {task: [] for task in spec.tasks}
    former = Folder(folder).read_spec()
    for arm in former.arms if former is not None else ():
        if arm in places:
            task, index = places[arm]
            asked[task].append(index)
    return asked


def _by_known(
    spec: FrontierSpec,
    before: dict[str, list[int]],
    known: ErrorMatrix,
    n: int,
    rank: int,
    cap: float | None,
    method: str,
) -> dict[str, list[int]]:
    if n < 1:
        raise ValueError(f"measure: expected at least 1, got {n}")
    chosen = {}
    for task, asked in before.items():
        others, memory = Known.of(known, task, rank), spec.memory(task)
        more = choose_next(others, memory, n, asked=asked, cap=cap, method=method)
        chosen[task] = [*asked, *map(int, more)]
    return chosen


def _count(spec: FrontierSpec, n: int | None) -> int:
    return min(max(_grid(spec)) + BEYOND_COVER, len(spec.space)) if n is None else n


def _grid(spec: FrontierSpec) -> tuple[int, int]:
    return spec.space.shape[0], math.prod(spec.space.shape[1:])


def _cover(spec: FrontierSpec, n: int | None) -> Sequence[int]:
    """The cover of every row and every column with which a cold start would begin."""
    (rows, columns), count = _grid(spec), _count(spec, n)
    least, most = max(rows, columns, 3), len(spec.space)
    if rows < 2 or columns < 2 or not least <= count <= most:
        raise ValueError(
            f"measure: without known tasks expected {least} to {most}, for every row and column of "
            f"a grid of at least 2 x 2, {rows} x {columns} here; got {count}"
        )
    return cover(spec.space.shape)
