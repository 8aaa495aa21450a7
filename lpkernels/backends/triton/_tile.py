"""The work of product kernels around their loops: addresses, draws, the last roundings.

A kernel takes its operands as `Side`, its outputs as `Outputs`, its roundings as `_roundings` has
them; `_layout` explains the tables.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from lpkernels.backends.triton._layout import (
    COLS_FIRST,
    ROWS_FIRST,
    SCALES_FIRST,
)
from lpkernels.backends.triton.rounding.bits import double, narrow, single
from lpkernels.backends.triton.rounding.draws import (
    column_of,
    drawn_lift,
    words_log2,
    words_of,
)
from lpkernels.backends.triton.rounding.odd import odd_sum
from lpkernels.backends.triton.rounding.round import add_rounded, ranged, round_to

# The sites of lpkernels.rng.
SITE_SUM, SITE_PRODUCT, SITE_OUTER, SITE_BIAS = map(tl.constexpr, range(4))

_SCALES_FIRST, _ROWS_FIRST = tl.constexpr(SCALES_FIRST), tl.constexpr(ROWS_FIRST)
_COLS_FIRST = tl.constexpr(COLS_FIRST)


class Side(NamedTuple):
    """The pointers of an Operand."""

    data: Tensor
    batch: Tensor
    lanes: Tensor | None
    steps: Tensor | None


class Outputs(NamedTuple):
    """The pointers of Sums."""

    data: Tensor
    batch: Tensor
    rows: Tensor
    cols: Tensor
    row_keys: Tensor
    col_keys: Tensor
    row_batch: Tensor
    col_batch: Tensor
    bias: Tensor | None
    positions: Tensor | None
    starts: Tensor | None
    initial: Tensor | None = None
    row_scales: Tensor | None = None
    col_scales: Tensor | None = None


@triton.jit
def tile_corner(M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Matrix, first row and first column of this program, int64; rows fastest."""
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    tile = tl.cast(tl.program_id(0), tl.int64)
    return tile // down // across, tile % down * BM, tile // down % across * BN


