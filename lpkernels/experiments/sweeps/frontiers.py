"""Studies of frontiers of memory and error: which configurations of a task to measure, the runs,
and predictions of the others.

A study is a sweep with formats (`SweepSpec.low`, `high`): its arms are tasks, and of the
configurations it trains those that tell most.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lpkernels.experiments.processes.folders import owned
from lpkernels.experiments.sweeps.cells import Folder
from lpkernels.experiments.sweeps.results import read_results
from lpkernels.experiments.sweeps.specification import CONFIGURATION, SweepSpec
from lpkernels.experiments.sweeps.statistics import figures_of
from lpkernels.experiments.sweeps.sweep import run_sweep
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats, Ints
from lpkernels.techniques.pareto import (
    ErrorMatrix,
    count_tensors,
    embed,
    predict,
    select,
    training_memory,
)
from lpkernels.techniques.pareto.completion import filled


class Study(NamedTuple):
    """The measurements in a folder.

    matrix: the errors of all tasks, NaN where there is none.
    lost: cells that ended without an error, by their words.
    """

    spec: SweepSpec
    matrix: ErrorMatrix
    lost: list[str]


def study_spec(folder: str | Path) -> SweepSpec:
    """The specification of the study in a folder.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is a sweep without formats, or of another version.
    """
    spec = Folder(folder).specification()
    if not spec.low:
        raise ValueError(
            f"{folder}: expected a study of frontiers, got a sweep; `lpkernels sweep` shows it"
        )
    return spec


def read_study(folder: str | Path) -> Study:
    """The measurements in a folder; errors as `study_spec` and `read_results`, and ValueError
    unless the workload's figure is a share of 0 to 1, such as accuracy."""
    spec, results = study_spec(folder), read_results(folder)
    tasks, names = list(spec.arms), list(spec.space.names)
    errors = np.full((len(tasks), len(names), len(spec.seeds)), np.nan)
    lost: list[str] = []
    if results.runs:
        _check_metric(results.metric)
        figures = figures_of(results.table, results.metric.field)
        for run, figure in zip(results.runs, figures, strict=True):
            name = run.axes[CONFIGURATION]
            if np.isnan(figure):
                why = run.error or run.status
                lost.append(f"{run.arm}: {name}, seed {run.seed}: {why}")
            place = tasks.index(run.arm), names.index(name), spec.seeds.index(run.seed)
            errors[place] = 1 - figure
    return Study(spec, ErrorMatrix(spec.space, tasks, errors), lost)


def task_config(spec: SweepSpec, task: str, **settings: Any) -> RunConfig:
    """The run of a task with further settings, such as those of a configuration.

    Raises: ValueError: no such task.
    """
    if task not in spec.arms:
        listed = nearest(task, spec.arms, "`lpkernels frontier table` lists all")
        raise ValueError(f"task: expected one of {listed}, got {task!r}")
    return RunConfig.of(**{**spec.base, **spec.arms[task], **settings})


def task_memory(spec: SweepSpec, task: str) -> Floats:
    """Bytes of a training step of the task in each configuration: `training_memory`. The model
    runs on the meta device, with a batch of the run."""
    config = task_config(spec, task)
    work = find(config.workload)
    inputs = work.first_batch(0, config.batch)[0].to("meta")
    counts = count_tensors(work.network(0).to("meta"), inputs)
    return training_memory(counts, spec.space.low_bits, spec.space.high_bits)


def run_study(
    spec: SweepSpec,
    folder: str | Path,
    *,
    known: ErrorMatrix | None = None,
    n: int = 8,
    rank: int = 3,
    cap: float | None = None,
    **how: Any,
) -> Study:
    """Measures each task of `spec`, in all configurations or, where other tasks are known, in a
    few; returns all that the folder holds.

    The choice of configurations is written down before they run: a call may be stopped at any
    moment, and the same call then goes on with the same choice. The folder belongs to this
    call until it returns.

    Args:
        spec: a specification; one without formats has the paper's.
        folder: where results go; made if absent.
        known: errors of other tasks in the same configurations, by which `select` chooses; None:
            all configurations are measured, which makes a matrix that other studies can take as
            known.
        n, rank, cap: of the choice, with `known`: how many configurations of each task, the rank of
            their embeddings, the most bytes.
        how: jobs, engine, retry_failed, console and train, as for `run_sweep`.
    Raises:
        ValueError: the folder is another study's, known errors are of other configurations, a cap
            below the cheapest configuration, too large an n or rank, a workload with a figure that
            is no share. Nothing has run then.
        BlockingIOError, Interrupted, OSError, RuntimeError, ModuleNotFoundError: as `run_sweep`.
    """
    path, space = Path(folder), spec.space
    if not spec.low:
        spec = spec.replace(low=list(map(str, space.low)), high=list(map(str, space.high)))
    for task in spec.arms:
        _check_metric(find(task_config(spec, task).workload).metric)
    if cap is not None and known is None:
        raise ValueError("cap: of the choice by known tasks; give known, or leave cap out")
    chosen: dict[str, list[str]] = {}
    if known is not None:
        known, former = known.for_space("known", space), Folder(path).read_spec()
        for task in spec.arms:
            chosen_before = former.chosen.get(task, []) if former else []
            names = [name for name in chosen_before if name in space.names]
            measured = [space.names.index(name) for name in names]
            errors, memory = errors_of_others(known, task, rank), task_memory(spec, task)
            more = _further(errors, rank, memory, n, measured, cap)
            chosen[task] = [*names, *(space.names[index] for index in more)]
    with owned(path):
        run_sweep(spec.replace(chosen=chosen), path, **how)
        return read_study(path)


