"""The last kernel of every product in sequence and in chunks: float64, all formats, all modes.

Behind certified kernels it finishes their tiles and sums all other tiles.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from lpkernels.backends.planning.triton_tiers import single_outer
from lpkernels.backends.planning.triton_tiles import Tile
from lpkernels.backends.triton._launch import ALL_REGISTERS, on_device, registers
from lpkernels.backends.triton._layout import ABSENT
from lpkernels.backends.triton._problem import VARYING, Problem, TileTiers
from lpkernels.backends.triton._roundings import Roundings
from lpkernels.backends.triton._tile import (
    SITE_PRODUCT,
    SITE_SUM,
    chunk_start,
    closed,
    draw_keys,
    end_chunk,
    finished,
    lane_pointers,
    output_places,
    part_tile,
    position_of,
    started,
    step_offset,
    store_tile,
    tile_corner,
    tile_number,
    tile_of_program,
    words_at,
)
from lpkernels.backends.triton.rounding.bits import bits_of, double
from lpkernels.backends.triton.rounding.draws import column_of, derived_seed, lift_of
from lpkernels.backends.triton.rounding.round import add_rounded, round_to
from lpkernels.backends.triton.rounding.rule import STOCHASTIC

_ABSENT = tl.constexpr(ABSENT)

#: Chunks whose sums are loaded together, before the first of them is added.
AHEAD = tl.constexpr(8)

_FINISHING = ["pieces", "final", "begin", "end", "part_step"]


@triton.jit
def is_absent(x):
    return bits_of(x) == _ABSENT


@triton.jit
def least_tier(tile_tiers, tile, pieces):
    """0 if no certified kernel summed some piece of the tile (`TileTiers`)."""
    at = tile_tiers + tl.cast(tile, tl.int64) * pieces
    least = tl.load(at)
    for piece in range(1, pieces):
        least = tl.minimum(least, tl.load(at + piece))
    return least


@triton.jit
def finish_tile(
    out, final, seed_ptr, role, M, N, begin, end, parts, part_step, C,
    R: tl.constexpr, SINGLE: tl.constexpr, SWAPPED: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, CERTIFIED_M: tl.constexpr, CERTIFIED_N: tl.constexpr,
):  # fmt: skip
    """out[g][i][j] <- round(out[g][i][j] + parts + bias), rounded as the result.

    parts: `certified_kernel`'s sums of the chunks from begin to end, in tiles of CERTIFIED_M x
    CERTIFIED_N. They are added in order, to the sums in out or, where begin is 0, to +0. With None,
    all sums are in out. final: 0 where other chunks follow, and bias and result wait for them.
    """
    g, i0, j0 = tile_corner(M, N, BM, BN)
    i, j = i0 + tl.arange(0, BM), j0 + tl.arange(0, BN)
    row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
    seed = derived_seed(seed_ptr, role)
    # Outputs outside are the first ones of the matrix: read, not written.
    offsets, _ = output_places(out, g, i, j, M, N)
    places = out.data + offsets
    if parts is None:
        sums = tl.load(places)
    else:
        sums = tl.load(places, mask=tl.full([BM, BN], begin, tl.int32) > 0, other=0.0)
        at = part_tile(parts, g, i0, j0, M, N, CERTIFIED_M, CERTIFIED_N, BM, BN)
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


@triton.jit(do_not_specialize=[*VARYING, *_FINISHING])
def exact_kernel(
    left, left_step, right, right_step, out, seed_ptr, role, M, N, K, chunk, chunks, C, tile_tiers,
    pieces, final, begin, end, parts, part_step,
    R: tl.constexpr, FINISHES: tl.constexpr, SINGLE: tl.constexpr, SWAPPED: tl.constexpr,
    LEFT_ABSENT: tl.constexpr, RIGHT_ABSENT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CERTIFIED_M: tl.constexpr, CERTIFIED_N: tl.constexpr,
):  # fmt: skip
    """out[g][i][j] = sum over k of left[g][i][k] right[g][j][k], k ascending, every step rounded.

    left, right: `Side`; out: `Outputs`; R, C: of `_roundings`. The sums of each chunk join an outer
    one; without chunks there is one of them. Grid: one program for BM x BN outputs of one matrix,
    which holds their sums in registers from the first step to the last. tile_tiers, pieces:
    `TileTiers.values` in tiles of CERTIFIED_M x CERTIFIED_N. With these the kernel sums a tile only
    if the certified kernels left one of its pieces, and only if ``final`` is 1, since other chunks
    may follow. With FINISHES `finish_tile` finishes the tiles of the certified kernels; SINGLE is
    for it.
    """
    if tile_tiers is not None:
        g, i, j = tile_corner(M, N, BM, BN)
        if (
            least_tier(tile_tiers, tile_number(g, i, j, M, N, CERTIFIED_M, CERTIFIED_N), pieces)
            != 0
        ):
            if FINISHES:
                finish_tile(
                    out, final, seed_ptr, role, M, N, begin, end, parts, part_step, C, R, SINGLE,
                    SWAPPED, BM, BN, CERTIFIED_M, CERTIFIED_N,
                )  # fmt: skip
            return
        if final == 0:
            return
    g, i, j = tile_of_program(M, N, BM, BN)
    left_at = lane_pointers(left, g, i, M)
    right_at = lane_pointers(right, g, j, N)
    row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
    seed = derived_seed(seed_ptr, role)

    outer = started(out, g, i, j, M, N, seed, row, col, C, R, BM, BN)
    sums = tl.zeros([BM, BN], tl.float64) if R.chunked else outer
    words = tl.zeros([BM, BN], tl.uint32)
    word = tl.full([], -1, tl.int64)
    sum_column = column_of(seed, SITE_SUM, col, R.sum)
    product_words = tl.zeros([BM, BN], tl.uint32)
    product_word = tl.full([], -1, tl.int64)
    if R.product is not None:
        product_column = column_of(seed, SITE_PRODUCT, col, R.product)

    for c in range(chunks):
        if R.chunked:
            first, last = chunk_start(out, c, chunk, K), chunk_start(out, c + 1, chunk, K)
        else:
            first, last = 0, K
        for k in range(first, last):
            a = tl.load(left_at + step_offset(left, left_step, k))[:, None]
            b = tl.load(right_at + step_offset(right, right_step, k))[None, :]
            position = position_of(out, k)
            product = double(a) * double(b)
            if R.product is not None:
                lift = 0
                if R.product.mode == STOCHASTIC:
                    product_words, product_word = words_at(
                        product_words, product_word, position, seed, SITE_PRODUCT, row,
                        product_column, R.product,
                    )  # fmt: skip
                    lift = lift_of(product_words, position, R.product)
                product = round_to(product, lift, C.product, R.product)
            lift = 0
            if R.sum.mode == STOCHASTIC:
                words, word = words_at(
                    words, word, position, seed, SITE_SUM, row, sum_column, R.sum
                )
                lift = lift_of(words, position, R.sum)
            total = add_rounded(sums, product, lift, C.sum, R.sum)
            if LEFT_ABSENT:
                total = tl.where(is_absent(a), sums, total)
            if RIGHT_ABSENT:
                total = tl.where(is_absent(b), sums, total)
            sums = total
        if R.chunked:
            outer = end_chunk(outer, sums, out, g, i, j, c, chunks, M, N, seed, row, col, C, R)
            sums = tl.zeros([BM, BN], tl.float64)

    total = outer if R.chunked else sums
    store_tile(finished(total, out, seed, row, col, C, R), out, g, i, j, M, N)


# Four programs of 128 threads at a time on a multiprocessor of an NVIDIA GPU.
REGISTERS = 128


def options_of(roundings: Roundings, finishes: bool = False) -> dict[str, int]:
    """The compiler's options beside `EXACT`; without them it spills a few registers."""
    many = roundings.product is not None or roundings.sum.philox
    many = many or (finishes and roundings.outer.philox)
    return registers(ALL_REGISTERS if many else REGISTERS)


