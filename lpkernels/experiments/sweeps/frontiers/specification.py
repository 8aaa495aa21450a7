"""The specification of a study of frontiers: tasks, the configurations they train in, and seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lpkernels import schemas
from lpkernels.arithmetic import NATIVE
from lpkernels.experiments.records import write_lines
from lpkernels.experiments.sweeps.cells import SPEC
from lpkernels.experiments.sweeps.specification import (
    SweepSpec,
    check_tables,
    flat_fields,
    read_toml,
)
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.workloads.registry import find
from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques.checks import Floats
from lpkernels.techniques.pareto import (
    FormatSpace,
    TrainingRecipe,
    count_tensors,
    training_memory,
)
from lpkernels.techniques.pareto.spaces import Configuration

#: The file of a study's specification, beside those of a sweep.
FILE = "frontier.json"
KIND = "frontier study"
_AXES = ("low", "high", "accumulators")
_OTHERS = ("name", "seeds", "cell_seconds", "base", "tasks")
_KEYS = (*_OTHERS, *_AXES)


def settings_of(configuration: Configuration) -> dict[str, Any]:
    """The fields of a RunConfig that train as the configuration says: the one place that knows.

    Every tensor is rounded, under an assignment (`TrainingRecipe.assignment`).
    """
    recipe = TrainingRecipe(*configuration)
    masters = {name: str(fmt) for name, fmt in recipe.masters.items()}
    return {
        "tensors": str(recipe.low),
        "ends": str(recipe.high),
        "tensor_sums": "" if recipe.accumulator == NATIVE else str(recipe.accumulator),
        "working": masters["weight"],
        "master": masters["master"],
        "opt_state": masters["state"],
        "opt_grad": masters["grad"],
        "loss_scale": recipe.loss_scale,
    }


@dataclass(frozen=True)
class FrontierSpec:
    """Tasks x configurations x seeds.

    space: the configurations; the default is the paper's.
    base: fields of every run, as in a sweep's specification; none that a configuration says.
    tasks: fields of each task by its name, instead of the base's; none: one task called "task".
    seeds: of each cell; a number n means 0..n-1, as in a sweep.
    name: the study's name in tables and pictures.
    cell_seconds: the longest that a try at a cell may take, as in a sweep.
    Raises: TypeError, ValueError: as SweepSpec; a field that the configuration says.
    """

    space: FormatSpace = field(default_factory=FormatSpace.peppp)
    base: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: Sequence[int] = (0, 1)
    name: str = ""
    cell_seconds: float | None = None

    def __post_init__(self) -> None:
        fix = object.__setattr__
        fix(self, "base", _fields("[base]", self.base))
        tasks = self.tasks or {"task": {}}
        fix(self, "tasks", {task: _fields(f"[tasks.{task}]", tasks[task]) for task in tasks})
        fix(self, "seeds", self.sweep((task, 0) for task in self.tasks).seeds)

    def arm(self, task: str, index: int) -> str:
        """The name in the sweep of the arm of a task in a configuration."""
        return f"{task}: {self.space.name(index)}"

    def sweep(self, cells: Iterable[tuple[str, int]]) -> SweepSpec:
        """The sweep that trains these tasks in these configurations, for all seeds."""
        arms = {
            self.arm(task, index): {**self.tasks[task], **settings_of(self.space[index])}
            for task, index in cells
        }
        return SweepSpec(
            base=self.base,
            arms=arms,
            seeds=self.seeds,
            name=self.name,
            cell_seconds=self.cell_seconds,
        )

    def config(self, task: str) -> RunConfig:
        """The run of a task, in no configuration yet.

        Raises: ValueError: no such task.
        """
        if task not in self.tasks:
            listed = nearest(task, self.tasks, "`lpkernels frontier status` lists all")
            raise ValueError(f"task: expected one of {listed}, got {task!r}")
        return RunConfig.of(**{**self.base, **self.tasks[task]})

    def memory(self, task: str) -> Floats:
        """Bytes of a training step of the task in each configuration: `training_memory`. The model
        runs on the meta device, with a batch of the run."""
        config = self.config(task)
        work = find(config.workload)
        with torch.random.fork_rng(devices=[]):
            model = work.model().to("meta")
        size = min(config.batch, len(work.train))
        batch = work.train.plan(0, 0).batch(0, size)
        counts = count_tensors(model, batch[0].to("meta"))
        return training_memory(counts, self.space.low_bits, self.space.high_bits)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON holds them."""
        return {
            "name": self.name,
            "seeds": list(self.seeds),
            "cell_seconds": self.cell_seconds,
            **{axis: [str(entry) for entry in getattr(self.space, axis)] for axis in _AXES},
            "base": dict(self.base),
            "tasks": {task: dict(fields) for task, fields in self.tasks.items()},
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> FrontierSpec:
        """The inverse of `to_dict`; it reads a TOML file's values too, which may leave out any key.

        Raises: TypeError, ValueError: as the constructor; a key that no specification has.
        """
        check_tables(values, _KEYS, ("base", "tasks"))
        axes = {axis: values[axis] for axis in _AXES if axis in values}
        if axes and not {"low", "high"} <= set(axes):
            raise ValueError(
                f"specification: expected low and high, lists of formats, got {', '.join(axes)} "
                "alone; without any of them the configurations are the paper's"
            )
        given = {key: values[key] for key in _OTHERS if key in values}
        return FrontierSpec(FormatSpace(**axes) if axes else FormatSpace.peppp(), **given)


def read_frontier_spec(path: str | Path) -> FrontierSpec:
    """The specification in a TOML file.

    Raises:
        FileNotFoundError: no such file.
        TypeError, ValueError: no TOML, or no specification.
    """
    return read_toml(path, FrontierSpec.from_dict)


def _fields(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A table of fields, flat.

    Raises: TypeError, ValueError: no table, an unknown field, one that the configuration says.
    """
    flat = flat_fields(where, values)
    said = sorted(flat.keys() & settings_of(FormatSpace.peppp()[0]).keys())
    if said:
        raise ValueError(f"{where}: {', '.join(said)}: the configuration says it; leave it out")
    return flat


def joined_spec(folder: str | Path, spec: FrontierSpec) -> FrontierSpec:
    """The specification of the folder once `spec` runs there: the former one and `spec` together.

    More tasks and seeds may be added; those that are there stay.

    Raises: ValueError: it is the folder of another study, or of a sweep.
    """
    path = Path(folder) / FILE
    if path.is_file():
        return _joined(path, read_study_spec(folder), spec)
    if (Path(folder) / SPEC).is_file():
        raise ValueError(f"{folder} holds a sweep; choose another folder (option --out)")
    return spec


def write_study_spec(folder: str | Path, spec: FrontierSpec) -> None:
    """Makes the folder one of this study; the file is replaced at once."""
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"kind": KIND, "schema": schemas.SCHEMA, "spec": spec.to_dict()})
    write_lines(path, [f"{text}\n"])


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
        ValueError: it is something else, or of another version.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"expected the folder of a study at {str(folder)!r}; `lpkernels frontier run` makes one"
        )
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("kind") != KIND:
        raise ValueError(f"{path}: expected a study of frontiers, got {found.get('kind')!r}")
    return FrontierSpec.from_dict(schemas.check(found, path)["spec"])
