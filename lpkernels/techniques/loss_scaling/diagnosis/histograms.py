"""The binary exponents of a tensor's elements, counted. Every rule here works on them. It needs no
torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: A bin for each biased exponent of float32.
BINS = 256
_BIAS = 127
_SPECIAL = BINS - 1
# The largest number of the binade of 1 in float32.
_TOP = 2 - 2.0**-23

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Histogram:
    """The number of elements with each exponent.

    counts: (256,) int64 by biased exponent of float32: [0] zeros and float32's subnormals, [e] the
        magnitudes in [2 ** (e - 127), 2 ** (e - 126)), [255] infinities and NaNs.
    zeros: how many of counts[0] are zeros. Where float32's subnormals lie is not known: they count
        as below 2 ** -126, and as below no smaller power.

    Raises: ValueError: not 256 counts, a negative one, or more zeros than counts[0].
    """

    counts: Counts
    zeros: int

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts, dtype=np.int64)
        if counts.shape != (BINS,):
            raise ValueError(
                f"Histogram: expected {BINS} counts by float32's exponent, got {counts.shape}"
            )
        if counts.min() < 0 or not 0 <= self.zeros <= counts[0]:
            raise ValueError(
                f"Histogram: expected counts of at least 0 and at most counts[0]={counts[0]} "
                f"zeros, got {self.zeros} zeros and a least count of {counts.min()}"
            )
        object.__setattr__(self, "counts", counts)

    @classmethod
    def of(cls, values: Any) -> Histogram:
        """The histogram of an array of numbers, as float32 holds them."""
        with np.errstate(over="ignore"):
            plain = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        exponents = (plain.view(np.uint32) >> 23) & _SPECIAL
        return cls(np.bincount(exponents, minlength=BINS), int((plain == 0).sum()))

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
        if tops < 1:
            return 0
        return int(self.counts[: min(tops, _SPECIAL)].sum()) - self.zeros

    def above(self, exponent: int) -> int:
        """How many of the numbers have a magnitude of at least 2 ** exponent."""
        return self.numbers - self.below(exponent)

    def magnitude(self, low: int | None = None, high: int | None = None) -> float:
        """The sum of the magnitudes of the numbers from 2 ** low to below 2 ** high. Each number is
        taken as the middle of its bin; float32's subnormals, each less than its smallest normal
        value, are taken as 0."""
        first = 1 if low is None else min(max(low + _BIAS, 1), _SPECIAL)
        end = _SPECIAL if high is None else min(max(high + _BIAS, first), _SPECIAL)
        middles = np.ldexp(1.5, np.arange(first, end) - _BIAS)
        return float((self.counts[first:end] * middles).sum())

    @property
    def exponents(self) -> tuple[int, int] | None:
        """The exponents of the smallest and of the largest number; None where there is no number.
        -127 stands for the exponents of float32's subnormals."""
        present = self.counts[:_SPECIAL].copy()
        present[0] -= self.zeros
        found = np.flatnonzero(present)
        return None if not found.size else (int(found[0]) - _BIAS, int(found[-1]) - _BIAS)

    @property
    def largest(self) -> float:
        """The largest magnitude that the top bin may hold, 2 ** (exponent + 1) less float32's last
        bit; 0 where there is no number."""
        found = self.exponents
        return 0.0 if found is None else _TOP * 2.0 ** found[1]

    def shifted(self, exponent: int) -> Histogram:
        """Every number times 2 ** exponent. A number that leaves float32's normal numbers stands in
        the first or the last of their bins."""
        if exponent == 0:
            return self
        moved = np.zeros(BINS, dtype=np.int64)
        at = np.clip(np.arange(1, _SPECIAL) + exponent, 1, _SPECIAL - 1)
        np.add.at(moved, at, self.counts[1:_SPECIAL])
        moved[[0, _SPECIAL]] += self.counts[[0, _SPECIAL]]
        return Histogram(moved, self.zeros)

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
