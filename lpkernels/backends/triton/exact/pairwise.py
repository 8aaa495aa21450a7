"""The kernel of sums as binary trees over the positions of k.

A tree is walked from the left as a binary counter counts. After n pairs of positions a node waits
at each level l whose bit is set in n; it covers 2^l pairs. The next pair joins the node at level 0,
their sum joins the node at level 1, and so on. Waiting nodes lie in memory, as a float32 for each
output and level, which holds any value of the accumulator; `ABSENT` stands for a node without
products. A program reads only its own nodes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._layout import ABSENT
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
)
from lpkernels.backends.triton.exact.sequential import is_absent
from lpkernels.backends.triton.exact.terms import add_inner, term_at
from lpkernels.backends.triton.rounding.bits import (
    double,
    narrow,
)
from lpkernels.backends.triton.rounding.draws import column_of, derived_seed, drawn_lift
from lpkernels.backends.triton.rounding.round import add_rounded, reduced
from lpkernels.backends.triton.rounding.rule import WRAP

_ABSENT = tl.constexpr(ABSENT)


@triton.jit
def _wait(waiting, level, STRIDE: tl.constexpr, node, absent, HOLES: tl.constexpr):
    """Leaves a node at a level."""
    value = narrow(node)
    if HOLES:
        nothing = tl.cast(tl.full(node.shape, _ABSENT, tl.int32), tl.float32, bitcast=True)
        value = tl.where(absent, nothing, value)
    tl.store(waiting + level * STRIDE, value)
    # A thread may read what another one wrote.
    tl.debug_barrier()


@triton.jit
def _join(
    waiting, level, STRIDE: tl.constexpr, node, absent, seed, row, column, key, C,
    R: tl.constexpr, HOLES: tl.constexpr,
):  # fmt: skip
    """The node that waits at a level plus the node right of it; where one is absent, the other."""
    value = tl.load(waiting + level * STRIDE)
    left = double(value)
    total = add_inner(left, node, seed, row, column, key, C, R)
    if HOLES:
        left_absent = is_absent(value)
        total = tl.where(absent, left, tl.where(left_absent, node, total))
        absent = absent & left_absent
    return total, absent


@triton.jit
def _collapsed(
    waiting, STRIDE: tl.constexpr, count, levels, begin, seed, row, column, C,
    R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The sum of nodes waiting below ``levels`` after ``count`` pairs, and where it is absent."""
    node = tl.zeros([BM, BN], tl.float64)
    absent = tl.full([BM, BN], 1, tl.int1)
    for level in range(levels):
        before = count >> level
        if (before & 1) != 0:
            # A right half begins behind the last pair that waits at this level.
            key = begin + (before << (level + 1))
            node, absent = _join(
                waiting, level, STRIDE, node, absent, seed, row, column, key, C, R, True
            )
    return node, absent


@triton.jit
def _bit_length(x):
    length = tl.full([], 0, tl.int32)
    while x != 0:
        x = x >> 1
        length += 1
    return length


