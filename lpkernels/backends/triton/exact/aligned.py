"""The kernel of sums of whole blocks of products cut to a common place, as tensor cores form them.

Let e be the exponent of the largest finite magnitude among the sum and the products of a block, and
u = 2^(e - aligned_bits). Cut toward zero to multiples of u all of them are integers below
2^(aligned_bits + 1) <= 2^41, and at most 257 of them add to less than 2^50, so float64 adds them
exactly in any order, and integers of 64 bits would gain nothing. Products are 0 or lie in 2^-298 ..
2^257, so scaling by the power of two 1 / u is exact, or too small to matter beside an infinity.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._problem import VARYING
from lpkernels.backends.triton._tile import (
    SITE_PRODUCT,
    SITE_SUM,
    chunk_position,
    chunk_start,
    draw_keys,
    end_chunk,
    finished,
    lane_pointers,
    position_of,
    started,
    store_tile,
    tile_of_program,
)
from lpkernels.backends.triton.exact.terms import term_at
from lpkernels.backends.triton.rounding.bits import (
    EXPONENT,
    MAGNITUDE,
    SIGN,
    bits_of,
    reciprocal,
    value_of,
)
from lpkernels.backends.triton.rounding.draws import column_of, derived_seed, drawn_lift
from lpkernels.backends.triton.rounding.round import round_to
from lpkernels.backends.triton.rounding.rule import TOWARD_NEGATIVE

# 2^900 and 2^-400: beyond all finite values that are not zero.
_HUGE = tl.constexpr((1023 + 900) << 52)
_TINY = tl.constexpr((1023 - 400) << 52)


@triton.jit
def _cut(x, scale):
    """x * scale without its fraction, of x's sign."""
    y = x * scale
    bits = bits_of(y)
    return value_of(bits_of(tl.floor(value_of(bits & MAGNITUDE))) | (bits & SIGN))


@triton.jit
def _finite_bits(x):
    """The bits of |x|; if x is not finite, a meaningless number below the bits of any scale."""
    return tl.minimum(bits_of(x) & MAGNITUDE, _HUGE)


@triton.jit
def block_end(out, k, last, end):
    """The first step from k to last whose position is ``end`` or more."""
    if out.positions is None:
        return tl.minimum(end, tl.cast(last, tl.int64))
    else:
        stop = k
        for step in range(k, last):
            stop += tl.cast(position_of(out, step) < end, tl.int64)
        return stop


@triton.jit(do_not_specialize=[*VARYING, "block", "aligned_bits"])
def aligned_kernel(
    left, left_step, right, right_step, out, seed_ptr, role, M, N, K, chunk, chunks, C, block,
    aligned_bits,
    R: tl.constexpr, SWAPPED: tl.constexpr, LEFT_ABSENT: tl.constexpr, RIGHT_ABSENT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """s' = round(s + the products of a block), all cut to its place; a block without products
    leaves s. Draws are keyed by the block's first position.

    Arguments and grid of `exact_kernel`: one program for BM x BN outputs of one matrix. The
    products of a block are made twice: for their largest magnitude, then to be added.
    """
    g, i, j = tile_of_program(M, N, BM, BN)
    left_at = lane_pointers(left, g, i, M)
    right_at = lane_pointers(right, g, j, N)
    row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
    seed = derived_seed(seed_ptr, role)
    sum_column = column_of(seed, SITE_SUM, col, R.sum)
    column = col
    if R.product is not None:
        column = column_of(seed, SITE_PRODUCT, col, R.product)
    depth = tl.cast(aligned_bits, tl.int64) << 52

    outer = started(out, g, i, j, M, N, seed, row, col, C, R, BM, BN)
    sums = tl.zeros([BM, BN], tl.float64) if R.chunked else outer
    for c in range(chunks):
        if R.chunked:
            k, last = chunk_start(out, c, chunk, K), chunk_start(out, c + 1, chunk, K)
        else:
            k, last = tl.full([], 0, tl.int64), tl.cast(K, tl.int64)
        while k < last:
            begin = chunk_position(out, c, chunk)
            start = begin + (position_of(out, k) - begin) // block * block
            stop = block_end(out, k, tl.minimum(k + block, last), start + block)

            largest = tl.maximum(_finite_bits(sums), _TINY)
            here = tl.full([BM, BN], 0, tl.int1)
            for step in range(k, stop):
                product, absent = term_at(
                    left, left_at, left_step, right, right_at, right_step, out, step, seed, row,
                    column, C, R, LEFT_ABSENT, RIGHT_ABSENT,
                )  # fmt: skip
                largest = tl.where(absent, largest, tl.maximum(largest, _finite_bits(product)))
                here = here | (absent == 0)

            unit = value_of((largest & EXPONENT) - depth)
            scale = reciprocal(unit)
            total = _cut(sums, scale)
            signs = bits_of(sums)
            for step in range(k, stop):
                product, absent = term_at(
                    left, left_at, left_step, right, right_at, right_step, out, step, seed, row,
                    column, C, R, LEFT_ABSENT, RIGHT_ABSENT,
                )  # fmt: skip
                total = tl.where(absent, total, total + _cut(product, scale))
                signs = tl.where(absent, signs, signs | bits_of(product))
            if R.sum.mode == TOWARD_NEGATIVE:
                total = tl.where(total == 0.0, value_of(signs & SIGN), total)
            lift = drawn_lift(seed, SITE_SUM, row, sum_column, start, R.sum)
            sums = tl.where(here, round_to(total * unit, lift, C.sum, R.sum), sums)
            k = stop
        if R.chunked:
            outer = end_chunk(outer, sums, out, g, i, j, c, chunks, M, N, seed, row, col, C, R)
            sums = tl.zeros([BM, BN], tl.float64)

    total = outer if R.chunked else sums
    store_tile(finished(total, out, seed, row, col, C, R), out, g, i, j, M, N)
