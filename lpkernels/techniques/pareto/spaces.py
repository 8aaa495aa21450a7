"""The configurations of a study, a product of formats, and their measured errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product, zip_longest
from pathlib import Path
from typing import Any, overload

import numpy as np

from lpkernels.arithmetic import Accumulator, as_accumulator
from lpkernels.formats import FloatFormat, Format, as_format
from lpkernels.formats.checks import set_fields
from lpkernels.schemas import line
from lpkernels.techniques import checks, saving
from lpkernels.techniques.checks import Floats

Configuration = tuple[Format, Format] | tuple[Format, Format, Accumulator]

#: The kinds of JSON that hold a FormatSpace and an ErrorMatrix.
SPACE = "format space"
MATRIX = "error matrix"

# Exponent bits and mantissa bits of the paper's formats, in the order of its columns.
_PEPPP_LOW = tuple((e, m) for e in (3, 4, 5) for m in (1, 2, 3, 4) if (e, m) != (5, 4))
_PEPPP_HIGH = tuple((e, m) for e in (6, 7, 8) for m in (7, 9, 11))


@dataclass(frozen=True, init=False)
class FormatSpace:
    """Every (low, high) or (low, high, accumulator) of the given axes, the first one outermost.

    A network computes with values in the format `low` and keeps values in the format `high`. The
    i-th configuration is `space[i]`, and column i of an error matrix. ``str(space)`` is a text that
    :meth:`parse` reads back: the names on each axis, and " x " between axes.

    Args:
        low, high:    formats or their names.
        accumulators: Accumulators or their texts, a third axis; without them there is none.

    Raises:
        TypeError, ValueError: no format or no accumulator of that name; an axis without entries; an
            entry twice, also under two names.

    >>> from lpkernels.techniques.pareto import FormatSpace
    >>> space = FormatSpace(["e4m3", "e5m2"], ["bf16", "fp32"])
    >>> len(space), str(space)
    (4, 'e4m3 e5m2 x e8m7 e8m23')
    """

    low: tuple[Format, ...]
    high: tuple[Format, ...]
    accumulators: tuple[Accumulator, ...]

    def __init__(
        self,
        low: Sequence[Format | str],
        high: Sequence[Format | str],
        accumulators: Sequence[Accumulator | str] = (),
    ) -> None:
        for name, axis in (("low", low), ("high", high), ("accumulators", accumulators)):
            if isinstance(axis, str) or not isinstance(axis, Sequence):
                raise TypeError(f"FormatSpace: {name} must be a list, got {axis!r}")
        sums = [as_accumulator(acc) for acc in accumulators]
        set_fields(
            self,
            low=_once("low", [as_format(fmt) for fmt in low]),
            high=_once("high", [as_format(fmt) for fmt in high]),
            accumulators=_once("accumulators", sums) if sums else (),
        )

    @classmethod
    def peppp(cls) -> FormatSpace:
        """The paper's 99 configurations: 11 low formats of 5 to 9 bits, 9 high ones of 14 to 20.

        e3m1 .. e3m4, e4m1 .. e4m4, e5m1 .. e5m3, each with e6m7 .. e8m11, the low format outermost.
        All saturate ("e3m1_sat"): in three exponent bits, overflow to infinity would end training.
        Source: Yang, Wu, Chakraborty, Udell, De Sa 2021, "How low can we go: trading memory for
        error in low-precision training", and the code published with it.
        """
        low, high = (
            [FloatFormat(e, m, overflow="saturate") for e, m in axis]
            for axis in (_PEPPP_LOW, _PEPPP_HIGH)
        )
        return cls(low, high)

    @property
    def shape(self) -> tuple[int, ...]:
        """Entries of each axis: (low, high) or (low, high, accumulators)."""
        axes = (len(self.low), len(self.high), len(self.accumulators))
        return axes if self.accumulators else axes[:2]

    def __len__(self) -> int:
        return int(np.prod(self.shape))

    def __iter__(self) -> Iterator[Configuration]:
        return iter(self._configurations)

    @overload
    def __getitem__(self, index: int) -> Configuration: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Configuration, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        try:
            return self._configurations[index]
        except IndexError:
            raise IndexError(f"FormatSpace: index must be below {len(self)}, got {index}") from None

    def index(self, configuration: Sequence[Format | Accumulator | str]) -> int:
        """The number of a configuration, which is given as formats or as their names.

        Raises: ValueError: it is not in the space.
        """
        parts = tuple(configuration)
        if len(parts) == len(self.shape):
            formats = tuple(as_format(part) for part in parts[:2])  # type: ignore[arg-type]
            sums = tuple(as_accumulator(part) for part in parts[2:])
            if (formats + sums) in self._numbers:
                return self._numbers[formats + sums]
        raise ValueError(
            f"FormatSpace: {' '.join(map(str, parts))!r} is none of its {len(self)} configurations;"
            f" they are like {self.name(0)!r}"
        )

    def name(self, index: int) -> str:
        """The configuration as text: its parts with a space between."""
        return " ".join(map(str, self[index]))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all configurations, in their order."""
        return tuple(map(self.name, range(len(self))))

    @property
    def low_bits(self) -> Floats:
        """Bits per value of each configuration's low format."""
        return np.array([float(configuration[0].bits) for configuration in self])

    @property
    def high_bits(self) -> Floats:
        """Bits per value of each configuration's high format."""
        return np.array([float(configuration[1].bits) for configuration in self])

    def __str__(self) -> str:
        axes = [axis for axis in (self.low, self.high, self.accumulators) if axis]
        return " x ".join(" ".join(map(str, axis)) for axis in axes)

    @classmethod
    def parse(cls, text: str) -> FormatSpace:
        """The space of a text: the inverse of ``str(space)``.

        Raises: TypeError, ValueError: not such a text.
        """
        if not isinstance(text, str):
            raise TypeError(f"FormatSpace.parse: expected a str, got {text!r}")
        axes = [axis.split() for axis in text.split(" x ")]
        if len(axes) not in (2, 3):
            raise ValueError(
                "FormatSpace.parse: expected two or three axes such as 'e4m3 e5m2 x fp16 bf16', "
                f"got {text!r}"
            )
        return cls(*axes)

    def to_json(self) -> str:
        """A JSON object that :meth:`from_json` reads back."""
        axes = {
            "low": [str(fmt) for fmt in self.low],
            "high": [str(fmt) for fmt in self.high],
            "accumulators": [str(acc) for acc in self.accumulators],
        }
        return json.dumps({**line(SPACE), **axes})

    @classmethod
    def from_json(cls, text: str) -> FormatSpace:
        """The space of `to_json`.

        Raises: ValueError: not such an object, or one of another schema.
        """
        where = "FormatSpace.from_json"
        found = saving.parsed(text, where, SPACE, "a format space", "to_json")
        return cls(found["low"], found["high"], found["accumulators"])

    @cached_property
    def _configurations(self) -> tuple[Configuration, ...]:
        axes = [axis for axis in (self.low, self.high, self.accumulators) if axis]
        return tuple(product(*axes))  # type: ignore[arg-type]

    @cached_property
    def _numbers(self) -> dict[Any, int]:
        return {configuration: i for i, configuration in enumerate(self._configurations)}


