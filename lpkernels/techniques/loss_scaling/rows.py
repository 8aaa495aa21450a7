"""The rows of a diagnosis: a tensor of a layer, and its elements by binary exponent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import FloatFormat, Format, parse_format

GRADIENTS = ("grad_output", "wgrad_grad_output", "grad_input", "grad_weight")
#: All kinds of tensors, in the order of a report.
KINDS = ("input", "wgrad_input", "weight", "dgrad_weight", "bias", "output", *GRADIENTS)
#: The counts of `lp.count`: overflow, underflow, zeros, nonfinite; then a bin for each exponent.
EVENTS, WIDTH = 4, 260
# Of the 256 exponents of float32 the last one marks infinities and NaNs.
_BINS, _BIAS = 255, 127
#: The exponent of each bin.
EXPONENTS = np.arange(_BINS) - _BIAS

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Histogram:
    """The elements of a tensor by binary exponent.

    counts: (260,) int64, as `lp.count` makes them.
    """

    counts: Counts

    @classmethod
    def from_pairs(
        cls, pairs: Iterable[Sequence[int]], zeros: int = 0, nonfinite: int = 0, *events: int
    ) -> Histogram:
        """The histogram of `to_pairs`. events: overflow and underflow."""
        counts = np.zeros(WIDTH, dtype=np.int64)
        counts[: len(events)] = events
        counts[2 : EVENTS + 1] = zeros, nonfinite, zeros
        for exponent, count in pairs:
            counts[EVENTS + _BIAS + exponent] += count
        return cls(counts)

    def to_pairs(self) -> list[list[int]]:
        """[exponent, count] of each bin that is not empty; -127 stands for float32's subnormals."""
        return [[int(e) - _BIAS, int(self.bins[e])] for e in np.flatnonzero(self.bins)]

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.counts + other.counts)

    @cached_property
    def bins(self) -> Counts:
        """(255,) int64, by the biased exponent of float32. bins[e] counts the numbers (finite, not
        zero) whose magnitude lies in [2 ** (e - 127), 2 ** (e - 126)). bins[0] counts float32's
        subnormals: they are below 2 ** -126, and taken as below no smaller power."""
        bins = self.counts[EVENTS : EVENTS + _BINS].copy()
        bins[0] -= self.zeros
        return bins

    @property
    def zeros(self) -> int:
        return int(self.counts[2])

    @property
    def nonfinite(self) -> int:
        return int(self.counts[3])

    @property
    def numbers(self) -> int:
        """The count of the finite elements that are not zero: those that a format can lose."""
        return int(self.bins.sum())

    @property
    def elements(self) -> int:
        return self.numbers + self.zeros + self.nonfinite

    @property
    def exponents(self) -> tuple[int, int] | None:
        """The exponents of the smallest and of the largest number; None without a number."""
        pairs = self.to_pairs()
        return (pairs[0][0], pairs[-1][0]) if pairs else None


def smallest_exponent(fmt: FloatFormat) -> int:
    """The exponent of the smallest value of a format."""
    return fmt.emin - fmt.man_bits if fmt.subnormals else fmt.emin


