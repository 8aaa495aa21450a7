"""The folder of a study: a sweep's folder, which holds the specification of the study too."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lpkernels import schemas
from lpkernels.experiments.sweeps.frontiers.specification import FrontierSpec
from lpkernels.experiments.sweeps.log import read_specs
from lpkernels.experiments.sweeps.places import Places
from lpkernels.experiments.sweeps.reading import read_results
from lpkernels.experiments.sweeps.results import Result, figure_of
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.techniques.pareto import ErrorMatrix

FILE = "frontier.json"
KIND = "frontier study"


class Measured(NamedTuple):
    """What a folder holds.

    matrix: the errors of all tasks, NaN where there is none.
    asked: of each task the configurations that were chosen so far, whether they ended or not.
    lost: cells that ended without an error, by their words.
    """

    spec: FrontierSpec
    matrix: ErrorMatrix
    asked: dict[str, list[int]]
    lost: list[str]


def joined_spec(folder: str | Path, spec: FrontierSpec) -> FrontierSpec:
    """The specification of all that belongs in the folder once `spec` runs there.

    More tasks and seeds may be added; those that are there stay.

    Raises: ValueError: it is the folder of another study, or of a sweep.
    """
    path = Path(folder) / FILE
    if path.is_file():
        return _joined(path, read_study_spec(folder), spec)
    if read_specs(Places(Path(folder))):
        raise ValueError(f"{folder} holds a sweep; choose another folder (option --out)")
    return spec


def write_study_spec(folder: str | Path, spec: FrontierSpec) -> None:
    """Makes the folder one of this study; the file is replaced at once."""
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"kind": KIND, "schema": schemas.schema(KIND), "spec": spec.to_dict()})
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


def _joined(path: Path, there: FrontierSpec, here: FrontierSpec) -> FrontierSpec:
    other = f"{path.parent} holds another study; choose another folder (option --out)"
    if there.space != here.space:
        raise ValueError(f"{other}: its configurations are {there.space}; here {here.space}")
    if there.base != here.base:
        raise ValueError(f"{other}: its [base] is {dict(there.base)}; here {dict(here.base)}")
    for task in there.tasks.keys() & here.tasks.keys():
        if there.tasks[task] != here.tasks[task]:
            was, now = dict(there.tasks[task]), dict(here.tasks[task])
            raise ValueError(f"{other}: its [tasks.{task}] is {was}; here {now}")
    seeds = sorted({*there.seeds, *here.seeds})
    return replace(here, tasks={**there.tasks, **here.tasks}, seeds=seeds)


def read_study_spec(folder: str | Path) -> FrontierSpec:
    """The specification of the study in a folder.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is something else, or of a later version.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"expected the folder of a study at {str(folder)!r}; `lpkernels frontier run` makes one"
        )
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("kind") != KIND:
        raise ValueError(f"{path}: expected a study of frontiers, got {found.get('kind')!r}")
    return FrontierSpec.from_dict(schemas.current(found, KIND, path)["spec"])


def read_measured(folder: str | Path) -> Measured:
    """What was measured in a folder; errors as `read_study_spec` and `read_results`, and ValueError
    where the workload's figure is no share of 0 to 1, such as accuracy."""
    spec = read_study_spec(folder)
    places = {
        spec.arm(task, index): (task, index)
        for task in spec.tasks
        for index in range(len(spec.space))
    }
    chosen = dict.fromkeys(a for s in read_specs(Places(Path(folder))) for a in s.arms)
    asked: dict[str, list[int]] = {task: [] for task in spec.tasks}
    for task, index in (places[arm] for arm in chosen):
        asked[task].append(index)
    tasks, seeds = list(spec.tasks), list(spec.seeds)
    errors = np.full((len(tasks), len(spec.space), len(seeds)), np.nan)
    lost: list[str] = []
    if chosen:
        results = read_results(folder)
        metric = Metric(**results.header["metric"])
        check_metric(metric)
        for result in results.results:
            task, index = places[result.arm]
            error = _error(result, metric)
            if error is None:
                lost.append(f"{result.arm}, seed {result.seed}: {result.error or result.status}")
            else:
                errors[tasks.index(task), index, seeds.index(result.seed)] = error
    return Measured(spec, ErrorMatrix(spec.space, tasks, errors), asked, lost)


def check_metric(metric: Metric) -> None:
    """Raises ValueError unless 1 less the metric is an error in 0..1."""
    if not (metric.higher and metric.percent):
        raise ValueError(
            f"a frontier needs a share such as accuracy, whose rest is an error of 0 to 1, got "
            f"{metric.label}"
        )


def check_space(known: ErrorMatrix, spec: FrontierSpec) -> None:
    """Raises ValueError unless known errors are of the study's configurations."""
    if known.space != spec.space:
        raise ValueError(
            f"known: its errors are of other configurations: {known.space}; the study's are "
            f"{spec.space}"
        )


def _error(result: Result, metric: Metric) -> float | None:
    figure = figure_of(result, metric.field)
    return None if figure is None else 1 - figure


def every_cell(spec: FrontierSpec, tasks: Collection[str]) -> list[tuple[str, int]]:
    """All configurations of these tasks."""
    return [(task, index) for task in tasks for index in range(len(spec.space))]
