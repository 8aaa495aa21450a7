"""The last kernel's work on tiles that certified kernels made.

It adds the sums of their chunks, then the bias, and rounds the result.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._tile import (
    closed,
    draw_keys,
    finished,
    part_tile,
    store_tile,
    tile_corner,
)
from lpkernels.backends.triton.rounding.bits import double
from lpkernels.backends.triton.rounding.draws import derived_seed

#: Chunks whose sums are loaded together, before the first of them is added.
AHEAD = tl.constexpr(8)


@triton.jit
def least_made(made, tile, pieces):
    """0 if some piece of the tile was not made (`Made`)."""
    at = made + tl.cast(tile, tl.int64) * pieces
    least = tl.load(at)
    for piece in range(1, pieces):
        least = tl.minimum(least, tl.load(at + piece))
    return least


@triton.jit
def finish_tile(
    out,
    final,
    seed_ptr,
    role,
    M,
    N,
    begin,
    end,
    parts,
    part_step,
    C,
    R: tl.constexpr,
    SINGLE: tl.constexpr,
    SWAPPED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    MADE_M: tl.constexpr,
    MADE_N: tl.constexpr,
):
    """out[g][i][j] <- round(out[g][i][j] + parts + bias), rounded as the result.

    parts: `certified_kernel`'s sums of the chunks from begin to end, in tiles of MADE_M x MADE_N.
    They are added in order, to the sums in out or, where begin is 0, to +0. With None, all sums are
    in out. final: 0 where other chunks follow, and bias and result wait for them.
    """
    g, i0, j0 = tile_corner(M, N, BM, BN)
    i, j = i0 + tl.arange(0, BM), j0 + tl.arange(0, BN)
    row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
    seed = derived_seed(seed_ptr, role)
    rows = tl.load(out.batch + g) + tl.load(out.rows + i, mask=i < M, other=0)
    cols = tl.load(out.cols + j, mask=j < N, other=0)
    # Outputs outside are the first ones of the matrix: read, not written.
    places = out.data + (rows[:, None] + cols[None, :])
    if parts is None:
        sums = tl.load(places)
    else:
        sums = tl.load(places, mask=tl.full([BM, BN], begin, tl.int32) > 0, other=0.0)
        at = part_tile(parts, g, i0, j0, M, N, MADE_M, MADE_N, BM, BN)
        step = tl.cast(part_step, tl.int64)
        whole = begin + (end - begin) // AHEAD * AHEAD
        for c0 in range(begin, whole, AHEAD):
            for u in tl.static_range(AHEAD):
                part = tl.load(at + u * step)
                sums = closed(sums, part, c0 + u, seed, row, col, C, R, SINGLE)
            at += AHEAD * step
        for c in range(whole, end):
            sums = closed(sums, tl.load(at), c, seed, row, col, C, R, SINGLE)
            at += step
    total = double(sums)
    if final:
        total = finished(total, out, seed, row, col, C, R)
    store_tile(total, out, g, i, j, M, N)
