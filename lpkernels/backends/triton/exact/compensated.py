"""The kernel of Kahan's sums, every operation rounded."""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._problem import VARYING
from lpkernels.backends.triton._tile import (
    SITE_PRODUCT,
    chunk_start,
    draw_keys,
    end_chunk,
    finished,
    lane_pointers,
    started,
    store_tile,
    tile_of_program,
)
from lpkernels.backends.triton.exact.terms import negated, term_at
from lpkernels.backends.triton.rounding.draws import column_of, derived_seed
from lpkernels.backends.triton.rounding.round import add_rounded


@triton.jit(do_not_specialize=VARYING)
def compensated_kernel(
    left, left_step, right, right_step, out, seed_ptr, role, M, N, K, chunk, chunks, C,
    R: tl.constexpr, SWAPPED: tl.constexpr, LEFT_ABSENT: tl.constexpr, RIGHT_ABSENT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """y = p - error;  s' = s + y;  error' = (s' - s) - y  for every product p, each of the four
    rounded; absent products leave both as they are. The mode is never stochastic.

    Arguments and grid of `exact_kernel`: one program for BM x BN outputs of one matrix.
    """
    g, i, j = tile_of_program(M, N, BM, BN)
    left_at = lane_pointers(left, g, i, M)
    right_at = lane_pointers(right, g, j, N)
    row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
    seed = derived_seed(seed_ptr, role)
    column = col
    if R.product is not None:
        column = column_of(seed, SITE_PRODUCT, col, R.product)

    outer = started(out, g, i, j, M, N, seed, row, col, C, R, BM, BN)
    sums = tl.zeros([BM, BN], tl.float64) if R.chunked else outer
    error = tl.zeros([BM, BN], tl.float64)
    for c in range(chunks):
        if R.chunked:
            first, last = chunk_start(out, c, chunk, K), chunk_start(out, c + 1, chunk, K)
        else:
            first, last = 0, K
        for k in range(first, last):
            product, absent = term_at(
                left, left_at, left_step, right, right_at, right_step, out, k, seed, row, column,
                C, R, LEFT_ABSENT, RIGHT_ABSENT,
            )  # fmt: skip
            addend = add_rounded(negated(error), product, 0, C.sum, R.sum)
            total = add_rounded(sums, addend, 0, C.sum, R.sum)
            gained = add_rounded(total, negated(sums), 0, C.sum, R.sum)
            lost = add_rounded(gained, negated(addend), 0, C.sum, R.sum)
            sums = tl.where(absent, sums, total)
            error = tl.where(absent, error, lost)
        if R.chunked:
            outer = end_chunk(outer, sums, out, g, i, j, c, chunks, M, N, seed, row, col, C, R)
            sums = tl.zeros([BM, BN], tl.float64)
            error = tl.zeros([BM, BN], tl.float64)

    total = outer if R.chunked else sums
    store_tile(finished(total, out, seed, row, col, C, R), out, g, i, j, M, N)
