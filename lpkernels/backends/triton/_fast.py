"""Certified kernels: few operations a product, for the tiles whose operands prove them exact.

Each makes the tiles that are still open at its stage, and leaves to the next stage those for which
the certificate does not hold or whose sums came near its bound (`_certificate`). Nothing of this
waits for the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._certificate import (
    CUT,
    FLOOR,
    HALF,
    NEAREST,
    PLAIN,
    RANGE,
    SPLIT,
    STRIDE,
    certified,
)
from lpkernels.backends.triton._draws import (
    column_keys,
    derived_seed,
    draw_of,
    fast_words,
    row_streams,
    site_base,
)
from lpkernels.backends.triton._launch import interpreting
from lpkernels.backends.triton._rules import STOCHASTIC, add_rounded, wide
from lpkernels.backends.triton._rules32 import floored32, ranged32, single, split32
from lpkernels.backends.triton._rules_upper import cut64, nearest64, upper
from lpkernels.backends.triton._tile import (
    SITE_OUTER,
    SITE_SUM,
    add_outermost,
    chunk_start,
    draw_keys,
    step_offset,
    store_tile,
    tile_corner,
    tile_number,
)
from lpkernels.backends.triton._wide import VARYING, is_absent

_INTERPRETED = tl.constexpr(interpreting())


@triton.jit
def as_sums(x, TIER: tl.constexpr):
    """x in the type in which a tier sums. The interpreter has no fused multiply-add of halves."""
    if TIER >= NEAREST:
        return wide(x)
    elif (TIER >= PLAIN) or _INTERPRETED:
        return single(x)
    else:
        return tl.cast(x, tl.float16 if TIER == HALF else tl.bfloat16)


@triton.jit
def half_multiply_add(a, b, sums, C, R: tl.constexpr):
    """a b + sums rounded once to the half precision of all three: one instruction for two of them.

    IEEE 754's fusedMultiplyAdd to nearest even, with subnormals and infinities, is a step of the
    contract for exact products. Interpreted, the same from float64.
    """
    if _INTERPRETED:
        return single(add_rounded(wide(sums), wide(a) * wide(b), wide(0.0), C.sum, R.sum))
    else:
        return tl.fma(a, b, sums)


@triton.jit
def product_of(a, b, C, R: tl.constexpr, TIER: tl.constexpr):
    """Rounded products; a, b: broadcast to the tile."""
    if TIER >= NEAREST:
        return nearest64(a * b, C.product)
    else:
        return floored32(a * b, C.product)


@triton.jit
def rounded_sum(s, drawn, C, R: tl.constexpr, TIER: tl.constexpr):
    if TIER == SPLIT:
        return split32(s, C.sum)
    elif TIER == FLOOR:
        return floored32(s, C.sum)
    elif TIER == RANGE:
        return ranged32(s, C.sum, R.sum)
    elif TIER == NEAREST:
        return nearest64(s, C.sum)
    elif TIER == CUT:
        return cut64(s, drawn, C.sum, R.sum)
    else:
        return s


@triton.jit
def lane_offsets(side, g, lane0, count, LANES: tl.constexpr):
    """Where step 0 of the lanes from lane0 on lies: a pointer, and the offsets from it."""
    start = side.data + tl.load(side.batch + g)
    if side.lanes is None:
        return start + lane0, tl.arange(0, LANES)
    else:
        lane = lane0 + tl.arange(0, LANES)
        return start, tl.load(side.lanes + lane, mask=lane < count, other=0)


@triton.jit
def operand_at(at, HAS_ABSENT: tl.constexpr, TIER: tl.constexpr):
    """Values of one step; where no sum is -0, an absent tap is a zero, which adds nothing."""
    x = tl.load(at)
    if HAS_ABSENT and ((TIER < PLAIN) or (TIER == SPLIT) or (TIER == CUT)):
        x = tl.where(is_absent(x), 0.0, x)
    return as_sums(x, TIER)


@triton.jit
def step(
    sums,
    left_at,
    right_at,
    drawn,
    C,
    R: tl.constexpr,
    TIER: tl.constexpr,
    LEFT_ABSENT: tl.constexpr,
    RIGHT_ABSENT: tl.constexpr,
):
    """The sums after one more product each."""
    # [BM, 1] and [1, BN]
    a = operand_at(left_at, LEFT_ABSENT, TIER)[:, None]
    b = operand_at(right_at, RIGHT_ABSENT, TIER)[None, :]
    if R.product is not None:
        total = sums + product_of(a, b, C, R, TIER)
    elif TIER < PLAIN:
        total = half_multiply_add(a, b, sums, C, R)
    else:
        # Exact as a product alone: fused or not gives the same.
        total = tl.fma(a, b, sums)
    total = rounded_sum(total, drawn, C, R, TIER)
    if LEFT_ABSENT and (TIER >= PLAIN) and (TIER != SPLIT) and (TIER != CUT):
        total = tl.where(is_absent(tl.load(left_at))[:, None], sums, total)
    if RIGHT_ABSENT and (TIER >= PLAIN) and (TIER != SPLIT) and (TIER != CUT):
        total = tl.where(is_absent(tl.load(right_at))[None, :], sums, total)
    return total


@triton.jit
def drawn_of(words, k, R: tl.constexpr):
    """2 draw + 1 of step k out of its words, as `cut64` takes it."""
    if R.mode == STOCHASTIC:
        return tl.cast(draw_of(words, k, R.random_bits), tl.int32) * 2 + 1
    else:
        return 0


@triton.jit
def looked_at(seen, sums, TIER: tl.constexpr):
    """The largest magnitudes so far, a column each: as float32, or as upper bits of float64."""
    if (TIER <= PLAIN) or (TIER == RANGE):
        return seen
    elif TIER >= NEAREST:
        return tl.maximum(seen, tl.max(upper(sums) & 0x7FFFFFFF, 0))
    else:
        return tl.maximum(seen, tl.max(tl.abs(sums), 0))


@triton.jit
def reached(seen, limit, TIER: tl.constexpr):
    """Whether a sum that was looked at is 2^limit or more."""
    if TIER >= NEAREST:
        return tl.max(seen, 0) >= ((limit + 1023) << 20)
    else:
        return tl.max(seen, 0) >= tl.cast((limit + 127) << 23, tl.float32, bitcast=True)


@triton.jit
def sums_of_span(
    first,
    last,
    seen,
    left,
    left_start,
    left_step,
    rows,
    right,
    right_start,
    right_step,
    cols,
    seed,
    row,
    col,
    C,
    R: tl.constexpr,
    TIER: tl.constexpr,
    LEFT_ABSENT: tl.constexpr,
    RIGHT_ABSENT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Sums from step first to last, from +0, and the largest seen."""
    sums = as_sums(tl.zeros([BM, BN], tl.float32), TIER)
    words = tl.zeros([BM, BN], tl.uint32)
    if R.sum.mode == STOCHASTIC:
        # Words from 2^32 on have other streams: 2^34 steps fit in no memory.
        base = site_base(seed, SITE_SUM)
        columns, streams = column_keys(base, col), row_streams(base, row, row * 0)
    whole = first + (last - first) // STRIDE * STRIDE
    for k0 in range(first, whole, STRIDE):
        for u in tl.static_range(STRIDE):
            k = k0 + u
            if (R.sum.mode == STOCHASTIC) and (u % 4 == 0):
                words = fast_words(columns, streams, k >> 2)
            sums = step(
                sums, left_start + step_offset(left, left_step, k) + rows,
                right_start + step_offset(right, right_step, k) + cols,
                drawn_of(words, u, R.sum), C, R, TIER, LEFT_ABSENT, RIGHT_ABSENT,
            )  # fmt: skip
        seen = looked_at(seen, sums, TIER)
    for k in range(whole, last):
        if R.sum.mode == STOCHASTIC:
            words = fast_words(columns, streams, k >> 2)
        sums = step(
            sums, left_start + step_offset(left, left_step, k) + rows,
            right_start + step_offset(right, right_step, k) + cols, drawn_of(words, k, R.sum),
            C, R, TIER, LEFT_ABSENT, RIGHT_ABSENT,
        )  # fmt: skip
    return sums, looked_at(seen, sums, TIER)


