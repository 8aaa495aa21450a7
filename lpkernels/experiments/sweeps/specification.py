"""The specification of a sweep: a base configuration, named arms, axes over any field, and seeds.

A cell is one training run: an arm, a value of each axis, and a seed. In a study of frontiers arms
are tasks, and the one axis is the configuration of formats.
"""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from lpkernels.experiments.records import Place
from lpkernels.experiments.settings import Settings
from lpkernels.experiments.training.config import RunConfig, flatten
from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques.pareto import FormatSpace, TrainingRecipe
from lpkernels.techniques.pareto.spaces import Configuration

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SweepSpec"]

# Fields that a specification says in its own way.
_OWN = {"seed": "give seeds = [...] beside [base]", "name": "a run is called after its arm"}
# A sweep of more cells, each a folder, is a slip.
_MOST_CELLS = 100_000
#: The axis of a study of frontiers.
CONFIGURATION = "configuration"


def _seeds(seeds: Any) -> Any:
    """The list of seeds: of a number n those of 0..n-1."""
    if type(seeds) is int:
        _check_count(seeds)
    numbers = range(seeds) if type(seeds) is int else seeds
    if (
        not isinstance(numbers, Sequence)
        or not numbers
        or any(type(seed) is not int for seed in numbers)
    ):
        raise ValueError(f"expected a positive number or a list of numbers, got {seeds!r}")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"expected each once, got {seeds!r}")
    return list(numbers)


def settings_of(configuration: Configuration) -> dict[str, Any]:
    """The fields of a RunConfig that train as a configuration of formats says.

    Every tensor is rounded, under an assignment (`TrainingRecipe.assignment`).
    """
    recipe = TrainingRecipe(*configuration)
    masters = {name: str(fmt) for name, fmt in recipe.masters.items()}
    return {
        "tensors": str(recipe.low),
        "ends": str(recipe.high),
        "working": masters["weight"],
        "master": masters["master"],
        "opt_state": masters["state"],
        "opt_grad": masters["grad"],
        "loss_scale": recipe.loss_scale,
    }


@dataclass(frozen=True)
class Cell(Place):
    """One training run of a sweep."""

    config: RunConfig


