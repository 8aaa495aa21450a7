"""The specification of a sweep: a base configuration, named arms, axes over any field, and seeds.

A cell is one training run: an arm, a value of each axis, and a seed.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from lpkernels.experiments.settings import Settings
from lpkernels.experiments.training.config import RunConfig, flatten
from lpkernels.formats.elsewhere import nearest

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "SweepSpec",
]

# Fields that a specification says in its own way.
_OWN = {
    "seed": "give seeds = [...] beside [base]",
    "name": "a run is called after its arm",
}
# A sweep of more cells, each a folder, is a slip.
_MOST_CELLS = 100_000


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


#: The seeds of cells, given as a list or as the number n of 0..n-1.
Seeds = Annotated[list[int], BeforeValidator(_seeds)]
#: A limit for each try at a cell. No cell needs a longer one than a year.
Seconds = Annotated[float | None, Field(gt=0, le=31_536_000)]


@dataclass(frozen=True)
class Cell:
    """One training run of a sweep.

    axes: the value of each axis, in the order of the axes.
    """

    arm: str
    axes: tuple[tuple[str, Any], ...]
    seed: int
    config: RunConfig

    def label(self) -> str:
        """The cell in words."""
        return ", ".join([self.arm, *(f"{k} {v}" for k, v in self.axes), f"seed {self.seed}"])


class SweepSpec(Settings):
    """A specification; its fields may be given flat or in tables of their sections.

    name: the sweep's name in tables and pictures.
    compare: the arm that all others are compared with, seed by seed; "": the first.
    seeds: of each arm at each point of the axes; a number n means 0..n-1.
    cell_seconds: the longest that a try at a cell may take; None: any time. It is no part of a
        cell.
    base: fields of every run. `threads` is 1 unless it says otherwise, so that cells can share a
        machine: torch's float32 sums depend on the number of threads, which is thus part of a cell.
    arms: fields of each arm by the arm's name, instead of the base's; tables have them in this
        order. Without any there is one arm called "base".
    axes: values by field; the runs have all combinations.
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
    seeds: Seeds = Field([0])
    cell_seconds: Seconds = None
    base: dict[str, Any] = Field(default_factory=dict)
    arms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    axes: dict[str, Any] = Field(default_factory=dict)

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
            both = sorted(set(fields) & set(self.axes))
            if both:
                raise ValueError(f"[arms.{arm}]: {', '.join(both)} is an axis too; leave out one")
        self.cells()
        return self

    def cells(self) -> list[Cell]:
        """All cells, seed by seed, so that at any moment the finished cells compare all arms.

        Raises: TypeError, ValueError: a configuration that cannot be, or a cell that is there twice
            (under two names or not).
        """
        by_config: dict[RunConfig, Cell] = {}
        _check_count(len(self.arms), *map(len, self.axes.values()), len(self.seeds))
        values_of = itertools.product(*self.axes.values())
        points = [tuple(zip(self.axes, values, strict=True)) for values in values_of]
        for seed, point, arm in itertools.product(self.seeds, points, self.arms):
            values = {**self.base, **self.arms[arm], **dict(point)}
            try:
                config = RunConfig.of(**values, seed=seed, name=arm)
            except (TypeError, ValueError) as error:
                words = ", ".join(f"{name} {value!r}" for name, value in point) or "no axes"
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
    return read_toml(path, SweepSpec)


T = TypeVar("T")


def read_toml(path: str | Path, make: Callable[..., T]) -> T:
    """`make` of the tables of a TOML file; errors name the file, as in `read_spec`."""
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
        return make(**tables)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from error


def merged(specs: Sequence[SweepSpec]) -> SweepSpec:
    """One specification with the arms, values and seeds of all; other fields are the last one's.

    Raises: ValueError: they belong to different sweeps (`check_same_sweep`).
    """
    arms: dict[str, Any] = {}
    axes: dict[str, list[Any]] = {name: [] for name in specs[0].axes}
    seeds: list[int] = []
    for spec in specs:
        check_same_sweep(specs[0], spec)
        for arm, fields in spec.arms.items():
            if arms.setdefault(arm, fields) != fields:
                raise ValueError(
                    f"arm {arm!r} is another one there: {arms[arm]} there, {fields} here; give it "
                    "another name"
                )
        for name, values in spec.axes.items():
            axes[name] += [value for value in values if value not in axes[name]]
        seeds += [seed for seed in spec.seeds if seed not in seeds]
    return specs[-1].replace(arms=arms, axes=axes, seeds=sorted(seeds))


def check_same_sweep(former: SweepSpec, current: SweepSpec) -> None:
    """Raises ValueError unless both have one base and the same axes."""
    names = former.base.keys() | current.base.keys()
    other = sorted(k for k in names if former.base.get(k) != current.base.get(k))
    if other:
        was, now = ({k: spec.base.get(k) for k in other} for spec in (former, current))
        raise ValueError(f"another base makes another sweep: {was} there, {now} here")
    if set(former.axes) != set(current.axes):
        axes = [", ".join(spec.axes) or "none" for spec in (former, current)]
        raise ValueError(f"other axes make another sweep: {axes[0]} there, {axes[1]} here")


def flat_fields(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A table of fields, which may stand in tables of their sections, flat.

    Raises: ValueError: an unknown field.
    """
    try:
        return flatten(values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _fields(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    flat = flat_fields(where, values)
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
