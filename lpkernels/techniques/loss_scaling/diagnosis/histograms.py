"""The binary exponents of a tensor's elements, counted, and the rules that work on the counts: the
part that a format loses, the scale that fits, and the narrowest format. It needs no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import FloatFormat

#: A bin for each biased exponent of float32.
BINS = 256
_BIAS = 127
_SPECIAL = BINS - 1
# Half of float32's largest number in the binade of 1.
_TOP = 1 - 2.0**-24

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Histogram:
    """The number of elements with each exponent.

    counts: (256,) int64 by biased exponent of float32: [0] zeros and float32's subnormals, [e] the
        magnitudes in [2 ** (e - 127), 2 ** (e - 126)), [255] infinities and NaNs.
    zeros: how many of counts[0] are zeros. Where float32's subnormals lie is not known: they count
        as below 2 ** -126, and as below no smaller power.
    """

    counts: Counts
    zeros: int

    @classmethod
    def sum(cls, parts: Iterable[Histogram]) -> Histogram:
        """The histogram of all elements of all parts; it is empty if there is no part."""
        parts = list(parts)
        total = np.zeros(BINS, dtype=np.int64)
        for part in parts:
            total += part.counts
        return cls(total, sum(part.zeros for part in parts))

    @property
    def elements(self) -> int:
        return int(self.counts.sum())

    @property
    def nonfinite(self) -> int:
        return int(self.counts[_SPECIAL])

    @property
    def numbers(self) -> int:
        """The finite elements that are not zero: those that a format can lose."""
        return self.elements - self.zeros - self.nonfinite

    def below(self, exponent: int) -> int:
        """How many of the numbers have a magnitude below 2 ** exponent; see `zeros`."""
        tops = exponent + _BIAS
        return 0 if tops < 1 else int(self.counts[: min(tops, _SPECIAL)].sum()) - self.zeros

    def magnitude(self, low: int | None = None, high: int | None = None) -> float:
        """The sum of the magnitudes of the numbers from 2 ** low to below 2 ** high. Each number is
        taken as the middle of its bin; float32's subnormals are taken as 0."""
        first = 1 if low is None else min(max(low + _BIAS, 1), _SPECIAL)
        end = _SPECIAL if high is None else min(max(high + _BIAS, first), _SPECIAL)
        middles = np.ldexp(1.5, np.arange(first, end) - _BIAS)
        return float((self.counts[first:end] * middles).sum())

    @property
    def exponents(self) -> tuple[int, int] | None:
        """The exponents of the smallest and of the largest number; None where there is no number.
        -127 stands for the exponents of float32's subnormals."""
        pairs = self.to_pairs()
        return (pairs[0][0], pairs[-1][0]) if pairs else None

    def to_pairs(self) -> list[list[int]]:
        """[exponent, count] of the bins that are not empty. Zeros, infinities and NaN are left out;
        -127 stands for float32's subnormals."""
        present = self.counts[:_SPECIAL].copy()
        present[0] -= self.zeros
        return [[int(e) - _BIAS, int(present[e])] for e in np.flatnonzero(present)]

    @classmethod
    def from_pairs(cls, pairs: Sequence[Sequence[int]], zeros: int, nonfinite: int) -> Histogram:
        """The histogram of `to_pairs`."""
        counts = np.zeros(BINS, dtype=np.int64)
        for exponent, count in pairs:
            counts[exponent + _BIAS] += count
        counts[0] += zeros
        counts[_SPECIAL] = nonfinite
        return cls(counts, zeros)


#: The largest part of a tensor's magnitude that may be lost before a rule says no.
THRESHOLD = 0.01
#: Binades kept free above the largest gradient, beyond its own.
MARGIN = 1
# Under such exponents a scale and its inverse are normal numbers of float32, as LossScaler asks.
_MOST = 126

#: A tensor's histogram and the format that is to hold it.
InFormat = tuple[Histogram, FloatFormat]


