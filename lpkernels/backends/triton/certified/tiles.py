"""Certified kernels: few operations a product, for tiles with operands that prove them exact.

Each kernel has a few tiers, and makes an open tile by the first tier whose certificate holds. If no
certificate holds, or if a sum came near the bound (`certificate`), it leaves the tile to the next
kernel. Nothing of this waits for the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.planning.triton_tiles import UNIT
from lpkernels.backends.triton._problem import VARYING
from lpkernels.backends.triton._tile import (
    SITE_SUM,
    chunk_start,
    closed,
    draw_keys,
    part_tile,
    step_offset,
    store_tile,
    tile_corner,
    tile_number,
)
from lpkernels.backends.triton.certified.certificate import (
    DIRECTED,
    FIXED,
    FUSED64,
    PLAIN,
    RANGE,
    STRIDE,
    certified,
)
from lpkernels.backends.triton.certified.steps import first_sums, step, values_of
from lpkernels.backends.triton.rounding.bits import bits_of, exponent_of, single, upper, value_of
from lpkernels.backends.triton.rounding.draws import (
    column_keys,
    derived_seed,
    draw_of,
    fast_words,
    philox_words,
    row_streams,
    site_base,
)
from lpkernels.backends.triton.rounding.rule import STOCHASTIC

_UNIT = tl.constexpr(UNIT)


@triton.constexpr_function
def count_of(tiers):
    return len(tiers)


@triton.constexpr_function
def tier_of(tiers, t):
    return tiers[t]


@triton.jit
def lane_offsets(side, g, lane0, lane, count):
    """Where step 0 of lane0 + lane lies: a pointer, and the offsets from it."""
    if side.lanes is None:
        first = tl.load(side.batch + g) // _UNIT * _UNIT
        return side.data + first + lane0, lane
    else:
        start = side.data + tl.load(side.batch + g)
        return start, tl.load(side.lanes + lane0 + lane, mask=lane0 + lane < count, other=0)


@triton.jit
def operand_offset(side, step, k):
    """`step_offset`; lanes that lie side by side are multiples of `UNIT` apart, so that several are
    loaded at once."""
    if side.lanes is not None:
        return step_offset(side, step, k)
    elif side.steps is None:
        return step_offset(side, step // _UNIT * _UNIT, k)
    else:
        return step_offset(side, step, k) // _UNIT * _UNIT


@triton.jit
def words_for(seed, row, col, columns, streams, word, R: tl.constexpr):
    """The words of number ``word``, int64; the fast streams give only words below 2^32."""
    if R.philox:
        return philox_words(seed, SITE_SUM, row, col, word)
    else:
        return fast_words(columns, streams, word)


@triton.jit
def drawn_of(words, k, N, R: tl.constexpr):
    """2 draw + 1 of step k out of its words, as `cut_sum` takes it."""
    if R.mode == STOCHASTIC:
        # A 1 that the compiler does not know: one instruction then takes the draw and sets the bit.
        one = bits_of(single(N.unit)) >> 29
        return (tl.cast(draw_of(words, k, R.random_bits), tl.int32) << 1) | one
    else:
        return 0


@triton.jit
def looked_at(seen, sums, TIER: tl.constexpr):
    """The largest magnitudes so far, one for each column: as float32, or as upper bits of
    float64."""
    if (TIER <= PLAIN) or (TIER == RANGE) or (TIER == FIXED):
        return seen
    elif TIER >= FUSED64:
        return tl.maximum(seen, tl.max(upper(sums) & 0x7FFFFFFF, 0))
    else:
        return tl.maximum(seen, tl.max(tl.abs(sums), 0))


@triton.jit
def reached(seen, limit, C, TIER: tl.constexpr):
    """Whether a sum that was looked at is 2^limit or more."""
    if TIER == DIRECTED:
        # The scale takes emin to -126.
        limit = limit - 126 - exponent_of(C.sum.least)
    if TIER >= FUSED64:
        return tl.max(seen, 0) >= ((limit + 1023) << 20)
    else:
        return tl.max(seen, 0) >= value_of((limit + 127) << 23)


@triton.jit
def sums_of_span(
    first, last, seen, left, left_start, left_step, rows, right, right_start, right_step, cols,
    seed, row, col, C,
    R: tl.constexpr, TIER: tl.constexpr, LEFT_ABSENT: tl.constexpr, RIGHT_ABSENT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Sums from step first to last, from +0, and the largest seen."""
    sums = first_sums(C, R, TIER, BM, BN)
    words = tl.zeros([BM, BN], tl.uint32)
    columns, streams = col, row
    LOG2: tl.constexpr = 2 if R.sum.random_bits <= 8 else (1 if R.sum.random_bits <= 16 else 0)
    if (R.sum.mode == STOCHASTIC) and (not R.sum.philox):
        # Words from 2^32 on would have other streams, but 2^34 steps fit in no memory.
        base = site_base(seed, SITE_SUM)
        columns, streams = column_keys(base, col), row_streams(base, row, row * 0)
    whole = first + (last - first) // STRIDE * STRIDE
    for k0 in range(first, whole, STRIDE):
        for u in tl.static_range(STRIDE):
            k = k0 + u
            if (R.sum.mode == STOCHASTIC) and (u % (1 << LOG2) == 0):
                words = words_for(seed, row, col, columns, streams, k >> LOG2, R.sum)
            sums = step(
                sums, left_start + operand_offset(left, left_step, k) + rows,
                right_start + operand_offset(right, right_step, k) + cols,
                drawn_of(words, u, C.sum, R.sum), C, R, TIER, LEFT_ABSENT, RIGHT_ABSENT,
            )  # fmt: skip
        seen = looked_at(seen, sums, TIER)
    for k in range(whole, last):
        if R.sum.mode == STOCHASTIC:
            words = words_for(seed, row, col, columns, streams, k >> LOG2, R.sum)
        sums = step(
            sums, left_start + operand_offset(left, left_step, k) + rows,
            right_start + operand_offset(right, right_step, k) + cols,
            drawn_of(words, k, C.sum, R.sum), C, R, TIER, LEFT_ABSENT, RIGHT_ABSENT,
        )  # fmt: skip
    return values_of(sums, C, R, TIER), looked_at(seen, sums, TIER)


