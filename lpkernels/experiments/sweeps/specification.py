"""The specification of a sweep: a base configuration, named arms, axes over any field, and seeds.

A cell is one training run: an arm, a value of each axis, and a seed.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from lpkernels.experiments.settings import unknown_field
from lpkernels.experiments.training.config import RunConfig, flatten
from lpkernels.formats.elsewhere import nearest

__all__ = ["SweepSpec", "read_spec"]

# Fields that a specification says in its own way.
_OWN = {
    "seed": "give seeds = [...] beside [base]",
    "name": "a run is called after its arm",
}
# A sweep of more cells, each a folder, is a slip.
_MOST_CELLS = 100_000
# No cell needs a longer limit: a year.
_MOST_SECONDS = 31_536_000
_KEYS = ("name", "seeds", "compare", "cell_seconds", "base", "arms", "axes")


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


@dataclass(frozen=True)
class SweepSpec:
    """A specification; its fields may be given flat or in tables of their sections.

    base: fields of every run. `threads` is 1 unless it says otherwise, so that cells can share a
        machine: torch's float32 sums depend on the number of threads, which is thus part of a cell.
    arms: fields of each arm by the arm's name, instead of the base's; tables have them in this
        order.
        None: one arm called "base".
    axes: values by field; the runs have all combinations.
    seeds: of each arm at each point of the axes; a number n means 0..n-1.
    name: the sweep's name in tables and pictures.
    compare: the arm that all others are compared with, seed by seed; "": the first.
    cell_seconds: the longest that a try at a cell may take; None: any time. It is no part of a
        cell.
    Raises:
        TypeError: a value of another type.
        ValueError: a name that means nothing, or a specification that makes no cell or one twice.

    >>> from lpkernels.experiments.sweeps.specification import SweepSpec
    >>> spec = SweepSpec(arms={"fp32": {}, "fp8": {"recipe": "fp8_wang2018"}}, seeds=3)
    >>> len(spec.cells())
    6
    """

    base: Mapping[str, Any] = field(default_factory=dict)
    arms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    seeds: int | Sequence[int] = 1
    name: str = ""
    compare: str = ""
    cell_seconds: float | None = None

    def __post_init__(self) -> None:
        fix = object.__setattr__
        fix(self, "base", {"threads": 1, **_fields("[base]", self.base)})
        arms = self.arms or {"base": {}}
        fix(self, "arms", {arm: _fields(f"[arms.{arm}]", arms[arm]) for arm in arms})
        fix(self, "axes", _axes(self.axes))
        fix(self, "seeds", _seeds(self.seeds))
        _check_seconds(self.cell_seconds)
        fix(self, "compare", self.compare or next(iter(self.arms)))
        if self.compare not in self.arms:
            listed = nearest(self.compare, self.arms, "the specification lists all")
            raise ValueError(f"compare: expected one of the arms {listed}, got {self.compare!r}")
        for arm, fields in self.arms.items():
            both = sorted(set(fields) & set(self.axes))
            if both:
                raise ValueError(f"[arms.{arm}]: {', '.join(both)} is an axis too; leave out one")
        self.cells()

    def cells(self) -> list[Cell]:
        """All cells, seed by seed, so that at any moment the finished cells compare all arms.

        Raises: TypeError, ValueError: a configuration that cannot be, or a cell that is there twice
            (under two names or not).
        """
        found: dict[RunConfig, Cell] = {}
        _check_count(len(self.arms), *map(len, self.axes.values()), len(_seeds(self.seeds)))
        values_of = itertools.product(*self.axes.values())
        points = [tuple(zip(self.axes, values, strict=True)) for values in values_of]
        for seed, point, arm in itertools.product(_seeds(self.seeds), points, self.arms):
            values = {**self.base, **self.arms[arm], **dict(point)}
            try:
                config = RunConfig.of(**values, seed=seed, name=arm)
            except (TypeError, ValueError) as error:
                words = ", ".join(f"{name} {value!r}" for name, value in point) or "no axes"
                raise type(error)(f"arm {arm!r} ({words}): {error}") from error
            cell = Cell(arm, point, seed, config)
            same = found.setdefault(config.replace(name="run"), cell)
            if same is not cell:
                raise ValueError(f"the same cell twice: {same.label()}; and {cell.label()}")
        return list(found.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON holds them."""
        return {
            "name": self.name,
            "compare": self.compare,
            "seeds": list(_seeds(self.seeds)),
            "cell_seconds": self.cell_seconds,
            "base": dict(self.base),
            "arms": {arm: dict(fields) for arm, fields in self.arms.items()},
            "axes": {name: list(values) for name, values in self.axes.items()},
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "SweepSpec":
        """The inverse of `to_dict`; it reads a TOML file's values too.

        Raises: TypeError, ValueError: as the constructor; a key that no specification has.
        """
        check_tables(values, _KEYS, ("base", "arms", "axes"))
        return SweepSpec(**values)


def check_tables(values: Mapping[str, Any], keys: Sequence[str], tables: Sequence[str]) -> None:
    """Raises ValueError for a key that no specification has, TypeError for a table that is none."""
    others = sorted(set(values) - set(keys))
    if others:
        raise unknown_field("specification", others[0], list(keys))
    for key in tables:
        if not isinstance(values.get(key, {}), Mapping):
            raise TypeError(f"specification: {key}: expected a table [{key}]")


def read_spec(path: str | Path) -> SweepSpec:
    """The specification in the TOML file at `path`.

    Raises:
        FileNotFoundError: no such file.
        TypeError, ValueError: no TOML, or no specification.
    """
    return read_toml(path, SweepSpec.from_dict)


T = TypeVar("T")


def read_toml(path: str | Path, make: Callable[[Mapping[str, Any]], T]) -> T:
    """The result of `make` for the tables of a TOML file; errors name the file, as in
    `read_spec`."""
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
        return make(tables)
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
        seeds += [seed for seed in _seeds(spec.seeds) if seed not in seeds]
    return replace(specs[-1], arms=arms, axes=axes, seeds=sorted(seeds))


def check_same_sweep(there: SweepSpec, here: SweepSpec) -> None:
    """Raises ValueError unless both have one base and the same axes."""
    names = there.base.keys() | here.base.keys()
    other = sorted(k for k in names if there.base.get(k) != here.base.get(k))
    if other:
        was, now = ({k: spec.base.get(k) for k in other} for spec in (there, here))
        raise ValueError(f"another base makes another sweep: {was} there, {now} here")
    if set(there.axes) != set(here.axes):
        axes = [", ".join(spec.axes) or "none" for spec in (there, here)]
        raise ValueError(f"other axes make another sweep: {axes[0]} there, {axes[1]} here")


def flat_fields(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A table of fields, which may stand in tables of their sections, flat.

    Raises: TypeError, ValueError: no table, an unknown field.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{where}: expected a table of fields, got {values!r}")
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


def _axes(axes: Mapping[str, Any]) -> dict[str, list[Any]]:
    found = _fields("[axes]", axes)
    for name, values in found.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"[axes]: {name}: expected a list of values, got {values!r}")
        if any(value in values[:i] for i, value in enumerate(values)):
            raise ValueError(f"[axes]: {name}: expected different values, got {values!r}")
    return found


def _check_count(*counts: int) -> None:
    """Raises ValueError where the product of arms, values and seeds is too large."""
    if math.prod(counts) > _MOST_CELLS:
        raise ValueError(
            f"expected at most {_MOST_CELLS:,} cells, got {math.prod(counts):,}: arms by values of "
            "the axes by seeds"
        )


def _check_seconds(seconds: float | None) -> None:
    if seconds is None:
        return
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 < seconds <= _MOST_SECONDS:
        raise ValueError(
            f"cell_seconds: expected a number above 0, at most {_MOST_SECONDS:,}, got {seconds!r}"
        )


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, int):
        _check_count(seeds)
    found = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if isinstance(seeds, bool) or not found or any(type(seed) is not int for seed in found):
        raise ValueError(f"seeds: expected a positive number or a list of numbers, got {seeds!r}")
    if len(set(found)) < len(found):
        raise ValueError(f"seeds: expected each once, got {seeds!r}")
    return found
