"""Events inside a sum, step by step: additions that change nothing, values beyond the range.

This module defines the events; csrc/cpu/sums/events/events.h counts the same ones. Products are
added in sequence, in chunks or not. A product that is not zero and comes to a finite sum is
*swamped* where its addition leaves the sum as it was.

A sum *overflows* where a product, or any sum on the way, rounded as if the format had no largest
value, exceeds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import Number
from lpkernels.reference.addition import odd_sum
from lpkernels.reference.sums import Product, Rounds, Sequential, Sums
from lpkernels.reference.values import Float32, Float64, narrow, widen
from lpkernels.rng import SITE_PRODUCT, SITE_SUM
from lpkernels.rounding import overflows_array

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Events:
    """The sums (M, N) float32, and the counts of events in them.

    counts: products swamped, products that could be, chunks' sums swamped, chunks' sums that could
        be, and sums that met an overflow.
    """

    sums: Float32
    counts: tuple[int, int, int, int, int]


class CountingRounds(Rounds):
    """Roundings that note which sums meet a value beyond the largest of its format.

    overflowed: the sums that did.  swamped_chunks, added_chunks: of the outer additions.
    """

    def __init__(self, shape: tuple[int, ...], acc: Accumulator, seed: int, row: Any, col: Any):
        super().__init__(acc, seed, row, col)
        self.overflowed: Mask = np.zeros(shape, dtype=np.bool_)
        self.swamped_chunks = self.added_chunks = 0

    def product(self, exact: Float64, k: int) -> Float64:
        acc = self.acc
        if acc.product is not None:
            self._see(exact, acc.product, acc.product_rounding, SITE_PRODUCT, k)
        return super().product(exact, k)

    def round(self, exact: Float64, k: int) -> Float64:
        self._see(exact, self.acc.fmt, self.acc.rounding, SITE_SUM, k)
        return super().round(exact, k)

    def add(self, total: Float64, addend: Float64, k: int) -> Float64:
        self._see(odd_sum(total, addend), self.acc.fmt, self.acc.rounding, SITE_SUM, k)
        return super().add(total, addend, k)

    def add_outermost(self, total: Float64, addend: Float64, site: int, k: int) -> Float64:
        result = super().add_outermost(total, addend, site, k)
        acc = self.acc
        self._see(odd_sum(total, addend), acc.outermost, acc.outermost_rounding, site, k)
        counts = _can_be_lost(addend) & np.isfinite(total)
        self.swamped_chunks += int((counts & (result == total)).sum())
        self.added_chunks += int(counts.sum())
        return result

    def _see(self, exact: Float64, fmt: Number, rounding: str, site: int, k: int) -> None:
        bits = self.draws(rounding, site, k)
        beyond = overflows_array(exact, fmt, rounding, draws=bits, random_bits=self.acc.random_bits)
        self.overflowed = self.overflowed | beyond


class _Lost(Sequential):
    """The inner sums, and their counts: products that could be lost, and lost products."""

    def __init__(self, rounds: Rounds, shape: tuple[int, ...]):
        super().__init__(rounds, shape)
        self.swamped = self.added = 0

    def push(self, product: Product, k: int) -> None:
        before = self.total
        super().push(product, k)
        counts = _can_be_lost(product.values) & np.isfinite(before)
        self.added += int(counts.sum())
        self.swamped += int((counts & (self.total == before)).sum())


def _can_be_lost(addend: Float64) -> Mask:
    return (addend != 0) & np.isfinite(addend)


def matmul_events(
    a: Float32,
    b: Float32,
    acc: Accumulator,
    *,
    seed: int = 0,
    row: NDArray[np.integer] | None = None,
) -> Events:
    """The sums of a @ b, a (M, K) and b (K, N) finite, and their events.

    Args:
        seed: already derived; row: (M,) keys of the rows' draws, their indices by default.

    Raises: NotImplementedError: an accumulator that does not add product after product in sequence.
    """
    if not acc.in_sequence:
        raise NotImplementedError(
            f"matmul_events: events are counted in sums in sequence and in chunks, got {acc}"
        )
    length, cols = b.shape
    shape = (len(a), cols)
    keys = np.arange(len(a)) if row is None else row
    rounds = CountingRounds(shape, acc, seed, keys[:, None], np.arange(cols)[None, :])
    inner = _Lost(rounds, shape)
    sums = Sums(shape, rounds, inner)
    wide_a, wide_b = widen(a), widen(b)
    for k in range(length):
        sums.push(Product(wide_a[:, k, None] * wide_b[None, k, :]))
    total = narrow(sums.result(None))
    counts = (inner.swamped, inner.added, rounds.swamped_chunks, rounds.added_chunks)
    return Events(total, (*counts, int(rounds.overflowed.sum())))
