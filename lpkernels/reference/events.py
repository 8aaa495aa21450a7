"""What happens inside a sum, step by step: additions that change nothing, values beyond the range.

This module defines the events; csrc/cpu/events.h counts the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FixedFormat
from lpkernels.reference.addition import Number, odd_sum
from lpkernels.reference.orders import Rounds
from lpkernels.reference.sums import Sums
from lpkernels.reference.values import Float32, Float64, narrow, widen
from lpkernels.rng import SITE_PRODUCT, SITE_SUM

Mask = NDArray[np.bool_]
Bits = NDArray[np.uint8]

#: Bits of one addition: a nonzero addend left the sum as it was; the product or the sum, rounded as
#: if the format had no largest value, exceeds it.
SWAMPED, OVERFLOWED = 1, 2


@dataclass(frozen=True)
class Events:
    """The sums (M, N) float32, and what was counted in them.

    counts: products swamped, nonzero products added to finite sums, the same two of the sums of
        chunks, and sums that met an overflow.
    products, chunks: the bits of each addition, (M, K, N) and (M, chunks, N), where asked for.
    """

    sums: Float32
    counts: tuple[int, int, int, int, int]
    products: Bits | None = None
    chunks: Bits | None = None


class CountingRounds(Rounds):
    """Roundings that note what each addition does.

    swamped, swamped_chunks: additions of a nonzero product, or chunk's sum, after which the sum is
        what it was before; added, added_chunks: all such additions, to sums that are finite.
    overflowed: which sums met a value beyond the largest of its format.
    """

    def __init__(
        self, shape: tuple[int, ...], acc: Accumulator, seed: int, row: Any, col: Any, bits: bool
    ):
        super().__init__(acc, seed, row, col)
        self.swamped = self.added = self.swamped_chunks = self.added_chunks = 0
        self.overflowed: Mask = np.zeros(shape, dtype=np.bool_)
        self.bits = bits
        self.product_bits: list[Bits] = []
        self.chunk_bits: list[Bits] = []
        self._product_over: Mask = self.overflowed

    def product(self, exact: Float64, k: int) -> Float64:
        acc, fmt, rounding = self.acc, self.acc.product, self.acc.product_rounding
        if fmt is not None:
            bits = self.draws(rounding, SITE_PRODUCT, k)
            self._product_over = beyond(exact, fmt, rounding, bits, acc.random_bits)
        return super().product(exact, k)

    def add(self, total: Float64, addend: Float64, k: int) -> Float64:
        result = super().add(total, addend, k)
        acc = self.acc
        bits = self.draws(acc.rounding, SITE_SUM, k)
        over = beyond(odd_sum(total, addend), acc.fmt, acc.rounding, bits, acc.random_bits)
        if acc.product is not None:
            over |= self._product_over
        swamped, counts = self._note(total, addend, result, over, self.product_bits)
        self.swamped += swamped
        self.added += counts
        return result

    def add_outermost(self, total: Float64, addend: Float64, site: int, k: int) -> Float64:
        result = super().add_outermost(total, addend, site, k)
        acc, rounding = self.acc, self.acc.outermost_rounding
        bits = self.draws(rounding, site, k)
        over = beyond(odd_sum(total, addend), acc.outermost, rounding, bits, acc.random_bits)
        swamped, counts = self._note(total, addend, result, over, self.chunk_bits)
        self.swamped_chunks += swamped
        self.added_chunks += counts
        return result

    def _note(
        self, total: Float64, addend: Float64, result: Float64, over: Mask, kept: list[Bits]
    ) -> tuple[int, int]:
        counts = (addend != 0) & np.isfinite(addend) & np.isfinite(total)
        swamped = counts & (result == total)
        self.overflowed |= over
        if self.bits:
            kept.append((SWAMPED * swamped + OVERFLOWED * over).astype(np.uint8))
        return int(swamped.sum()), int(counts.sum())


def beyond(
    exact: Float64,
    fmt: Number,
    rounding: str,
    draws: NDArray[np.uint32] | None = None,
    random_bits: int = 32,
) -> Mask:
    """Which finite values, rounded as if the format had no largest, come out beyond it."""
    negative = exact < 0
    if isinstance(fmt, FixedFormat):
        step, limit = fmt.quantum, np.where(negative, -fmt.min, fmt.max)
        odd: Any = np.round(limit / step) % 2 == 1
    else:
        step, limit = 2.0 ** (fmt.emax - fmt.man_bits), np.full(exact.shape, fmt.max)
        # The last code before infinity, or the very last, is odd; "fn" gives that one to NaN. With
        # no mantissa the code is the exponent's.
        code = fmt.emax + fmt.bias if fmt.man_bits == 0 else int(fmt.specials != "fn")
        odd = code % 2 == 1
    outside = (np.abs(exact) > limit) & np.isfinite(exact)
    if not outside.any():
        return outside
    # Steps beyond the limit: less than one may still come back to it.
    steps = (np.abs(exact) - limit) / step
    return outside & ((steps >= 1) | _leaves(steps, odd, negative, rounding, draws, random_bits))


def _leaves(
    fraction: Float64,
    odd: Any,
    negative: Mask,
    rounding: str,
    draws: NDArray[np.uint32] | None,
    random_bits: int,
) -> Any:
    """Whether a magnitude at `fraction` of the step after a value leaves it."""
    if rounding == "nearest_even":
        return (fraction > 0.5) | ((fraction == 0.5) & odd)
    if rounding == "nearest_away":
        return fraction >= 0.5
    if rounding == "toward_positive":
        return ~negative
    if rounding == "toward_negative":
        return negative
    if rounding == "stochastic" and draws is not None:
        scale = 2.0 ** (random_bits + 1)
        return np.floor(fraction * scale) + 2.0 * draws + 1 >= scale
    return np.zeros(fraction.shape, dtype=np.bool_) | (rounding == "to_odd") & ~np.asarray(odd)


def matmul_events(
    a: Float32,
    b: Float32,
    acc: Accumulator,
    *,
    seed: int = 0,
    row: NDArray[np.integer] | None = None,
    bits: bool = False,
) -> Events:
    """The sums of a @ b, a (M, K) and b (K, N) finite, and their events.

    acc adds product by product (Accumulator.in_sequence).

    Args:
        seed: already derived; row: (M,) keys of the rows' draws, their indices by default.
        bits: also keep the bits of every addition.
    """
    rows, length, cols = *a.shape, b.shape[1]
    keys = np.arange(rows) if row is None else row
    shape = (rows, cols)
    seen = CountingRounds(shape, acc, seed, keys[:, None], np.arange(cols)[None, :], bits)
    sums = Sums(shape, seen)
    wide_a, wide_b = widen(a), widen(b)
    for k in range(length):
        sums.push(wide_a[:, k, None] * wide_b[None, k, :], None)
    total = narrow(sums.result(None))
    counts = (seen.swamped, seen.added, seen.swamped_chunks, seen.added_chunks)
    over = int(seen.overflowed.sum())
    chunks = np.stack(seen.chunk_bits, axis=1) if bits and acc.chunk else None
    products = np.stack(seen.product_bits, axis=1) if bits else None
    return Events(total, (*counts, over), products, chunks)