def _check_metric(metric: Metric) -> None:
    """Raises ValueError unless 1 less the metric is an error in 0..1."""
    if not (metric.higher and metric.percent):
        raise ValueError(
            f"a frontier needs a share such as accuracy, whose rest is an error of 0 to 1, got "
            f"{metric.label}"
        )


def errors_of_others(matrix: ErrorMatrix, task: str, rank: int) -> Floats:
    """The errors (tasks, configurations) of all other tasks that have any, so that nothing about a
    task is learned from itself.

    Raises: ValueError: a rank above the data.
    """
    rows = [i for i, name in enumerate(matrix.tasks) if name != task]
    errors = matrix.mean[rows]
    errors = errors[~np.isnan(errors).all(axis=1)]
    most = min(errors.shape)
    if not 1 <= rank <= most:
        raise ValueError(
            f"rank: expected 1 to {most}, for {len(errors)} known tasks beside {task!r} in "
            f"{errors.shape[1]} configurations, got {rank}; know more tasks, or use a smaller rank"
        )
    return errors


def _embeddings(errors: Floats, rank: int) -> Floats:
    """(rank, configurations), of the completed matrix."""
    return embed(filled(errors, rank, clip=(0, 1)), rank)


def _further(
    errors: Floats, rank: int, memory: Floats, n: int, measured: list[int], cap: float | None
) -> Ints:
    """The configurations of at most `cap` bytes to measure beside those that are, until there are
    n; errors (tasks, configurations) are those of other tasks."""
    among = np.flatnonzero(memory <= (memory.max() if cap is None else cap))
    if not len(among):
        raise ValueError(
            f"cap: {cap:.0f} bytes are below the cheapest configuration's {memory.min():.0f}"
        )
    candidates = np.setdiff1d(among, measured)
    checks.whole("measure", n, 1, len(measured) + len(candidates))
    if n <= len(measured):
        return np.array([], dtype=np.int64)
    y = _embeddings(errors, rank)
    # Measurements fewer than the dimensions, as below a cap, see only so many dimensions.
    y = y[: max(1, min(len(y), n, len(among)))]
    return select(y, n=n - len(measured), measured=measured, among=candidates)


@dataclass(frozen=True)
class Frontier:
    """The frontier of a task, measured and predicted.

    memory: (configurations,) bytes.  measured: (configurations,) errors, NaN where there is none.
    predicted: (configurations,) errors; of a measured one its own.
    """

    memory: Floats
    measured: Floats
    predicted: Floats

    @property
    def is_measured(self) -> bool:
        """Whether nothing is predicted."""
        return not np.isnan(self.measured).any()


def frontier_of(
    memory: Floats, measured: Floats, *, known: Floats | None = None, rank: int = 3
) -> Frontier:
    """The frontier of a task, predicted where it is not measured.

    Args:
        memory, measured: (configurations,), NaN where no error is known.
        known: (tasks, configurations), errors of other tasks, by which the rest is predicted.
        rank: of the embeddings, with `known`.
    Raises: ValueError: nothing is measured, or not all without `known`.
    """
    chosen = np.flatnonzero(~np.isnan(measured))
    if len(chosen) == len(measured):
        return Frontier(memory, measured, measured)
    if not len(chosen):
        raise ValueError("nothing is measured yet; `lpkernels frontier run` measures")
    if known is None:
        raise ValueError(
            f"known: {len(chosen)} of {len(measured)} configurations are measured; give the errors "
            "of other tasks, which predict the rest, or measure all"
        )
    y = _embeddings(known, rank)[: len(chosen)]
    return Frontier(memory, measured, np.clip(predict(y, chosen, measured[chosen]), 0, 1))


def frontiers(
    study: Study, *, task: str = "", known: ErrorMatrix | None = None, rank: int = 3
) -> dict[str, Frontier]:
    """The frontier of each task, by the task's name.

    Args:
        task: only this one; "": all.
        known, rank: as of `frontier_of`, all tasks of a matrix.
    Raises: ValueError: no such task, nothing measured or without `known` not all, known errors of
        other configurations, a rank above the data.
    """
    spec = study.spec
    if known is not None:
        known = known.for_space("known", spec.space)
    result = {}
    for name in [task] if task else spec.arms:
        memory = task_memory(spec, name)
        errors = study.matrix.mean[study.matrix.tasks.index(name)]
        others = None if known is None else errors_of_others(known, name, rank)
        try:
            result[name] = frontier_of(memory, errors, known=others, rank=rank)
        except ValueError as error:
            raise ValueError(f"task {name}: {error}") from error
    return result
