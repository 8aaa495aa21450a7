"""The specification of a study of frontiers: tasks, the configurations they train in, and seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ConfigDict, Field, field_validator, model_validator

from lpkernels import schemas
from lpkernels.arithmetic import NATIVE
from lpkernels.experiments.records import write_lines
from lpkernels.experiments.settings import Settings
from lpkernels.experiments.sweeps.cells import SPEC
from lpkernels.experiments.sweeps.specification import (
    Seconds,
    Seeds,
    SweepSpec,
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

if TYPE_CHECKING:
    from typing_extensions import Self

#: The file of a study's specification, beside those of a sweep.
FILE = "frontier.json"
KIND = "frontier study"


@cache
def _space(low: tuple[str, ...], high: tuple[str, ...], sums: tuple[str, ...]) -> FormatSpace:
    return FormatSpace(low, high, sums) if low else FormatSpace.peppp()


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


class FrontierSpec(Settings):
    """Tasks x configurations x seeds.

    name: the study's name in tables and pictures.
    seeds: of each cell; a number n means 0..n-1, as in a sweep.
    cell_seconds: the longest that a try at a cell may take, as in a sweep.
    low, high, accumulators: the axes of the configurations, as FormatSpace takes them, by name;
        none of them: the paper's configurations.
    base: fields of every run, as in a sweep's specification; none that a configuration says.
    tasks: fields of each task by its name, instead of the base's; none: one task called "task".
    Raises: TypeError, ValueError: as SweepSpec; a field that the configuration says.
    """

    model_config = ConfigDict(validate_default=True)

    name: str = ""
    seeds: Seeds = Field([0, 1])
    cell_seconds: Seconds = None
    low: list[str] = Field(default_factory=list)
    high: list[str] = Field(default_factory=list)
    accumulators: list[str] = Field(default_factory=list)
    base: dict[str, Any] = Field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @field_validator("base")
    @staticmethod
    def _base(base: dict[str, Any]) -> dict[str, Any]:
        return _fields("[base]", base)

    @field_validator("tasks")
    @staticmethod
    def _tasks(tasks: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        tasks = tasks or {"task": {}}
        return {task: _fields(f"[tasks.{task}]", fields) for task, fields in tasks.items()}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        axes = [axis for axis in ("low", "high", "accumulators") if getattr(self, axis)]
        if axes and axes[:2] != ["low", "high"]:
            raise ValueError(
                f"expected low and high, lists of formats, got {', '.join(axes)} alone; without "
                "any of them the configurations are the paper's"
            )
        self.sweep((task, 0) for task in self.tasks)
        return self

    @property
    def space(self) -> FormatSpace:
        """The configurations."""
        return _space(*map(tuple, (self.low, self.high, self.accumulators)))

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


def read_frontier_spec(path: str | Path) -> FrontierSpec:
    """The specification in a TOML file.

    Raises:
        FileNotFoundError: no such file.
        TypeError, ValueError: no TOML, or no specification.
    """
    return read_toml(path, FrontierSpec)


def _fields(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A table of fields, flat.

    Raises: ValueError: an unknown field, or one that the configuration says.
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
    return here.replace(tasks={**there.tasks, **here.tasks}, seeds=seeds)


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
    return FrontierSpec(**schemas.check(found, path)["spec"])
