"""Blocks aligned by the exponents of their operands, as in tensor cores: many outputs at once.

docs/contract.md has the rule, exact_sums.py the same one output at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import FloatFormat
from lpkernels.reference.orders import Present, Rounds
from lpkernels.reference.values import Float64

Exponents = NDArray[np.int32]

# _ABSENT is the exponent of a zero, an infinity and NaN: added to any other exponent it stays below
# _NONE.
_ABSENT = -(1 << 20)
_NONE = _ABSENT // 2


def exponents_of(x: Float64, fmt: FloatFormat) -> Exponents:
    """`exponents_from` the least exponent of a normal value of fmt.

    `ByOperands` aligns a product by the sum of its two factors' exponents.
    """
    return exponents_from(x, fmt.emin)


def exponents_from(x: Float64, least: int) -> Exponents:
    """floor(log2 |x|), at least `least`; far below that where x is zero or not finite."""
    counts = (x != 0) & np.isfinite(x)
    exponent = np.maximum(np.frexp(np.where(counts, x, 1.0))[1] - 1, least)
    return np.where(counts, exponent, _ABSENT).astype(np.int32)


class ByOperands:
    """total = round(total + the products of a block), all cut to one place, +0 where it is zero."""

    def __init__(self, rounds: Rounds, shape: tuple[int, ...]):
        fmt = rounds.acc.fmt
        assert isinstance(fmt, FloatFormat)
        self.rounds, self.shape, self.fmt = rounds, shape, fmt
        self.turns = rounds.acc.interleaved
        self.run = self.turns * (rounds.acc.block or 1)
        self.total: Float64 = np.zeros(shape)
        self.terms: list[tuple[Float64, Present, Exponents]] = []
        self.first = 0

    def push(
        self, product: Float64, present: Present, k: int, exponents: Exponents | None = None
    ) -> None:
        if exponents is None:
            raise TypeError("an accumulator with operands needs the exponents of every product")
        if not self.terms:
            self.first = k
        self.terms.append((product, present, exponents))
        if len(self.terms) == self.run:
            self._close_run()

    def take(self) -> Float64:
        self._close_run()
        total, self.total = self.total, np.zeros(self.shape)
        return total

    def _close_run(self) -> None:
        """The blocks among the last positions, which take turns in pairs of them."""
        for turn in range(self.turns):
            mine = [term for i, term in enumerate(self.terms) if i // 2 % self.turns == turn]
            if mine:
                self._add(mine, self.first + 2 * turn)
        self.terms = []

    def _add(self, terms: list[tuple[Float64, Present, Exponents]], k: int) -> None:
        here = np.zeros((), dtype=bool)
        for _, present, _ in terms:
            here = here | _mask(present)
        if here.any():
            total = self.rounds.round(self._sum(terms), k)
            # Every zero is +0, also one that a tiny sum was rounded to.
            total = np.where(total == 0, 0.0, total)
            self.total = np.where(here, total, self.total)

    def _sum(self, terms: list[tuple[Float64, Present, Exponents]]) -> Float64:
        """Exact: 256 products at most, each below 2^(aligned_bits + 2) units."""
        acc = self.rounds.acc
        exponent = exponents_of(self.total, self.fmt)
        for _, present, exponents in terms:
            exponent = np.maximum(exponent, np.where(_mask(present), exponents, _ABSENT))
        if acc.least_exponent is not None:
            exponent = np.maximum(exponent, acc.least_exponent)
        place = np.where(exponent < _NONE, 0, exponent) - (acc.aligned_bits or 0)
        total = np.trunc(np.ldexp(self.total, -place))
        with np.errstate(invalid="ignore"):
            for product, present, _ in terms:
                cut = np.trunc(np.ldexp(product, -place))
                total = total + np.where(_mask(present), cut, 0.0)
        return np.ldexp(total, place)


def _mask(present: Present) -> NDArray[np.bool_]:
    return np.ones((), dtype=bool) if present is None else present
