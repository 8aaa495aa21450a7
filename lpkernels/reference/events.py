"""Events inside a sum, step by step: additions that change nothing, values beyond the range.

This module defines the events; csrc/cpu/sums/events/events.h counts the same ones. A product that
is not zero and comes to a finite sum is *swamped* where

    in sequence       its addition leaves the sum as it was;
    compensated       its addition leaves the sum and the correction as they were;
    aligned blocks    alignment leaves nothing of it, or its block adds up to something that is not
                      zero and leaves the sum as it was;
    pairwise          a node has an addend that is not zero, and would be the same without it
                      (rounded in the same way): all products in this addend are lost, each once.

A sum *overflows* where a product, or any sum on the way, rounded as if the format had no largest
value, exceeds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FixedFormat, Number, TableFormat
from lpkernels.reference.addition import odd_sum
from lpkernels.reference.orders import (
    Aligned,
    Compensated,
    Node,
    Pairwise,
    Present,
    Rounds,
    Sequential,
)
from lpkernels.reference.sums import Sums
from lpkernels.reference.values import Float32, Float64, narrow, widen
from lpkernels.rng import SITE_PRODUCT, SITE_SUM
from lpkernels.rounding import overflows_array

Mask = NDArray[np.bool_]
Bits = NDArray[np.uint8]

#: Bits of one addition: its product is swamped; the product or the sum overflows.
SWAMPED, OVERFLOWED = 1, 2


@dataclass(frozen=True)
class Events:
    """The sums (M, N) float32, and the counts of events in them.

    counts: products swamped, products that could be, chunks' sums swamped, chunks' sums that could
        be, and sums that met an overflow.
    products, chunks: the bits of each product (M, K, N), and of each chunk's addition (M, chunks,
        N), where asked for.
    """

    sums: Float32
    counts: tuple[int, int, int, int, int]
    products: Bits | None = None
    chunks: Bits | None = None


class CountingRounds(Rounds):
    """Roundings that note which sums meet a value beyond the largest of its format.

    overflowed: the sums that ever did; over: the sums that did since `take_over` was called.
    swamped_chunks, added_chunks, chunk_bits: of the outer additions.
    """

    def __init__(self, shape: tuple[int, ...], acc: Accumulator, seed: int, row: Any, col: Any):
        super().__init__(acc, seed, row, col)
        self.overflowed: Mask = np.zeros(shape, dtype=np.bool_)
        self.over: Mask = np.zeros(shape, dtype=np.bool_)
        self.swamped_chunks = self.added_chunks = 0
        self.chunk_bits: list[Bits] = []

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

    def add_products(self, left: Float64, right: Float64, k: int) -> Float64:
        self._see(odd_sum(left, right), self.acc.fmt, self.acc.rounding, SITE_SUM, k)
        return super().add_products(left, right, k)

    def add_outermost(self, total: Float64, addend: Float64, site: int, k: int) -> Float64:
        result = super().add_outermost(total, addend, site, k)
        self.take_over()
        acc = self.acc
        self._see(odd_sum(total, addend), acc.outermost, acc.outermost_rounding, site, k)
        counts = _can_be_lost(addend) & np.isfinite(total)
        swamped = counts & (result == total)
        self.swamped_chunks += int(swamped.sum())
        self.added_chunks += int(counts.sum())
        self.chunk_bits.append(_bits(swamped, self.take_over()))
        return result

    def take_over(self) -> Mask:
        over, self.over = self.over, np.zeros_like(self.over)
        return over

    def _see(self, exact: Float64, fmt: Number, rounding: str, site: int, k: int) -> None:
        draws = self.draws(rounding, site, k)
        over = beyond(exact, fmt, rounding, draws, self.acc.random_bits)
        self.over = self.over | over
        self.overflowed = self.overflowed | over


class _Lost:
    """The counts of the inner sums: products that could be lost, lost products, and their bits."""

    def __init__(self, rounds: CountingRounds, shape: tuple[int, ...]):
        super().__init__(rounds, shape)  # type: ignore[call-arg]
        self.seen = rounds
        self.swamped = self.added = 0
        self.kept: list[Bits] = []

    def note(self, counts: Mask, lost: Mask, over: Mask) -> None:
        swamped = counts & lost
        self.added += int(counts.sum())
        self.swamped += int(swamped.sum())
        self.kept.append(_bits(swamped, over))


class LostInSequence(_Lost, Sequential):
    def push(self, product: Float64, present: Present, k: int) -> None:
        before = self.total
        super().push(product, present, k)
        counts = _can_be_lost(product) & np.isfinite(before)
        self.note(counts, self.total == before, self.seen.take_over())


class LostCompensated(_Lost, Compensated):
    def push(self, product: Float64, present: Present, k: int) -> None:
        total, correction = self.total, self.correction
        super().push(product, present, k)
        counts = _can_be_lost(product) & np.isfinite(total) & np.isfinite(correction)
        stays = (self.total == total) & (self.correction == correction)
        self.note(counts, stays, self.seen.take_over())


class LostInBlocks(_Lost, Aligned):
    def _close_block(self) -> None:
        before, products = self.total, [np.where(np.isfinite(p), p, 0.0) for p, _ in self.products]
        counts = [_can_be_lost(p) & np.isfinite(before) for p, _ in self.products]
        largest = np.where(np.isfinite(before), np.abs(before), 0.0)
        for p in products:
            largest = np.maximum(largest, np.abs(p))
        place = np.frexp(largest)[1] - 1 - self.bits_kept
        cut = [np.trunc(np.ldexp(p, -place)) for p in products]
        super()._close_block()
        stays = (np.sum(cut, axis=0) != 0) & (self.total == before)
        over = self.seen.take_over()
        for each, left in zip(counts, cut, strict=True):
            self.note(each, (left == 0) | stays, over)

    @property
    def bits_kept(self) -> int:
        return self.seen.acc.aligned_bits or 0


class LostInTrees(_Lost, Pairwise):
    """left[level]: how many products of the node that waits at this level are not lost yet."""

    def _start(self, first: int) -> None:
        super()._start(first)
        self.left: dict[int, NDArray[np.int64]] = {}

    def push(self, product: Float64, present: Present, k: int) -> None:
        counts = np.broadcast_to(_can_be_lost(product), self.shape)
        self.added += int(counts.sum())
        self._right_left = counts.astype(np.int64)
        super().push(product, present, k)
        self.left[max(self.waiting.keys() - self.left.keys())] = self._right_left

    def take(self) -> Float64:
        self._right_left = np.zeros(self.shape, dtype=np.int64)
        return super().take()

    def _join(self, level: int, right: Node | None) -> Node:
        left, k = self.waiting[level], self.first + (self.count >> level << level)
        a, b = left[0], np.zeros(self.shape) if right is None else right[0]
        node = super()._join(level, right)
        # Leaves are products: without its neighbour one is rounded alone.
        alone = [Rounds.add(self.rounds, np.zeros(self.shape), x, k) for x in (a, b)]
        finite = np.isfinite(a) & np.isfinite(b)
        held = (self.left.pop(level), self._right_left)
        lost = [
            np.where(finite & (x != 0) & (node[0] == other), count, 0)
            for x, other, count in zip((a, b), reversed(alone), held, strict=True)
        ]
        self.swamped += int(sum(x.sum() for x in lost))
        self._right_left = held[0] - lost[0] + held[1] - lost[1]
        return node


_INNER: dict[str, Callable[..., Any]] = {"pairwise": LostInTrees, "compensated": LostCompensated}


def _counting_sum(rounds: CountingRounds, shape: tuple[int, ...]) -> Any:
    acc = rounds.acc
    in_sequence = LostInSequence if acc.block is None else LostInBlocks
    return _INNER.get(acc.order, in_sequence)(rounds, shape)


def _can_be_lost(addend: Float64) -> Mask:
    return (addend != 0) & np.isfinite(addend)


def _bits(swamped: Mask, over: Mask) -> Bits:
    return (SWAMPED * swamped + OVERFLOWED * over).astype(np.uint8)


def beyond(
    exact: Float64,
    fmt: Number,
    rounding: str,
    draws: NDArray[np.uint32] | None = None,
    random_bits: int = 32,
) -> Mask:
    """Which finite values lie beyond the format's largest value, once rounded as if it had none."""
    if isinstance(fmt, TableFormat):
        return overflows_array(exact, fmt, "toward_zero")
    negative = exact < 0
    step: Any
    odd: Any
    if isinstance(fmt, FixedFormat):
        step, limit = fmt.quantum, np.where(negative, -fmt.min, fmt.max)
        odd = np.round(limit / step) % 2 == 1
    else:
        # Without a sign, 0 is the last value below, and the least value would follow it.
        ends = negative & (not fmt.signed)
        step = np.where(ends, fmt.min_subnormal, 2.0 ** (fmt.emax - fmt.man_bits))
        limit = np.where(ends, 0.0, fmt.max)
        odd = (fmt.max_code % 2 == 1) & ~ends
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
    first_col: int = 0,
    bits: bool = False,
) -> Events:
    """The sums of a @ b, a (M, K) and b (K, N) finite, and their events; any order but "native".

    Args:
        seed: already derived; row: (M,) keys of the rows' draws, their indices by default.
        first_col: the key of the first column's draws.
        bits: also keep the bits of every product, which trees do not have.

    Raises: ValueError: bits of a tree; an accumulator with operands, which has no events defined.
    """
    if acc.operands is not None:
        raise ValueError(f"matmul_events: {acc} aligns by operands, whose events are not defined")
    if bits and acc.order == "pairwise":
        raise ValueError("matmul_events: the products of a tree have no bits of their own")
    length, cols = b.shape
    shape = (len(a), cols)
    keys = np.arange(len(a)) if row is None else row
    col = first_col + np.arange(cols)
    seen = CountingRounds(shape, acc, seed, keys[:, None], col[None, :])
    inner = _counting_sum(seen, shape)
    sums = Sums(shape, seen, inner)
    wide_a, wide_b = widen(a), widen(b)
    for k in range(length):
        sums.push(wide_a[:, k, None] * wide_b[None, k, :], None)
    total = narrow(sums.result(None))
    counts = (inner.swamped, inner.added, seen.swamped_chunks, seen.added_chunks)
    over = int(seen.overflowed.sum())
    chunks = np.stack(seen.chunk_bits, axis=1) if bits and acc.chunk else None
    products = np.stack(inner.kept, axis=1) if bits else None
    return Events(total, (*counts, over), products, chunks)