@triton.jit
def _advance(
    waiting, STRIDE: tl.constexpr, count, following, begin, seed, row, column, C,
    R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Passes over the absent pairs from ``count`` to before ``following``: the nodes below the
    highest bit in which the two numbers differ become one node, which waits at that bit's level."""
    highest = _bit_length(count ^ following) - 1
    node, absent = _collapsed(
        waiting, STRIDE, count, highest, begin, seed, row, column, C, R, BM, BN
    )
    _wait(waiting, highest, STRIDE, node, absent, True)
    for level in range(highest):
        if ((following >> level) & 1) != 0:
            _wait(waiting, level, STRIDE, node, tl.full([BM, BN], 1, tl.int1), True)


@triton.jit
def _push(
    waiting, STRIDE: tl.constexpr, pair, node, absent, begin, seed, row, column, C,
    R: tl.constexpr, HOLES: tl.constexpr,
):  # fmt: skip
    """Joins the node of a pair, ``pair`` pairs behind ``begin``, with all that it completes."""
    level = tl.full([], 0, tl.int32)
    index = pair
    while (index & 1) != 0:
        key = begin + (index << (level + 1))
        node, absent = _join(
            waiting, level, STRIDE, node, absent, seed, row, column, key, C, R, HOLES
        )
        index = index >> 1
        level += 1
    _wait(waiting, level, STRIDE, node, absent, HOLES)


@triton.jit
def _has_partner(out, k, last, key):
    """Whether step k + 1 is there and stands at position ``key``."""
    following = k + 1 < last
    if out.positions is None:
        return following
    else:
        return following & (position_of(out, tl.minimum(k + 1, last - 1)) == key)


@triton.jit
def _tile_at(tile, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Matrix, rows and columns of a tile; rows fastest."""
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    i = tl.cast(tile % down, tl.int64) * BM + tl.arange(0, BM)
    j = tl.cast(tile // down % across, tl.int64) * BN + tl.arange(0, BN)
    return tl.cast(tile // down // across, tl.int64), i, j


@triton.jit(do_not_specialize=[*VARYING, "tiles", "levels"])
def pairwise_kernel(
    left, left_step, right, right_step, out, seed_ptr, role, M, N, K, chunk, chunks, C, waiting,
    levels, tiles,
    R: tl.constexpr, SWAPPED: tl.constexpr, LEFT_ABSENT: tl.constexpr, RIGHT_ABSENT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Sums of trees, with each node rounded once. A node with one present half equals that half; a
    leaf with one product is +0 plus the product. A node draws with the key of the position where
    its right half begins.

    Arguments of `exact_kernel`; waiting: ``levels`` x BM x BN float32 for each program. Grid:
    any number of programs; each makes tiles of BM x BN outputs of one matrix, one after another.
    """
    HOLES: tl.constexpr = LEFT_ABSENT or RIGHT_ABSENT or (out.positions is not None)
    STRIDE: tl.constexpr = BM * BN
    seed = derived_seed(seed_ptr, role)
    mine = tl.cast(tl.program_id(0), tl.int64) * levels * STRIDE
    waiting += mine + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]

    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        g, i, j = _tile_at(tile, M, N, BM, BN)
        left_at = lane_pointers(left, g, i, M)
        right_at = lane_pointers(right, g, j, N)
        row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
        sum_column = column_of(seed, SITE_SUM, col, R.sum)
        column = col
        if R.product is not None:
            column = column_of(seed, SITE_PRODUCT, col, R.product)

        outer = started(out, g, i, j, M, N, seed, row, col, C, R, BM, BN)
        for c in range(chunks):
            if R.chunked:
                k, last = chunk_start(out, c, chunk, K), chunk_start(out, c + 1, chunk, K)
            else:
                k, last = tl.full([], 0, tl.int64), tl.cast(K, tl.int64)
            begin = chunk_position(out, c, chunk)
            count = tl.full([], 0, tl.int64)
            while k < last:
                pair = (position_of(out, k) - begin) >> 1
                key = begin + pair * 2 + 1
                p, absent = term_at(
                    left, left_at, left_step, right, right_at, right_step, out, k, seed, row,
                    column, C, R, LEFT_ABSENT, RIGHT_ABSENT,
                )  # fmt: skip
                q = tl.zeros([BM, BN], tl.float64)
                q_absent = tl.full([BM, BN], 1, tl.int1)
                k += 1
                if _has_partner(out, k - 1, last, key):
                    q, q_absent = term_at(
                        left, left_at, left_step, right, right_at, right_step, out, k, seed, row,
                        column, C, R, LEFT_ABSENT, RIGHT_ABSENT,
                    )  # fmt: skip
                    k += 1
                if HOLES:
                    p, q = tl.where(absent, 0.0, p), tl.where(q_absent, 0.0, q)
                    absent = absent & q_absent
                lift = drawn_lift(seed, SITE_SUM, row, sum_column, key, R.sum)
                if R.sum.overflow == WRAP:
                    # Neither is a value of the format.
                    p = reduced(p, q, C.sum)
                node = add_rounded(p, q, lift, C.sum, R.sum)
                if out.positions is not None:
                    if count < pair:
                        _advance(
                            waiting, STRIDE, count, pair, begin, seed, row, sum_column, C, R, BM,
                            BN,
                        )  # fmt: skip
                _push(
                    waiting, STRIDE, pair, node, absent, begin, seed, row, sum_column, C, R, HOLES
                )
                count = pair + 1
            total, absent = _collapsed(
                waiting, STRIDE, count, _bit_length(count), begin, seed, row, sum_column, C, R,
                BM, BN,
            )  # fmt: skip
            # All threads have read what the next sum overwrites.
            tl.debug_barrier()
            total = tl.where(absent, 0.0, total)
            if R.chunked:
                outer = end_chunk(outer, total, out, g, i, j, c, chunks, M, N, seed, row, col, C, R)
            else:
                outer = total
        store_tile(finished(outer, out, seed, row, col, C, R), out, g, i, j, M, N)