@dataclass(frozen=True, eq=False)
class TensorRow:
    """The counts of one tensor of one layer, over all its calls.

    layer, kind, tensor: the tensor of the row. layer: the module's name, "" stands for its class;
        where the forward of a module with layers or other products computes a product itself, the
        module's name and the function's ("block.matmul"). kind: one of `KINDS`. tensor: torch's
        name of the argument where there are several of a kind ("query"), or the number of the
        product, from the second on, where a recipe rounds the tensor ("2"); else "".
    format: the one that the recipe, or the caller, gives the tensor.
    rounded: the format in which the layer's recipe rounds this tensor; None: it does not.
    calls: how many tensors were counted.
    histogram: of the elements as the quantizer gets them, before they are rounded, or, in a format
        of the caller's, as the layer takes and gives them: gradients times the loss scale, if there
        is one.
    unscaled: the histogram of the gradients without the loss scale; the same where there is none.
    """

    layer: str
    kind: str
    tensor: str
    format: Format
    rounded: Format | None
    calls: int
    histogram: Histogram
    unscaled: Histogram

    @property
    def is_gradient(self) -> bool:
        return self.kind in GRADIENTS

    @property
    def float_format(self) -> FloatFormat | None:
        """The format, if its range is its own. A format that takes its range from the tensor loses
        nothing that a histogram could tell."""
        return self.format if isinstance(self.format, FloatFormat) else None

    @property
    def name(self) -> str:
        return f"{self.kind} {self.tensor}".rstrip()

    @property
    def overflow(self) -> int:
        """How many elements the format rounds, to nearest even, beyond its largest value; 0 where
        its range is not its own."""
        return int(self.histogram.counts[0])

    @property
    def underflow(self) -> int:
        """How many elements the format rounds to zero, likewise."""
        return int(self.histogram.counts[1])

    @property
    def below_normal(self) -> float | None:
        """The part of the numbers (finite, not zero) below the format's smallest normal value; None
        where its range is not its own."""
        return self._part_below(lambda fmt: fmt.emin)

    @property
    def below_subnormal(self) -> float | None:
        """The part of the numbers below the format's smallest value: these underflow."""
        return self._part_below(smallest_exponent)

    def _part_below(self, limit: Callable[[FloatFormat], int]) -> float | None:
        if self.float_format is None:
            return None
        bins = self.histogram.bins[EXPONENTS < limit(self.float_format)]
        return int(bins.sum()) / max(1, self.histogram.numbers)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as records hold them."""
        exponents, unscaled = self.histogram.to_pairs(), self.unscaled.to_pairs()
        own = ("layer", "kind", "tensor", "calls", "overflow", "underflow")
        counts = ("elements", "zeros", "nonfinite")
        return {
            **{name: getattr(self, name) for name in own},
            "format": str(self.format),
            "rounded": None if self.rounded is None else str(self.rounded),
            **{name: getattr(self.histogram, name) for name in counts},
            "below_normal": self.below_normal,
            "below_subnormal": self.below_subnormal,
            "exponents": exponents,
            "unscaled": None if unscaled == exponents else unscaled,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TensorRow:
        """The row of `to_dict`."""
        events = [plain[name] for name in ("zeros", "nonfinite", "overflow", "underflow")]
        pairs, unscaled, rounded = (plain[name] for name in ("exponents", "unscaled", "rounded"))
        return cls(
            **{name: plain[name] for name in ("layer", "kind", "tensor", "calls")},
            format=parse_format(plain["format"]),
            rounded=None if rounded is None else parse_format(rounded),
            histogram=Histogram.from_pairs(pairs, *events),
            unscaled=Histogram.from_pairs(unscaled or pairs, *events),
        )


def merged(rows: Iterable[TensorRow]) -> tuple[TensorRow, ...]:
    """The rows of a report: rows of the same tensor and format are added up; the layers stand in
    the order of their first rows, the tensors of a layer in the order of `KINDS`."""
    sums: dict[tuple[Any, ...], TensorRow] = {}
    layers: dict[str, int] = {}
    for row in rows:
        layers.setdefault(row.layer, len(layers))
        key = row.layer, row.kind, row.tensor, row.format
        if key in sums:
            of = sums[key]
            counts = {x: getattr(of, x) + getattr(row, x) for x in ("histogram", "unscaled")}
            calls, rounded = of.calls + row.calls, of.rounded or row.rounded
            row = replace(of, calls=calls, rounded=rounded, **counts)
        sums[key] = row

    def place(row: TensorRow) -> tuple[int, int, int]:
        # Backward meets the products of a layer from the last to the first.
        product = int(row.tensor) if row.tensor.isdigit() else 0
        return layers[row.layer], KINDS.index(row.kind), product

    return tuple(sorted(sums.values(), key=place))


def _short(count: int) -> str:
    """A count in at most 5 characters."""
    for unit, name in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        # A count that would round to 1000 of a unit is 1 of the next unit.
        if count >= 0.9995 * unit and count >= 10_000:
            return f"{count / unit:.3g}{name}"
    return str(count)


def _percent(part: float | None) -> str:
    """A part in percent; a small part is not shown as none."""
    if part is None:
        return "-"
    return "0" if part == 0 else "<0.1%" if part < 0.0005 else f"{part:.1%}"


def _range(exponents: tuple[int, int] | None) -> str:
    if exponents is None:
        return "-"
    low, high = exponents
    return f"{'<-126' if low == -_BIAS else low}..{high}"


#: The columns of a report's table.
COLUMNS: dict[str, Callable[[TensorRow], str]] = {
    "layer": lambda row: row.layer,
    "tensor": lambda row: row.name,
    "format": lambda row: str(row.format),
    "count": lambda row: _short(row.histogram.elements),
    "zeros": lambda row: _percent(row.histogram.zeros / max(1, row.histogram.elements)),
    "< normal": lambda row: _percent(row.below_normal),
    "< least": lambda row: _percent(row.below_subnormal),
    "over": lambda row: "-" if row.float_format is None else _short(row.overflow),
    "inf NaN": lambda row: _short(row.histogram.nonfinite),
    "exponents": lambda row: _range(row.unscaled.exponents),
}
