"""Rounding that counts: the kernels of `quantize` and `affine` with a look at what each element
became, and affine formats in given ranges. The kernel of `block` counts itself.

Overflow is judged by the same rounding without the format's ends; the compiler shares most of it
with the rounding itself.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends import Rounding
from lpkernels.backends._layout import axis_sizes
from lpkernels.backends.triton._launch import ALL_REGISTERS, EXACT, registers
from lpkernels.backends.triton.elementwise import affine
from lpkernels.backends.triton.elementwise.affine import tile_places, value_on_line
from lpkernels.backends.triton.elementwise.counts import (
    add_counts,
    beyond_ends,
    unbounded,
    wanted_of,
)
from lpkernels.backends.triton.elementwise.quantize import (
    BY_EVEN_FLOAT32,
    BY_FLOAT64,
    element_lifts,
    load_double,
    seed_for,
    store_rounded,
    way,
)
from lpkernels.backends.triton.rounding.bits import (
    double,
    magnitude_of,
    moderated,
    widened,
)
from lpkernels.backends.triton.rounding.round import round_to, round_to_float
from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats.integers import InAffine

_BLOCK = 1024


@triton.jit(do_not_specialize=["role", "site"])
def count_kernel(
    x_ptr,
    out_ptr,
    counts_ptr,
    count,
    N,
    U,
    seed_ptr,
    role,
    site,
    R: tl.constexpr,
    RU: tl.constexpr,
    BY: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`quantize.quantize_kernel`, counting. U, RU: N and R without ends."""
    first = tl.cast(tl.program_id(0), tl.int64) * BLOCK
    index = first + tl.arange(0, BLOCK)
    inside = index < count
    lifts = element_lifts(index, first, seed_ptr, role, site, R)
    if BY == BY_FLOAT64:
        x = load_double(x_ptr + index, inside)
        if x_ptr.dtype.element_ty == tl.float64:
            x = moderated(x)
        r = round_to(x, lifts, N, R)
        endless = round_to(x, lifts, U, RU)
        values = x
    else:
        x = widened(tl.load(x_ptr + index, mask=inside, other=0.0))
        r = round_to_float(x, lifts, N, R, BY == BY_EVEN_FLOAT32)
        endless = round_to_float(x, lifts, U, RU, BY == BY_EVEN_FLOAT32)
        values = double(x)
    if W.values:
        store_rounded(out_ptr + index, r, inside)
    add_counts(counts_ptr, values, beyond_ends(endless, N, R), r == 0.0, inside, W)


@triton.jit(do_not_specialize=["slices", "rows", "row_tiles", "column_tiles", "role", "site"])
def count_lines_kernel(
    x_ptr,
    out_ptr,
    counts_ptr,
    limits_ptr,
    slices,
    top,
    M,
    rows,
    row_tiles,
    column_tiles,
    N,
    seed_ptr,
    role,
    site,
    R: tl.constexpr,
    W: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    MANY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """`affine.line_kernel`, counting, between limits: the low ends of all slices, then the high
    ones."""
    offset, inside, which, column = tile_places(
        M, rows, row_tiles, column_tiles, MANY, ROWS, COLUMNS
    )
    if MANY:
        real = column < M.columns
        lo = tl.load(limits_ptr + which, mask=real, other=0.0)[None, :]
        hi = tl.load(limits_ptr + slices + which, mask=real, other=0.0)[None, :]
    else:
        lo = tl.load(limits_ptr + which)
        hi = tl.load(limits_ptr + slices + which)
    x = load_double(x_ptr + offset, inside)
    lifts = element_lifts(offset, offset, seed_ptr, role, site, R)
    r = value_on_line(x, lo, hi, top, lifts, N, R, SYMMETRIC)
    if SYMMETRIC:
        a, b = magnitude_of(lo), magnitude_of(hi)
        high = tl.where(a > b, a, b)
        low = -high
    else:
        high, low = hi, lo
    # Nothing is outside of a slice without ends.
    low, high = tl.where(lo <= hi, low, float("nan")), tl.where(lo <= hi, high, float("nan"))
    if W.values:
        store_rounded(out_ptr + offset, r, inside)
    add_counts(counts_ptr, x, (x < low) | (x > high), r == 0.0, inside, W)


def count_elements(rounding: Rounding) -> None:
    """`quantize.quantize`, counting."""
    x, quantizer, seed, role, site, out, counts, *_ = rounding
    fmt = quantizer[InQuantizer.FORMAT]
    rule, numbers = rule_of(fmt, *quantizer[InQuantizer.RULE], device=x.device)
    endless_rule, endless = unbounded(rule, numbers)
    how = way(fmt, x.dtype, torch.float32 if out is None else out.dtype)
    count_kernel[(triton.cdiv(x.numel(), _BLOCK),)](
        x, out, counts, x.numel(), numbers, endless, seed_for(rule, seed, x.device), role, site,
        R=rule, RU=endless_rule, BY=how, W=wanted_of(rounding), BLOCK=_BLOCK, **EXACT,
        **registers(ALL_REGISTERS),
    )  # fmt: skip


def count_lines(rounding: Rounding) -> None:
    """`affine.quantize`, counting or between limits."""
    x, quantizer, seed, role, site, out, counts, limits, _ = rounding
    rule, numbers = rule_of(affine._INTEGERS, *quantizer[InQuantizer.RULE])
    sizes = axis_sizes(x.shape, quantizer)
    limits = affine.ends_of(x, quantizer) if limits is None else limits
    matrices, places, programs, constants = affine.tiles(sizes, affine._LINE_TILE)
    count_lines_kernel[(programs,)](
        x, out, counts, limits, sizes[1], affine.top_code(quantizer), matrices, *places, numbers,
        seed_for(rule, seed, x.device), role, site, R=rule, W=wanted_of(rounding),
        SYMMETRIC=bool(quantizer[InAffine.SYMMETRIC]), **constants, **EXACT,
        **registers(ALL_REGISTERS),
    )  # fmt: skip
