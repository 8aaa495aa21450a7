"""Counting what happens inside a sum: additions that change nothing, values beyond the range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FixedFormat
from lpkernels.reference.sums import Float64, Number, Sums, odd_sum
from lpkernels.reference.values import widen
from lpkernels.rng import SITE_OUTER, SITE_PRODUCT, Role, derive_seed

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Events:
    """Shares over `sums` sums; None where nothing was counted."""

    sums: int
    swamped: float | None
    swamped_chunks: float | None
    overflowed: float | None


class CountingSums(Sums):
    """Running sums that note what each addition does.

    swamped, swamped_chunks: additions of a nonzero product, or chunk's sum, after which the sum is
        what it was before; added, added_chunks: all such additions, to sums that are finite.
    overflowed: which sums met a value beyond the largest of its format.
    """

    def __init__(self, shape: tuple[int, ...], acc: Accumulator, seed: int, row: Any, col: Any):
        super().__init__(shape, acc, seed, row, col)
        self.swamped = self.added = self.swamped_chunks = self.added_chunks = 0
        self.overflowed: Mask = np.zeros(shape, dtype=np.bool_)

    def push(self, product: Float64, present: Mask | None) -> None:
        acc, fmt, rounding = self.acc, self.acc.product, self.acc.product_rounding
        if fmt is not None:
            bits = self._draws(SITE_PRODUCT, self.k, rounding)
            self.overflowed |= beyond(product, fmt, rounding, bits, acc.random_bits)
        super().push(product, present)

    def _add(self, total: Float64, addend: Float64, fmt: Number, site: int, k: int) -> Float64:
        result = super()._add(total, addend, fmt, site, k)
        counts = (addend != 0) & np.isfinite(addend) & np.isfinite(total)
        lost = int((counts & (result == total)).sum())
        acc, bits = self.acc, self._draws(site, k, self.acc.rounding)
        exact = odd_sum(total, addend)
        self.overflowed |= beyond(exact, fmt, acc.rounding, bits, acc.random_bits)
        if site == SITE_OUTER:
            self.swamped_chunks += lost
            self.added_chunks += int(counts.sum())
        else:
            self.swamped += lost
            self.added += int(counts.sum())
        return result


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


def count_events(
    a: Tensor, b: Tensor, acc: Accumulator, seed: Tensor | None, most: int | None
) -> Events:
    """Events in the sums of a @ b, for as many evenly spaced rows as `most` products allow."""
    per_row = b.numel()
    rows = len(a) if most is None else min(len(a), most // per_row)
    if acc.order == "native" or rows == 0:
        return Events(0, None, None, None)
    chosen = torch.linspace(0, len(a) - 1, rows).round().long() if rows < len(a) else None
    left = a if chosen is None else a[chosen]
    index = np.arange(len(a)) if chosen is None else chosen.numpy()
    derived = 0 if seed is None else derive_seed(int(seed), Role.DIRECT)
    sums = CountingSums(
        (rows, b.shape[1]), acc, derived, index[:, None], np.arange(b.shape[1])[None, :]
    )
    wide_left, wide_right = widen(left.cpu().numpy()), widen(b.cpu().numpy())
    for k in range(a.shape[1]):
        sums.push(wide_left[:, k, None] * wide_right[None, k, :], None)
    sums.result(None)
    chunks = sums.swamped_chunks / max(1, sums.added_chunks) if acc.chunk else None
    return Events(
        rows * b.shape[1],
        sums.swamped / max(1, sums.added),
        chunks,
        float(sums.overflowed.mean()),
    )
