"""quantize for affine formats: the range of every slice, then its elements on a line through it,
with counts.

Every step is one float64 operation, so the bits are the reference's. A tensor of `length` slices is
`outer` rows of `length` runs of `inner` elements. Long runs are matrices of `outer` rows by `inner`
columns, one for each slice; short ones are columns of one matrix, so that neighbours in memory stay
neighbours in a tile.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends import Rounding
from lpkernels.backends._layout import axis_sizes
from lpkernels.backends.triton._launch import ALL_REGISTERS, EXACT, registers
from lpkernels.backends.triton.elementwise.counts import add_counts, wanted_of
from lpkernels.backends.triton.elementwise.quantize import (
    element_lifts,
    load_double,
    seed_for,
    store_rounded,
)
from lpkernels.backends.triton.rounding.bits import (
    MAGNITUDE,
    bits_of,
    double,
    magnitude_of,
    value_of,
    widened,
)
from lpkernels.backends.triton.rounding.round import round_to
from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats import FixedFormat
from lpkernels.formats.integers import InAffine

# Codes are integers of at most 17 bits with their sign, which never reach this format's ends.
_INTEGERS = FixedFormat(24, 0).to_ints()
_LONG_RUN = 64
_COLUMNS = 1024
# Elements of a tile of each kernel.
_RANGE_TILE, _LINE_TILE = 4096, 1024

_LARGEST_KEY = tl.constexpr(2**63 - 1)
# 1e-8, which is no float32.
_SMALLEST_STEP = tl.constexpr(0x3E45798EE2308C3A)


class Matrices(NamedTuple):
    """How the tiles of a tensor lie; kernels are compiled for the divisors of these numbers."""

    #: Columns and the distance of rows, of each matrix.
    columns: int
    pitch: int
    #: Elements of a run: columns of one slice where columns are of many.
    inner: int


@triton.jit
def sort_key(x):
    """int64 in the order of the float64 values x, no NaN."""
    bits = bits_of(x)
    return tl.where(bits < 0, bits ^ MAGNITUDE, bits)


@triton.jit
def keyed_value(key):
    return value_of(tl.where(key < 0, key ^ MAGNITUDE, key))


@triton.jit
def tile_places(
    M,
    rows,
    row_tiles,
    column_tiles,
    MANY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The offsets of this program's tile, which of them exist, and the slice of every column."""
    program = tl.cast(tl.program_id(0), tl.int64)
    column = program % column_tiles * COLUMNS + tl.arange(0, COLUMNS)
    matrix = program // column_tiles // row_tiles
    row = program // column_tiles % row_tiles * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & (column < M.columns)[None, :]
    offset = (row * M.pitch + matrix * M.inner)[:, None] + column[None, :]
    slices = column // M.inner if MANY else matrix
    return offset, inside, slices, column