def _once(name: str, entries: Sequence[Any]) -> tuple[Any, ...]:
    if not entries:
        raise ValueError(f"FormatSpace: {name} must have at least one entry, got none")
    twice = [entry for i, entry in enumerate(entries) if entry in entries[:i]]
    if twice:
        raise ValueError(f"FormatSpace: {name} has {twice[0]} twice; give each entry once")
    return tuple(entries)


@dataclass(frozen=True)
class ErrorMatrix:
    """Errors of tasks x configurations x seeds.

    Args:
        space: the columns: the FormatSpace of their configurations, or a list of their names. A
            matrix of names has ``space`` None, and needs `memory`.
        tasks: names, each once.
        errors: (tasks, configurations, seeds), or without seeds; NaN where nothing was measured.
        memory: (tasks, configurations), or (configurations,) for all tasks, above zero, in any
            unit; None: not known here. `training_memory` computes it for formats.

    Attributes:
        names: of the configurations, one for each column.

    Raises:
        TypeError, ValueError: another shape, an infinite error, a name twice, a memory that is NaN,
            infinite or not above zero, names without memory.

    >>> from lpkernels.techniques.pareto import ErrorMatrix
    >>> matrix = ErrorMatrix(["fp8", "fp16"], ["task"], [[0.4, 0.3]], memory=[1.0, 2.0])
    >>> matrix.names
    ('fp8', 'fp16')
    """

    space: FormatSpace | None
    tasks: tuple[str, ...]
    errors: Floats
    memory: Floats | None
    names: tuple[str, ...]

    def __init__(
        self,
        space: FormatSpace | Sequence[str],
        tasks: Sequence[str],
        errors: Any,
        memory: Any = None,
    ) -> None:
        names: Sequence[str] = space.names if isinstance(space, FormatSpace) else space
        if not isinstance(names, list | tuple):
            raise TypeError(
                f"ErrorMatrix: space must be a FormatSpace or a list of names, got {space!r}"
            )
        names = names_of("ErrorMatrix: space", names)
        tasks = names_of("ErrorMatrix: tasks", tasks)
        e = checks.numbers("ErrorMatrix: errors", errors, 3 if np.ndim(errors) == 3 else 2)
        e = e if e.ndim == 3 else e[:, :, None]
        if e.shape[:2] != (len(tasks), len(names)):
            raise ValueError(
                f"ErrorMatrix: errors must be ({len(tasks)} tasks, {len(names)} configurations, "
                f"seeds), got {e.shape}"
            )
        if np.isinf(e).any():
            raise ValueError("ErrorMatrix: errors must be finite, or NaN where missing; got inf")
        e.flags.writeable = False
        formats = space if isinstance(space, FormatSpace) else None
        if formats is None and memory is None:
            raise ValueError("ErrorMatrix: memory must be given where columns are only names")
        of_each = None if memory is None else _memory(memory, e.shape[:2])
        set_fields(self, space=formats, tasks=tasks, errors=e, memory=of_each, names=names)

    @property
    def mean(self) -> Floats:
        """(tasks, configurations): over the seeds that are there, NaN where none is."""
        return mean_over_seeds(self.errors)

    def check_columns(self, label: str, space: FormatSpace) -> None:
        """Raises ValueError unless its columns are the configurations of the space, in their order;
        columns that are only names must be called as ``space.names``. label: begins the error."""
        for i, (own, wanted) in enumerate(zip_longest(self.names, space.names)):
            if own != wanted:
                own, wanted = ("missing" if each is None else repr(each) for each in (own, wanted))
                raise ValueError(
                    f"{label}: its errors are of other configurations: column {i} is {own}, "
                    f"expected {wanted}"
                )

    def save(self, path: str | Path) -> Path:
        """Writes one JSON object, with null for NaN: its schema, space or names, tasks, errors and
        memory."""
        errors = [
            [[None if np.isnan(error) else float(error) for error in cell] for cell in row]
            for row in self.errors
        ]
        space = self.space and {"space": json.loads(self.space.to_json())}
        memory = {} if self.memory is None else {"memory": self.memory.tolist()}
        found = {**line(MATRIX), **(space or {"names": list(self.names)})}
        return saving.write(path, {**found, "tasks": list(self.tasks), "errors": errors, **memory})

    @classmethod
    def load(cls, path: str | Path, space: FormatSpace | None = None) -> ErrorMatrix:
        """The matrix of a file.

        Args:
            space: the space whose configurations are meant; columns that are only names must be
                called as these. None: whatever the columns are.

        Raises:
            FileNotFoundError: no such file.
            ValueError: not an error matrix, one of another schema, or of other configurations.
        """
        found = saving.read(path, MATRIX, "an error matrix", "ErrorMatrix.save")
        try:
            formats = found.get("space")
            columns = FormatSpace.from_json(json.dumps(formats)) if formats else found["names"]
            errors = np.array(found["errors"], dtype=np.float64)
            matrix = cls(columns, found["tasks"], errors, found.get("memory"))
        except (KeyError, TypeError, ValueError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"{path}: expected an error matrix, as ErrorMatrix.save writes it: {what}"
            ) from error
        if space is None:
            return matrix
        matrix.check_columns(str(path), space)
        return cls(space, matrix.tasks, matrix.errors, matrix.memory)


def _memory(memory: Any, shape: tuple[int, int]) -> Floats:
    found = checks.positive("ErrorMatrix: memory", memory)
    if found.shape not in (shape, shape[1:]):
        raise ValueError(f"ErrorMatrix: memory must be {shape} or {shape[1:]}, got {found.shape}")
    return np.broadcast_to(found, shape)


def names_of(label: str, names: Sequence[str]) -> tuple[str, ...]:
    """Names, each once. label: begins the error.

    Raises: TypeError, ValueError: no list of texts, an empty text, a name twice.
    """
    found = tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"{label} must be a list of names, got {names!r}")
    for i, name in enumerate(found):
        if not name or name in found[:i]:
            what = f"{name!r} twice" if name else f"an empty one at {i}"
            raise ValueError(f"{label}: each must have a name of its own, got {what}")
    return found


def mean_over_seeds(errors: Floats) -> Floats:
    """The mean over the last axis of the errors that are there; NaN where none is."""
    there = (~np.isnan(errors)).sum(axis=-1)
    return np.where(there > 0, np.nansum(errors, axis=-1) / np.maximum(there, 1), np.nan)