class SweepSpec(Settings):
    """A specification; its fields may be given flat or in tables of their sections.

    name: the sweep's name in tables and pictures.
    compare: the arm that all others are compared with, seed by seed; "": the first.
    seeds: of each arm at each point of the axes; a number n means 0..n-1.
    base: fields of every run. `threads` is 1 unless it says otherwise, so that cells can share a
        machine: torch's float32 sums depend on the number of threads, which is thus part of a cell.
    arms: fields of each arm by the arm's name, instead of the base's; tables have them in this
        order. Without any there is one arm called "base".
    axes: values by field; the runs have all combinations.
    low, high: in place of axes, the formats of the configurations of a study of frontiers, as
        FormatSpace takes them, by name.
    chosen: the configurations in which an arm of a study is trained; an arm without an entry is
        trained in all.
    Raises:
        TypeError: a value of another type.
        ValueError: a name that means nothing, or a specification that makes no cell or one twice.

    >>> from lpkernels.experiments.sweeps.specification import SweepSpec
    >>> spec = SweepSpec(arms={"fp32": {}, "fp8": {"recipe": "fp8_wang2018"}}, seeds=3)
    >>> len(spec.cells())
    6
    """

    model_config = ConfigDict(validate_default=True)

    name: str = ""
    compare: str = ""
    seeds: Annotated[list[int], BeforeValidator(_seeds)] = Field([0])
    base: dict[str, Any] = Field(default_factory=dict)
    arms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    axes: dict[str, Any] = Field(default_factory=dict)
    low: list[str] = Field(default_factory=list)
    high: list[str] = Field(default_factory=list)
    chosen: dict[str, list[str]] = Field(default_factory=dict)

    @field_validator("base")
    @staticmethod
    def _base(base: dict[str, Any]) -> dict[str, Any]:
        return {"threads": 1, **_fields("[base]", base)}

    @field_validator("arms")
    @staticmethod
    def _arms(arms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        arms = arms or {"base": {}}
        return {arm: _fields(f"[arms.{arm}]", fields) for arm, fields in arms.items()}

    @field_validator("axes")
    @staticmethod
    def _axes(axes: dict[str, Any]) -> dict[str, list[Any]]:
        axes = _fields("[axes]", axes)
        for name, values in axes.items():
            if not isinstance(values, list) or not values:
                raise ValueError(f"{name}: expected a list of values, got {values!r}")
            if any(value in values[:i] for i, value in enumerate(values)):
                raise ValueError(f"{name}: expected different values, got {values!r}")
        return axes

    @model_validator(mode="after")
    def _whole(self) -> "Self":
        object.__setattr__(self, "compare", self.compare or next(iter(self.arms)))
        if self.compare not in self.arms:
            listed = nearest(self.compare, self.arms, "the specification lists all")
            raise ValueError(f"compare: expected one of the arms {listed}, got {self.compare!r}")
        for arm, fields in self.arms.items():
            both = sorted(fields.keys() & self.axes.keys())
            if both:
                raise ValueError(f"[arms.{arm}]: {', '.join(both)} is an axis too; leave out one")
        self._check_formats()
        # Of a study one configuration tells whether the others can be: there may be thousands.
        points = self.points()[: 1 if self.low else None]
        self._cells(itertools.product(self.seeds, points, self.arms))
        return self

    def _check_formats(self) -> None:
        formats = [name for name in ("low", "high") if getattr(self, name)]
        if not formats:
            if self.chosen:
                raise ValueError("chosen: belongs to low and high; give lists of formats too")
            return
        if len(formats) < 2 or self.axes:
            raise ValueError(
                f"expected low and high, lists of formats, and no axes; got {', '.join(formats)} "
                f"and {', '.join(self.axes) or 'no axes'}"
            )
        chosen = {name for names in self.chosen.values() for name in names}
        for name in sorted(chosen.difference(self.space.names)):
            listed = nearest(name, self.space.names, "they are low x high")
            raise ValueError(f"chosen: expected one of {listed}, got {name!r}")
        configured = settings_of(self.space[0]).keys()
        for where, fields in [("[base]", self.base), *self.arms.items()]:
            both = sorted(fields.keys() & configured)
            if both:
                raise ValueError(f"{where}: {', '.join(both)}: the configuration says it; omit it")

    @property
    def space(self) -> FormatSpace:
        """The configurations of a study; without a list of formats they are the paper's."""
        return FormatSpace(self.low, self.high) if self.low else FormatSpace.peppp()

    def points(self) -> list[dict[str, Any]]:
        """The combinations of the axes' values."""
        axes = {CONFIGURATION: list(self.space.names)} if self.low else self.axes
        _check_count(len(self.arms), *map(len, axes.values()), len(self.seeds))
        combinations = itertools.product(*axes.values())
        return [dict(zip(axes, values, strict=True)) for values in combinations]

    def cells(self) -> list[Cell]:
        """All cells, seed by seed, so that at any moment the finished cells compare all arms.

        Raises: TypeError, ValueError: a configuration that cannot be, or a cell that is there twice
            (under two names or not).
        """
        return self._cells(
            (seed, point, arm)
            for seed, point, arm in itertools.product(self.seeds, self.points(), self.arms)
            if arm not in self.chosen or point[CONFIGURATION] in self.chosen[arm]
        )

    def _cells(self, places: Iterable[tuple[int, dict[str, Any], str]]) -> list[Cell]:
        by_config: dict[RunConfig, Cell] = {}
        formats = {}
        if self.low:
            space = self.space
            formats = {n: settings_of(pair) for n, pair in zip(space.names, space, strict=True)}
        for seed, point, arm in places:
            values = formats[point[CONFIGURATION]] if self.low else point
            try:
                values = {**self.base, **self.arms[arm], **values}
                config = RunConfig.of(**values, seed=seed, name=arm)
            except (TypeError, ValueError) as error:
                words = ", ".join(f"{name} {value!r}" for name, value in point.items()) or "no axes"
                raise type(error)(f"arm {arm!r} ({words}): {error}") from error
            cell = Cell(arm, point, seed, config)
            same = by_config.setdefault(config.replace(name="run"), cell)
            if same is not cell:
                raise ValueError(f"the same cell twice: {same.label()}; and {cell.label()}")
        return list(by_config.values())


def read_spec(path: str | Path) -> SweepSpec:
    """The specification in the TOML file at `path`.

    Raises:
        FileNotFoundError: no such file.
        TypeError, ValueError: no TOML, or no specification.
    """
    try:
        import tomllib
    except ModuleNotFoundError:
        # Python 3.10
        import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"expected a specification (a TOML file) at {str(path)!r}")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected a specification in TOML: {error}") from error
    try:
        return SweepSpec(**tables)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from error


def _fields(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A table of fields, which may stand in tables of their sections, flat.

    Raises: ValueError: an unknown field, or one that a specification says in its own way.
    """
    try:
        flat = flatten(values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    for name in sorted(flat.keys() & _OWN.keys()):
        raise ValueError(f"{where}: {name}: {_OWN[name]}")
    # Tuples become lists, as in TOML.
    return {name: json.loads(json.dumps(value)) for name, value in flat.items()}


def _check_count(*counts: int) -> None:
    """Raises ValueError where the product of arms, values and seeds is too large."""
    if math.prod(counts) > _MOST_CELLS:
        raise ValueError(
            f"expected at most {_MOST_CELLS:,} cells, got {math.prod(counts):,}: arms by values of "
            "the axes by seeds"
        )