@triton.jit(do_not_specialize=["slices", "rows", "row_tiles", "column_tiles"])
def range_kernel(
    x_ptr,
    ends_ptr,
    slices,
    M,
    rows,
    row_tiles,
    column_tiles,
    MANY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """ends[0, s], ends[1, s] = the least keys of x and of -x over the finite values of slice s.

    A program owns a tile of ROWS x COLUMNS elements of one slice, or of one matrix whose columns
    are many; grid: all tiles. Minima of integers do not depend on the order of programs.
    """
    offset, inside, which, column = tile_places(
        M, rows, row_tiles, column_tiles, MANY, ROWS, COLUMNS
    )
    lows, highs = ends_ptr + which, ends_ptr + slices + which
    x = tl.load(x_ptr + offset, mask=inside, other=float("nan"))
    if x_ptr.dtype.element_ty != tl.float64:
        x = widened(x)
    finite = tl.abs(x) < float("inf")
    low = tl.min(tl.where(finite, x, float("inf")), axis=0)
    high = tl.max(tl.where(finite, x, float("-inf")), axis=0)
    if MANY:
        real = column < M.columns
        tl.atomic_min(lows, sort_key(double(low)), mask=real, sem="relaxed")
        tl.atomic_min(highs, sort_key(-double(high)), mask=real, sem="relaxed")
    else:
        lowest, highest = double(tl.min(low, axis=0)), double(tl.max(high, axis=0))
        tl.atomic_min(lows, sort_key(lowest), sem="relaxed")
        tl.atomic_min(highs, sort_key(-highest), sem="relaxed")


@triton.jit
def line_of(lo, hi, top, SYMMETRIC: tl.constexpr):
    """Where a slice's line starts, its step, and whether the step is the smallest allowed."""
    if SYMMETRIC:
        a, b = magnitude_of(lo), magnitude_of(hi)
        exact = tl.where(a > b, a, b) / top
        start = lo * 0.0
    else:
        exact = (hi - lo) / top
        start = lo
    smallest = value_of(tl.full([], _SMALLEST_STEP, tl.int64))
    floored = exact < smallest
    return start, tl.where(floored, smallest, exact), floored


@triton.jit
def value_on_line(x, lo, hi, top, lifts, N, R: tl.constexpr, SYMMETRIC: tl.constexpr):
    """code * step + lo in float32, of x in float64. Code `top` is hi, unless the step is the
    smallest; a slice without ends is NaN."""
    last = double(top)
    start, step, floored = line_of(lo, hi, last, SYMMETRIC)
    u = (x - start) / step
    first = -last if SYMMETRIC else last * 0.0
    u = tl.where(u < first, first, u)
    u = tl.where(u > last, last, u)
    code = round_to(u, lifts, N, R)
    value = code * step + start
    if not SYMMETRIC:
        value = tl.where((code == last) & (floored == 0), hi, value)
    r = tl.where(lo <= hi, value, float("nan")).to(tl.float32)
    return tl.where(r == 0.0, 0.0, r)


@triton.jit(do_not_specialize=["slices", "rows", "row_tiles", "column_tiles", "role", "site"])
def line_kernel(
    x_ptr, out_ptr, counts_ptr, ends_ptr, slices, top, M, rows, row_tiles, column_tiles, N,
    seed_ptr, role, site,
    R: tl.constexpr, W: tl.constexpr, SYMMETRIC: tl.constexpr, MANY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Each element's `value_on_line`, and counts. ends: the low ends of all slices, then the high
    ones, in float64 or as keys that `range_kernel` leaves; where nothing is finite, lo is infinity
    and hi its negative. Programs and grid as there."""
    offset, inside, which, column = tile_places(
        M, rows, row_tiles, column_tiles, MANY, ROWS, COLUMNS
    )
    if MANY:
        real = column < M.columns
        lo = tl.load(ends_ptr + which, mask=real, other=0)[None, :]
        hi = tl.load(ends_ptr + slices + which, mask=real, other=0)[None, :]
    else:
        lo, hi = tl.load(ends_ptr + which), tl.load(ends_ptr + slices + which)
    if ends_ptr.dtype.element_ty == tl.int64:
        lo, hi = keyed_value(lo), -keyed_value(hi)
    x = load_double(x_ptr + offset, inside)
    lifts = element_lifts(offset, offset, seed_ptr, role, site, R)
    r = value_on_line(x, lo, hi, top, lifts, N, R, SYMMETRIC)
    if W.values:
        store_rounded(out_ptr + offset, r, inside)
    if W.counts:
        # Nothing is outside of a slice without ends.
        low, high = tl.where(lo <= hi, lo, float("nan")), tl.where(lo <= hi, hi, float("nan"))
        if SYMMETRIC:
            high = tl.maximum(magnitude_of(low), magnitude_of(high))
            low = -high
        add_counts(counts_ptr, x, (x < low) | (x > high), r == 0.0, inside, W)


def tiles(sizes: list[int], elements: int) -> tuple[Matrices, list[int], int, dict[str, int]]:
    """How (outer, length, inner) is tiled: rows and tiles of rows and columns, the number of
    programs, and the kernels' constants."""
    outer, length, inner = sizes
    if length == 1:
        outer, inner = 1, outer * inner
    many = length > 1 and inner < _LONG_RUN
    width = length * inner if many else inner
    columns = min(triton.next_power_of_2(width), elements if outer == 1 else _COLUMNS)
    rows = min(triton.next_power_of_2(outer), max(1, elements // columns))
    row_tiles, column_tiles = triton.cdiv(outer, rows), triton.cdiv(width, columns)
    count = row_tiles * column_tiles * (1 if many else length)
    matrices = Matrices(width, length * inner, inner)
    constants = {"MANY": many, "ROWS": rows, "COLUMNS": columns}
    return matrices, [outer, row_tiles, column_tiles], count, constants


def top_code(quantizer: tuple[int, ...]) -> float:
    """The largest code."""
    bits = quantizer[InAffine.BITS]
    return 2.0 ** (bits - 1) - 1 if quantizer[InAffine.SYMMETRIC] else 2.0**bits - 1


def _keys(x: Tensor, sizes: list[int]) -> Tensor:
    """The keys that `range_kernel` leaves, (2, slices); x is contiguous."""
    ends = torch.full((2, sizes[1]), _LARGEST_KEY.value, dtype=torch.int64, device=x.device)
    matrices, places, programs, constants = tiles(sizes, _RANGE_TILE)
    range_kernel[(programs,)](x, ends, sizes[1], matrices, *places, **constants, **EXACT)
    return ends


def quantize(rounding: Rounding) -> None:
    """Every value of x, coded on its slice's line, into out and counted, for an affine format."""
    x, quantizer, seed, role, site, out, counts, limits, _ = rounding
    sizes = axis_sizes(x.shape, quantizer)
    rule, numbers = rule_of(_INTEGERS, *quantizer[InQuantizer.RULE])
    ends = _keys(x, sizes) if limits is None else limits
    matrices, places, programs, constants = tiles(sizes, _LINE_TILE)
    line_kernel[(programs,)](
        x, out, counts, ends, sizes[1], top_code(quantizer), matrices, *places, numbers,
        seed_for(rule, seed, x.device), role, site, R=rule, W=wanted_of(rounding),
        SYMMETRIC=bool(quantizer[InAffine.SYMMETRIC]), **constants, **EXACT,
        **registers(ALL_REGISTERS),
    )  # fmt: skip