@triton.jit(do_not_specialize=[*VARYING, "stage"])
def fast_kernel(
    left,
    left_step,
    left_facts,
    right,
    right_step,
    right_facts,
    out,
    flags,
    stage,
    seed_ptr,
    role,
    M,
    N,
    K,
    chunk,
    chunks,
    C,
    R: tl.constexpr,
    TIER: tl.constexpr,
    SWAPPED: tl.constexpr,
    LEFT_ABSENT: tl.constexpr,
    RIGHT_ABSENT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    FLAG_M: tl.constexpr,
    FLAG_N: tl.constexpr,
):
    """out[g][i][j] = sum over k of left[g][i][k] right[g][j][k], k ascending, every step rounded.

    As `_wide.wide_kernel`, for the accumulators that `_tiers.tiers` gives TIER. Grid: one program
    for BM x BN outputs of one matrix, its sums in registers, chunks one after the other. flags:
    int32 for every FLAG_M x FLAG_N outputs; those that hold ``stage`` are made here, or become
    stage + 1 if the certificate does not hold. No bias and no rounding of the result: `_stages`.
    """
    g, i0, j0 = tile_corner(M, N, BM, BN)
    flag = flags + tile_number(g, i0, j0, M, N, FLAG_M, FLAG_N)
    if tl.load(flag) != stage:
        return
    HAS_ABSENT: tl.constexpr = LEFT_ABSENT or RIGHT_ABSENT
    holds, limit = certified(left_facts, right_facts, C, R, TIER, HAS_ABSENT)
    if holds == 0:
        tl.store(flag, stage + 1)
        return
    left_start, rows = lane_offsets(left, g, i0, M, BM)
    right_start, cols = lane_offsets(right, g, j0, N, BN)
    i, j = i0 + tl.arange(0, BM), j0 + tl.arange(0, BN)
    row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
    seed = derived_seed(seed_ptr, role)

    seen = tl.zeros([BN], tl.int32 if TIER >= NEAREST else tl.float32)
    if R.chunked:
        total = tl.zeros([BM, BN], tl.float32)
        for c in range(chunks):
            first, last = chunk_start(out, c, chunk, K), chunk_start(out, c + 1, chunk, K)
            sums, seen = sums_of_span(
                first, last, seen, left, left_start, left_step, rows, right, right_start,
                right_step, cols, seed, row, col, C, R, TIER, LEFT_ABSENT, RIGHT_ABSENT, BM, BN,
            )  # fmt: skip
            position = tl.cast(c, tl.int64)
            total = single(
                add_outermost(wide(total), wide(sums), SITE_OUTER, position, seed, row, col, C, R)
            )
    else:
        total, seen = sums_of_span(
            tl.full([], 0, tl.int64), tl.cast(K, tl.int64), seen, left, left_start, left_step, rows,
            right, right_start, right_step, cols, seed, row, col, C, R, TIER, LEFT_ABSENT,
            RIGHT_ABSENT, BM, BN,
        )  # fmt: skip
    if (TIER > PLAIN) and (TIER != RANGE):
        if reached(seen, limit, TIER):
            tl.store(flag, stage + 1)
            return
    store_tile(total, out, g, i, j, M, N)