def lost(histogram: Histogram, fmt: FloatFormat, scale: int = 0) -> tuple[float, float, float]:
    """Three parts of the numbers (finite and not zero) times 2 ** scale that `fmt` does not hold:
    numbers that underflow, numbers that overflow, and the magnitude of both.

    Numbers below the smallest value underflow: rounded to the nearest, those below half of it
    become zero, and the others the smallest value. Numbers in the binade of the largest value are
    held, though a few may round beyond it. The rules decide by the part of the sum of all
    magnitudes, because most numbers of a gradient can be so small that nothing depends on them.

    Reference: Micikevicius et al. 2017, arXiv 1710.03740, section 3.2, count the values below
        fp16's range, and find that in one network the smallest of these do not matter. Two things
        are ours: the share of the magnitude, and that shares leave out zeros (half of the gradients
        behind a ReLU are zeros, which no format loses).
    """
    numbers = histogram.numbers
    if not numbers:
        return 0.0, 0.0, 0.0
    low, high = smallest_exponent(fmt) - scale, fmt.emax + 1 - scale
    under, over = histogram.below(low), numbers - histogram.below(high)
    gone = histogram.magnitude(None, low) + histogram.magnitude(high, None)
    return under / numbers, over / numbers, gone / histogram.magnitude()


def smallest_exponent(fmt: FloatFormat) -> int:
    """The exponent of the smallest value of a format."""
    return fmt.emin - fmt.man_bits if fmt.subnormals else fmt.emin


def fitting_exponent(held: Sequence[InFormat], *, margin: int = MARGIN) -> int:
    """The largest exponent of a scale, from -126 to 126, under which no tensor leaves its format: a
    floor(log2(max / largest)) - margin; 0 without numbers.

    A histogram knows no more of the largest number than its binade, so the binade's top stands for
    it, and with margin=1 the scale is one or two binades below the scale for the number itself.

    Reference: Micikevicius et al. 2017, arXiv 1710.03740, section 3.2: any constant will do whose
        product with the largest gradient is below 65504. The formula and the margin are ours.
    """
    found = []
    for histogram, fmt in held:
        exponents, (most, e_max) = histogram.exponents, math.frexp(fmt.max)
        if exponents is not None:
            found.append(e_max - exponents[1] - 1 - (most < _TOP) - margin)
    return min(_MOST, max(-_MOST, min(found, default=0)))


def worst(held: Sequence[InFormat], scale: int = 0) -> float:
    """The part of its magnitude that the tensor loses that loses most at 2 ** scale."""
    return max((lost(histogram, fmt, scale)[2] for histogram, fmt in held), default=0.0)


def together(held: Sequence[InFormat], scale: int = 0) -> tuple[float, float]:
    """The parts of the numbers of all tensors that underflow and overflow at 2 ** scale."""
    numbers = max(1, sum(histogram.numbers for histogram, _ in held))
    losses = [(h.numbers / numbers, lost(h, fmt, scale)) for h, fmt in held]
    return sum(n * x[0] for n, x in losses), sum(n * x[1] for n, x in losses)


def enough(held: Sequence[InFormat], most: int, *, threshold: float = THRESHOLD) -> int | None:
    """The smallest exponent up to `most` at which no tensor loses more than `threshold` of its
    magnitude; None where there is none. It is looked for from 0 on or, where `most` is negative, at
    `most` itself.

    Of the scales that are enough, the smallest leaves the most room for gradients that grow.
    """
    scales = range(min(0, most), most + 1)
    return next((s for s in scales if worst(held, s) <= threshold), None)


def narrowest(
    histograms: Sequence[Histogram],
    candidates: Sequence[FloatFormat],
    *,
    scaled: bool,
    margin: int = MARGIN,
    threshold: float = THRESHOLD,
) -> tuple[FloatFormat, int, float] | None:
    """The format of fewest bits that loses at most `threshold` of the magnitude of every tensor,
    the exponent of its scale, and what the worst tensor loses; None where no format does.

    The scale is 0 unless `scaled`: then the smallest that is `enough`, up to `fitting_exponent`.
    Among formats of one width it takes the one with most mantissa bits, then the first. A format
    that does not saturate may lose nothing by overflow, because one infinity or NaN spoils
    everything that follows. The histogram tells which numbers are out of range. It tells nothing
    about precision: only training does.

    Reference: ours.
    """
    for fmt in sorted(candidates, key=lambda f: (f.bits, -f.man_bits)):
        held = [(histogram, fmt) for histogram in histograms]
        most = fitting_exponent(held, margin=margin) if scaled else 0
        scale = enough(held, most, threshold=threshold)
        if scale is None:
            continue
        if fmt.overflow == "saturate" or not together(held, scale)[1]:
            return fmt, scale, worst(held, scale)
    return None
