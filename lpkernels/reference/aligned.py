"""Sums by blocks, whose products are cut to a common place, as in tensor cores: many outputs at
once.

docs/contract.md has the rules, exact_sums.py the same one output at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import FloatFormat
from lpkernels.reference.orders import Present, Rounds, mask
from lpkernels.reference.values import Float64

Exponents = NDArray[np.int32]
# A product, which outputs have it, and its exponent: with operands that of its factors together.
Term = tuple[Float64, Present, Exponents]

# _ABSENT is the exponent of a zero, an infinity and NaN: added to any other exponent it stays below
# _NONE.
_ABSENT = -(1 << 20)
_NONE = _ABSENT // 2
# Below the exponent of every float64.
_LEAST = -(1 << 11)


def exponents_of(x: Float64, fmt: FloatFormat) -> Exponents:
    """`exponents_from` the least exponent of a normal value of fmt.

    `Aligned` aligns a product by the sum of its two factors' exponents.
    """
    return exponents_from(x, fmt.emin)


def exponents_from(x: Float64, least: int) -> Exponents:
    """floor(log2 |x|), at least `least`; far below that where x is zero or not finite."""
    counts = (x != 0) & np.isfinite(x)
    exponent = np.maximum(np.frexp(np.where(counts, x, 1.0))[1] - 1, least)
    return np.where(counts, exponent, _ABSENT).astype(np.int32)


class Aligned:
    """total = round(total + the products of a block), all cut to a common place first.

    With operands the blocks of a run take turns in pairs of positions, and every zero is +0.
    """

    def __init__(self, rounds: Rounds, shape: tuple[int, ...]):
        self.rounds, self.shape, self.acc = rounds, shape, rounds.acc
        fmt, by_operands = self.acc.fmt, self.acc.operands is not None
        self.least = fmt.emin if by_operands and isinstance(fmt, FloatFormat) else _LEAST
        self.run = self.acc.interleaved * (self.acc.block or 1)
        self.total: Float64 = np.zeros(shape)
        self.terms: list[Term] = []
        self.first = 0

    def push(
        self, product: Float64, present: Present, k: int, exponents: Exponents | None = None
    ) -> None:
        if not self.terms:
            self.first = k
        if exponents is None:
            exponents = exponents_from(product, _LEAST)
        self.terms.append((product, present, exponents))
        if len(self.terms) == self.run:
            self._close_run()

    def take(self) -> Float64:
        self._close_run()
        total, self.total = self.total, np.zeros(self.shape)
        return total

    def _close_run(self) -> None:
        turns = self.acc.interleaved
        for turn in range(turns):
            mine = [term for i, term in enumerate(self.terms) if i // 2 % turns == turn]
            here = np.zeros((), dtype=bool)
            for _, present, _ in mine:
                here = here | mask(present)
            if here.any():
                total = self.rounds.round(self._sum(mine), self.first + 2 * turn)
                if self.acc.operands is not None:
                    # Also a zero that a tiny sum was rounded to.
                    total = np.where(total == 0, 0.0, total)
                self.total = np.where(here, total, self.total)
        self.terms = []

    def _sum(self, terms: list[Term]) -> Float64:
        """Exact: at most 257 integers of 43 bits. -0 adds nothing, not even a sign."""
        place = self._exponent(terms) - (self.acc.aligned_bits or 0)
        total, negative = np.trunc(np.ldexp(self.total, -place)), np.signbit(self.total)
        with np.errstate(invalid="ignore"):
            for product, present, _ in terms:
                cut = np.trunc(np.ldexp(product, -place))
                total = total + np.where(mask(present), cut, -0.0)
                negative = negative | (np.signbit(product) & mask(present))
        if self.acc.rounding == "toward_negative":
            total = np.where((total == 0) & negative, -0.0, total)
        return np.ldexp(total, place)

    def _exponent(self, terms: list[Term]) -> Exponents:
        """The largest exponent of the total and of the products that are there."""
        exponent = exponents_from(self.total, self.least)
        for _, present, exponents in terms:
            exponent = np.maximum(exponent, np.where(mask(present), exponents, _ABSENT))
        if self.acc.least_exponent is not None:
            exponent = np.maximum(exponent, self.acc.least_exponent)
        return np.where(exponent < _NONE, 0, exponent)