@triton.jit
def tile_of_program(M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Matrix, rows (BM,) and columns (BN,) of this program, int64."""
    g, i, j = tile_corner(M, N, BM, BN)
    return g, i + tl.arange(0, BM), j + tl.arange(0, BN)


@triton.jit
def tile_number(g, i, j, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """The program that has output (i, j) of matrix g where tiles are BM x BN."""
    return (g * tl.cdiv(N, BN) + j // BN) * tl.cdiv(M, BM) + i // BM


@triton.jit
def part_tile(
    parts,
    g,
    i,
    j,
    M,
    N,
    PART_M: tl.constexpr,
    PART_N: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Pointers to the first chunk's sums of BM x BN outputs from (i, j) on. parts holds tiles of
    PART_M x PART_N outputs, one after the other; these outputs lie inside one of them."""
    first = parts + tile_number(g, i, j, M, N, PART_M, PART_N) * (PART_M * PART_N)
    first += i % PART_M * PART_N + j % PART_N
    return first + ((tl.arange(0, BM) * PART_N)[:, None] + tl.arange(0, BN)[None, :])


@triton.jit
def lane_pointers(side, g, lane, count):
    """Pointers to step 0 of these lanes; for lanes from ``count`` on to some valid memory."""
    start = side.data + tl.load(side.batch + g)
    if side.lanes is None:
        return start + lane
    else:
        return start + tl.load(side.lanes + lane, mask=lane < count, other=0)


@triton.jit
def step_offset(side, step, k):
    if side.steps is None:
        return tl.cast(k, tl.int64) * step
    else:
        return tl.load(side.steps + k)


@triton.jit
def position_of(out, k):
    """The position of step k in the contract's order, int64."""
    if out.positions is None:
        return tl.cast(k, tl.int64)
    else:
        return tl.load(out.positions + k)


@triton.jit
def chunk_start(out, c, chunk, K):
    """The first step of chunk c; K for the chunk behind the last."""
    if out.starts is None:
        return tl.minimum(tl.cast(c, tl.int64) * chunk, tl.cast(K, tl.int64))
    else:
        return tl.load(out.starts + c)


@triton.jit
def chunk_position(out, c, chunk):
    """The position of chunk c's first product, int64."""
    if out.row_scales is None:
        return tl.cast(c, tl.int64) * chunk
    else:
        return tl.load(out.starts + c)


@triton.jit
def draw_keys(out, g, i, j, M, N, SWAPPED: tl.constexpr):
    """The row and the column key of every output, two tiles that broadcast."""
    first = tl.load(out.row_batch + g) + tl.load(out.row_keys + i, mask=i < M, other=0)
    second = tl.load(out.col_batch + g) + tl.load(out.col_keys + j, mask=j < N, other=0)
    if SWAPPED:
        return second[None, :], first[:, None]
    else:
        return first[:, None], second[None, :]


@triton.jit
def words_at(words, number, position, seed, site, row, column, R: tl.constexpr):
    """The words of the draw at ``position``, and their number; number: that of words, which are
    returned where it is the same."""
    word = position >> words_log2(R.random_bits)
    if word != number:
        words = words_of(seed, site, row, column, word, R)
    return words, word


@triton.jit
def add_outermost(total, addend, site, position, seed, row, col, C, R: tl.constexpr):
    """total + addend in the outermost accumulator, drawn at a position of a site of its own."""
    column = column_of(seed, site, col, R.outer)
    lift = drawn_lift(seed, site, row, column, position, R.outer)
    return add_rounded(total, addend, lift, C.outer, R.outer)


@triton.jit
def scaled_sums(sums, out, g, i, j, c, chunks, M, N, R: tl.constexpr):
    """The sums of chunk c, float64, times their scales, if they have any. A float32 times a float32
    is exact in float64, and so are the products that `functional.matmul` lets through."""
    if out.row_scales is None:
        return sums
    else:
        place = g * chunks + c
        row = double(tl.load(out.row_scales + (place * M + i), mask=i < M, other=1.0))[:, None]
        col = double(tl.load(out.col_scales + (place * N + j), mask=j < N, other=1.0))[None, :]
        if R.scale_order == _SCALES_FIRST:
            return sums * double(single(row * col))
        elif R.scale_order == _ROWS_FIRST:
            return double(single(sums * row)) * col
        elif R.scale_order == _COLS_FIRST:
            return double(single(sums * col)) * row
        else:
            return sums * (row * col)


@triton.jit
def end_chunk(outer, sums, out, g, i, j, c, chunks, M, N, seed, row, col, C, R: tl.constexpr):
    """The outer sums, once the sums of chunk c are added."""
    position = tl.cast(c, tl.int64)
    addend = scaled_sums(sums, out, g, i, j, position, chunks, M, N, R)
    return add_outermost(outer, addend, SITE_OUTER, position, seed, row, col, C, R)


@triton.jit
def closed(total, sums, c, seed, row, col, C, R: tl.constexpr, SINGLE: tl.constexpr):
    """The outer sums total, float32, once the sums of chunk c are added. SINGLE: they are rounded
    in float32, as `triton_tiers.single_outer` allows."""
    if SINGLE:
        return ranged(odd_sum(total, single(sums)), C.outer, R.outer)
    else:
        position = tl.cast(c, tl.int64)
        outer = add_outermost(
            double(total), double(sums), SITE_OUTER, position, seed, row, col, C, R
        )
        return single(outer)


@triton.jit
def output_places(out, g, i, j, M, N):
    """Offsets of the outputs, and whether each exists."""
    rows = tl.load(out.batch + g) + tl.load(out.rows + i, mask=i < M, other=0)
    cols = tl.load(out.cols + j, mask=j < N, other=0)
    return rows[:, None] + cols[None, :], (i < M)[:, None] & (j < N)[None, :]


@triton.jit
def started(
    out, g, i, j, M, N, seed, row, col, C, R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """The outermost sums at their start: +0, or the given values rounded to the sums' format. Their
    draw comes behind the bias's."""
    if out.initial is None:
        return tl.zeros([BM, BN], tl.float64)
    else:
        places, inside = output_places(out, g, i, j, M, N)
        total = double(tl.load(out.initial + places, mask=inside, other=0.0))
        column, position = column_of(seed, SITE_BIAS, col, R.outer), tl.full([], 1, tl.int64)
        lift = drawn_lift(seed, SITE_BIAS, row, column, position, R.outer)
        return round_to(total, lift, C.outer, R.outer)


@triton.jit
def finished(total, out, seed, row, col, C, R: tl.constexpr):
    """The sums with their bias, in the format of the result."""
    if out.bias is not None:
        # Outputs outside the matrix have the keys of its first output.
        bias = double(tl.load(out.bias + col))
        first = tl.full([], 0, tl.int64)
        total = add_outermost(total, bias, SITE_BIAS, first, seed, row, col, C, R)
    if R.result is not None:
        total = round_to(total, 0, C.result, R.result)
    return total


@triton.jit
def store_tile(total, out, g, i, j, M, N):
    """Writes the outputs that lie inside the matrix."""
    places, inside = output_places(out, g, i, j, M, N)
    tl.store(out.data + places, narrow(total), mask=inside)