class Waiting(NamedTuple):
    """The chunks from begin to end of every sum; their sums wait in memory. final: whether no other
    chunks follow. values: the sums, in the tiles of `TileTiers`, one chunk behind the other; None:
    nothing waits. step: from the sums of a chunk to the sums of the next chunk."""

    begin: int = 0
    end: int = 0
    final: bool = True
    values: Tensor | None = None
    step: int = 0


def launch(
    problem: Problem,
    tile: Tile,
    tile_tiers: TileTiers | None = None,
    waiting: Waiting | None = None,
) -> None:
    """Launches `exact_kernel` for all tiles; tile_tiers: of the certified kernels before it.

    waiting: the sums of chunks that the certified kernels left in memory.
    """
    sums, roundings, waiting = problem.sums, problem.roundings, waiting or Waiting()
    bm, bn, values, pieces, size = tile.bm, tile.bn, None, 1, (1, 1)
    shared = waiting.values is not None
    if tile_tiers is not None:
        values, size, pieces = tile_tiers
        bm, bn = min(bm, size[0]), min(bn, size[1])
    programs = problem.programs(bm, bn)
    if programs == 0:
        return
    finishes = tile_tiers is not None and (
        shared or sums.bias is not None or roundings.result is not None
    )
    with on_device(sums.out):
        exact_kernel[(programs,)](
            *problem.arguments(), *problem.chunks(), problem.constants, values, pieces,
            int(waiting.final), waiting.begin, waiting.end, waiting.values, waiting.step,
            FINISHES=finishes, SINGLE=shared and single_outer(problem.acc), CERTIFIED_M=size[0],
            CERTIFIED_N=size[1], **problem.options(bm, bn, tile.warps),
            **options_of(roundings, finishes),
        )  # fmt: skip
