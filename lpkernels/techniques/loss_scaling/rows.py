"""The rows of a diagnosis, and the loss scale that follows from exponents alone.

Source: Micikevicius et al. 2017, "Mixed precision training", arXiv 1710.03740, section 3.2. They
count the values below fp16's range, and find that in one network the smallest of these do not
matter. Differs: the rules are ours, which decide by the lost part of a tensor's magnitude and leave
zeros out: half of the gradients behind a ReLU are zeros, which no format loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import as_quantizer
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

# The part of the sum of a tensor's magnitudes that may be lost.
_TOLERANCE = 0.01
# A sum of magnitudes takes a number as the middle of its bin, and float32's subnormals as 0.
_MIDDLES = np.where(EXPONENTS > EXPONENTS[0], np.ldexp(1.5, EXPONENTS), 0.0)
# Under such exponents a scale and its inverse are normal numbers of float32, as LossScaler asks.
_MOST = 126
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
        """(255,) int64: bins[e] counts the numbers (finite, not zero) whose magnitude lies in
        [2 ** (e - 127), 2 ** (e - 126)), bins[0] float32's subnormals."""
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
        """The count of the finite elements that are not zero."""
        return int(self.bins.sum())

    @property
    def elements(self) -> int:
        return self.numbers + self.zeros + self.nonfinite

    def part_below(self, exponent: int) -> float:
        """The part of the numbers below 2 ** exponent."""
        return int(self.bins[EXPONENTS < exponent].sum()) / max(1, self.numbers)

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

    layer: the module's name, or its class's where it has none; for a product that the forward of a
        module computes itself, the module's name and the function's ("block.matmul").
    kind: one of `KINDS`.  tensor: torch's name of the argument where there are several of a kind
        ("query"), or the number of the product, from the second on, where a recipe rounds the
        tensor ("2"); else "".
    format: the one that the recipe, or the caller, gives the tensor.
    rounded: the format in which the layer's recipe rounds this tensor; None: it does not.
    calls: how many tensors were counted.
    histogram: of the elements before they are rounded, gradients times the loss scale.
    unscaled: the histogram of the gradients without the loss scale.
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
        """The format, if its range is its own and not the tensor's; else None."""
        return self.format if isinstance(self.format, FloatFormat) else None

    @property
    def name(self) -> str:
        return f"{self.kind} {self.tensor}".rstrip()

    @property
    def overflow(self) -> int:
        """How many elements the format rounds, to nearest even, beyond its largest value; 0 without
        a `float_format`."""
        return int(self.histogram.counts[0])

    @property
    def underflow(self) -> int:
        """How many elements the format rounds to zero, likewise."""
        return int(self.histogram.counts[1])

    @property
    def below_normal(self) -> float | None:
        """The part of the numbers (finite, not zero) below the format's smallest normal value; None
        without a `float_format`."""
        fmt = self.float_format
        return None if fmt is None else self.histogram.part_below(fmt.emin)

    @property
    def below_subnormal(self) -> float | None:
        """The same of the format's smallest value."""
        fmt = self.float_format
        return None if fmt is None else self.histogram.part_below(smallest_exponent(fmt))

    def __add__(self, other: TensorRow) -> TensorRow:
        """The counts of both rows, which are of one tensor and format."""
        return replace(
            self,
            rounded=self.rounded or other.rounded,
            calls=self.calls + other.calls,
            histogram=self.histogram + other.histogram,
            unscaled=self.unscaled + other.unscaled,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as records hold them."""
        exponents, unscaled = self.histogram.to_pairs(), self.unscaled.to_pairs()
        own = ("layer", "kind", "tensor", "calls", "overflow", "underflow")
        return {
            **{name: getattr(self, name) for name in own},
            "format": str(self.format),
            "rounded": None if self.rounded is None else str(self.rounded),
            **{n: getattr(self.histogram, n) for n in ("elements", "zeros", "nonfinite")},
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
    """Rows of the same tensor and format added up; layers in the order of their first rows, the
    tensors of a layer in the order of `KINDS`."""
    sums: dict[tuple[Any, ...], TensorRow] = {}
    layers: dict[str, int] = {}
    for row in rows:
        layers.setdefault(row.layer, len(layers))
        key = row.layer, row.kind, row.tensor, row.format
        sums[key] = sums[key] + row if key in sums else row

    def place(row: TensorRow) -> tuple[int, int, int]:
        # Backward meets the products of a layer from the last to the first.
        product = int(row.tensor) if row.tensor.isdigit() else 0
        return layers[row.layer], KINDS.index(row.kind), product

    return tuple(sorted(sums.values(), key=place))


def _short(count: int) -> str:
    return str(count) if count < 10**6 else f"{count:.2e}"


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


def float_format(label: str, value: Any) -> FloatFormat:
    """The format of a value whose range is the same for all tensors.

    Raises: TypeError, ValueError: there is no such format, or it has no exponent.
    """
    try:
        fmt = as_quantizer(value).fmt
    except (TypeError, ValueError) as error:
        raise type(error)(f"{label}: {error}") from error
    if not isinstance(fmt, FloatFormat):
        raise ValueError(
            f"{label}: expected a format with an exponent, whose range is the same for all "
            f"tensors, got {fmt}; a FloatFormat such as fp16 or e5m2, or 'recipe'"
        )
    return fmt


class ScaleAdvice(NamedTuple):
    """A static scale of the loss; ``str`` of it says what the gradients lose with and without it.

    scale: the largest safe scale, at which no tensor leaves its format: 2 ** floor(log2(max /
        largest gradient)) less one to two binades; None: no gradient with a format holds a number.
    least: the smallest scale at which no tensor loses more than 1% of its sum of |g|; None: no
        scale up to `scale` is enough, or some gradients are unseen.
    unseen: a sentence on gradients that hold no number because one before them underflows, or hold
        infinities or NaN; "": there are none.
    text: all lines.
    """

    scale: float | None = None
    least: float | None = None
    unseen: str = ""
    text: str = "no loss scale: no gradient with a format holds a number"

    def __str__(self) -> str:
        return self.text


class InFormats:
    """Tensors by binary exponent, each with the format that is to hold it.

    Numbers below the smallest value underflow, numbers above the binade of the largest overflow.
    """

    def __init__(self, tensors: Sequence[tuple[Histogram, FloatFormat]]) -> None:
        self.formats = [fmt for _, fmt in tensors]
        self._bins = np.stack([histogram.bins for histogram, _ in tensors])
        self._low = np.array([[smallest_exponent(fmt)] for fmt in self.formats])
        self._high = np.array([[fmt.emax + 1] for fmt in self.formats])

    def lost(
        self, scale: int = 0, *, overflow: bool = True
    ) -> tuple[float, float, NDArray[np.float64]]:
        """What is lost times 2 ** scale: the parts of all numbers that underflow and overflow, and
        the part of each tensor's magnitude, without overflow if that is False."""
        under, over = EXPONENTS < self._low - scale, EXPONENTS >= self._high - scale
        shares = [self._bins[beyond].sum() / max(1, self._bins.sum()) for beyond in (under, over)]
        magnitudes = self._bins * _MIDDLES
        losses = np.where(under | (over & overflow), magnitudes, 0.0).sum(axis=1)
        totals = magnitudes.sum(axis=1)
        return *shares, losses / np.where(totals, totals, 1.0)

    def fitting(self) -> int:
        """The exponent of `ScaleAdvice.scale`, from -126 to 126; 0 without numbers.

        The top of the largest number's binade, float32's largest number there, stands for the
        number, and one more binade stays free.
        """
        exponents = []
        for fmt, bins in zip(self.formats, self._bins, strict=True):
            most, exponent = math.frexp(fmt.max)
            if bins.any():
                largest = int(EXPONENTS[bins > 0][-1])
                exponents.append(exponent - largest - 2 - (most < 1 - 2.0**-24))
        return min(_MOST, max(-_MOST, min(exponents, default=0)))

    def enough(self, most: int) -> int | None:
        """The smallest exponent of 0 to `most`, or `most` if it is negative, at which no tensor
        loses more than the tolerance; None where there is none."""
        scales = range(min(0, most), most + 1)
        return next((s for s in scales if self.lost(s)[2].max() <= _TOLERANCE), None)


def scale_advice(rows: Iterable[TensorRow]) -> ScaleAdvice:
    """The scale for the gradients among the rows, in their own formats."""
    gradients = [row for row in rows if row.is_gradient and row.float_format]
    with_numbers = [row for row in gradients if row.unscaled.numbers]
    if not with_numbers:
        return ScaleAdvice()
    pairs: list[Any] = [(row.unscaled, row.format) for row in with_numbers]
    tensors = InFormats(pairs)
    names = ", ".join(dict.fromkeys(map(str, tensors.formats)))
    unseen, scale = _unseen(gradients), tensors.fitting()
    if unseen:
        text = f"no loss scale for gradients in {names}: {unseen}"
        return ScaleAdvice(2.0**scale, None, unseen, text)
    exponent = tensors.enough(scale)
    least = None if exponent is None else 2.0**exponent
    smallest = "none" if least is None else f"{least:.17g} the smallest"
    (under, over, without), (under_scaled, _, parts) = tensors.lost(), tensors.lost(scale)
    lines = [
        f"loss scale for gradients in {names}: {2.0**scale:.17g} is the largest safe one, "
        f"{smallest} that loses at most {_TOLERANCE:.0%} of sum |g|",
        f"  underflow: {under_scaled:.2%} of the gradients, and of the worst tensor "
        f"{parts.max():.2%} of its magnitude",
        f"  without a scale: {under:.2%}, and {without.max():.2%}"
        + (f"; {over:.2%} overflow" if over else ""),
    ]
    rows_and_parts = zip(with_numbers, parts, strict=True)
    layers = dict.fromkeys(row.layer for row, part in rows_and_parts if part > _TOLERANCE)
    if layers:
        lines.append(
            f"  no one scale fits: at this one {', '.join(layers)} underflow, larger ones overflow"
        )
    return ScaleAdvice(2.0**scale, least, "", "\n".join(lines))


def _unseen(gradients: Sequence[TensorRow]) -> str:
    """A sentence on the gradients that a diagnosis cannot see, "" where all were seen.

    A tensor is empty where it holds no number while another loses more than 1% to underflow:
    without these zeros it might hold numbers. It is infinite where more than 1% of its elements
    that are not zero are infinities or NaN: a tensor before it overflowed.
    """
    histograms = [row.histogram for row in gradients]
    rounded = [(x.histogram, x.rounded) for x in gradients if isinstance(x.rounded, FloatFormat)]
    infinite = sum(h.nonfinite > _TOLERANCE * max(1, h.elements - h.zeros) for h in histograms)
    underflows = rounded and InFormats(rounded).lost(overflow=False)[2].max() > _TOLERANCE
    empty = sum(0 < h.elements == h.zeros for h in histograms) if underflows else 0
    counts = [(empty, "no number"), (infinite, "infinities or NaN")]
    texts = [f"{n} of {len(gradients)} tensors hold {kind}" for n, kind in counts if n]
    return f"{' and '.join(texts)}: diagnose the model before convert" if texts else ""
