"""The configurations of a study: a product of formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, overload

import numpy as np

from lpkernels.arithmetic import Accumulator, as_accumulator
from lpkernels.formats import FloatFormat, Format, as_format
from lpkernels.formats.checks import set_fields
from lpkernels.schemas import line
from lpkernels.techniques import saving
from lpkernels.techniques.checks import Floats

Configuration = tuple[Format, Format] | tuple[Format, Format, Accumulator]

#: The kind of JSON that holds a FormatSpace.
SPACE = "format space"

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