@triton.jit
def piece_by_tier(
    left, left_step, left_facts, right, right_step, right_facts, out, seed_ptr, role, M, N, K,
    chunk, begin, end, share, parts, part_step, C,
    R: tl.constexpr, TIER: tl.constexpr, SINGLE: tl.constexpr, SWAPPED: tl.constexpr,
    LEFT_ABSENT: tl.constexpr, RIGHT_ABSENT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Makes this program's piece if the tier's certificate holds, and returns 1 + TIER; or returns
    0. `certified_kernel` explains the arguments."""
    g, i0, j0 = tile_corner(M, N, BM, BN)
    tier = tl.full([], 0, tl.int32)
    HAS_ABSENT: tl.constexpr = LEFT_ABSENT or RIGHT_ABSENT
    holds, limit = certified(left_facts, right_facts, C, R, TIER, HAS_ABSENT)
    if holds:
        left_start, rows = lane_offsets(left, g, i0, tl.arange(0, BM), M)
        right_start, cols = lane_offsets(right, g, j0, tl.arange(0, BN)[None, :], N)
        i, j = i0 + tl.arange(0, BM), j0 + tl.arange(0, BN)
        row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
        seed = derived_seed(seed_ptr, role)

        seen = tl.zeros([BN], tl.int32 if TIER >= FUSED64 else tl.float32)
        if R.chunked:
            total = tl.zeros([BM, BN], tl.float32)
            begin_here = begin + tl.program_id(1) * share
            for c in range(begin_here, tl.minimum(begin_here + share, end)):
                first, last = chunk_start(out, c, chunk, K), chunk_start(out, c + 1, chunk, K)
                sums, seen = sums_of_span(
                    first, last, seen, left, left_start, left_step, rows, right, right_start,
                    right_step, cols, seed, row, col, C, R, TIER, LEFT_ABSENT, RIGHT_ABSENT, BM, BN,
                )  # fmt: skip
                if parts is None:
                    total = closed(total, sums, c, seed, row, col, C, R, SINGLE)
                else:
                    chunk_parts = parts + tl.cast(c - begin, tl.int64) * part_step
                    tl.store(part_tile(chunk_parts, g, i0, j0, M, N, BM, BN, BM, BN), single(sums))
        else:
            total, seen = sums_of_span(
                tl.full([], 0, tl.int64), tl.cast(K, tl.int64), seen, left, left_start, left_step,
                rows, right, right_start, right_step, cols, seed, row, col, C, R, TIER, LEFT_ABSENT,
                RIGHT_ABSENT, BM, BN,
            )  # fmt: skip
        in_range = True
        if (TIER > PLAIN) and (TIER != RANGE) and (TIER != FIXED):
            in_range = not reached(seen, limit, C, TIER)
        if in_range:
            if parts is None:
                store_tile(total, out, g, i, j, M, N)
            tier += TIER + 1
    return tier


@triton.jit(do_not_specialize=[*VARYING, "pieces", "again", "begin", "end", "share", "part_step"])
def certified_kernel(
    left, left_step, right, right_step, out, seed_ptr, role, M, N, K, chunk, C, left_facts,
    right_facts, before, tile_tiers, pieces, again, begin, end, share, parts, part_step,
    R: tl.constexpr, TIERS: tl.constexpr, SINGLE: tl.constexpr, SWAPPED: tl.constexpr,
    LEFT_ABSENT: tl.constexpr, RIGHT_ABSENT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BEFORE_M: tl.constexpr, BEFORE_N: tl.constexpr,
):  # fmt: skip
    """out[g][i][j] = sum over k of left[g][i][k] right[g][j][k], k ascending, every step rounded.

    As `exact_kernel`, for accumulators with all of TIERS (`triton_tiers.tiers`). Grid: one program
    for BM x BN outputs of one matrix, which makes one chunk after the other with its sums in
    registers. With parts the grid has a second dimension, with one program for each ``share`` of
    the chunks from begin to end; their sums go to parts[chunk - begin], part_step apart, for
    `exact_kernel`. before: `TileTiers.values` of the kernel before, in tiles of BEFORE_M x
    BEFORE_N, or None. tile_tiers: `TileTiers.values` of this kernel, with so many pieces. again: 1
    if they come from an earlier pass over other chunks; a piece of no tier then stays open. SINGLE:
    of `closed`. No bias and no rounding of the result.
    """
    g, i0, j0 = tile_corner(M, N, BM, BN)
    piece = tl.cast(tl.program_id(1), tl.int64)
    place = tile_tiers + (tl.cast(tl.program_id(0), tl.int64) * pieces + piece)
    tier = tl.full([], 0, tl.int32)
    if before is not None:
        tier = tl.load(before + tile_number(g, i0, j0, M, N, BEFORE_M, BEFORE_N) * pieces + piece)
    is_open = tl.load(place, mask=again != 0, other=1) != 0
    if not is_open:
        tier = tl.full([], 0, tl.int32)
    for t in tl.static_range(count_of(TIERS)):
        if is_open and (tier == 0):
            tier = piece_by_tier(
                left, left_step, left_facts, right, right_step, right_facts, out, seed_ptr, role,
                M, N, K, chunk, begin, end, share, parts, part_step, C, R, tier_of(TIERS, t),
                SINGLE, SWAPPED, LEFT_ABSENT, RIGHT_ABSENT, BM, BN,
            )  # fmt: skip
    tl.store(place, tier)
