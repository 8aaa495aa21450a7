"""Rounding that counts: the kernels of `quantize`, `affine` and `block` with a look at what each
element became, and affine formats in given ranges.

A program adds up its tile and then adds the result to the counts, which are integers, so that the
order does not matter. Overflow is judged by the same rounding without the format's ends; the
compiler shares most of it with the rounding itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends import COUNTS
from lpkernels.backends._layout import axis_sizes, dense
from lpkernels.backends.triton._launch import ALL_REGISTERS, EXACT, on_device, registers
from lpkernels.backends.triton.elementwise import affine, block
from lpkernels.backends.triton.elementwise.affine import tile_places, value_on_line
from lpkernels.backends.triton.elementwise.block import (
    block_indices,
    block_mask,
    first_offset,
    largest_magnitude,
    power_of_two,
    scale_exponent,
    scaled_word,
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
    EXPONENT,
    MAGNITUDE,
    bits_of,
    double,
    magnitude_of,
    moderated,
    widened,
)
from lpkernels.backends.triton.rounding.round import round_to, round_to_float
from lpkernels.backends.triton.rounding.rule import (
    INFINITY,
    SATURATE,
    STOCHASTIC,
    Numbers,
    Rule,
    rule_of,
)
from lpkernels.formats.integers import AFFINE, BLOCK, KIND, InAffine, takes_scales

_BLOCK = 1024
_BINS = tl.constexpr(256)
# From the exponent field of float64 to the field of float32.
_BIAS_DIFFERENCE = tl.constexpr(1023 - 127)


class Wanted(NamedTuple):
    """The outputs that a kernel writes, compiled in."""

    values: bool
    counts: bool
    histogram: bool


def unbounded(rule: Rule, numbers: Numbers) -> tuple[Rule, Numbers]:
    """The same rounding to a format without ends."""
    overflow = SATURATE.value if rule.fixed else INFINITY.value
    endless = numbers._replace(max=float("inf"))
    if rule.fixed:
        endless = endless._replace(low=-float("inf"))
    return rule._replace(overflow=overflow), endless


@triton.jit
def beyond_ends(r, N, R: tl.constexpr):
    """Whether a value that was rounded without ends lies beyond them."""
    if R.fixed:
        return (r > tl.cast(N.max, r.dtype)) | (r < tl.cast(N.low, r.dtype))
    else:
        return tl.abs(r) > tl.cast(N.max, r.dtype)


@triton.jit
def add_counts(counts_ptr, x, over, vanished, inside, W: tl.constexpr):
    """Adds a tile's counts. x: its values in float64. over: where a finite value overflows.
    vanished: where a value has become zero."""
    if W.counts:
        bits = bits_of(x) & MAGNITUDE
        finite, zero = inside & (bits < EXPONENT), inside & (bits == 0)
        over = over & finite
        under = vanished & finite & (zero == 0) & (over == 0)
        tl.atomic_add(counts_ptr, total_of(over), sem="relaxed")
        tl.atomic_add(counts_ptr + 1, total_of(under), sem="relaxed")
        tl.atomic_add(counts_ptr + 2, total_of(zero), sem="relaxed")
        tl.atomic_add(counts_ptr + 3, total_of(inside & (finite == 0)), sem="relaxed")
        if W.histogram:
            field = tl.minimum(tl.maximum((bits >> 52) - _BIAS_DIFFERENCE, 0), _BINS - 2)
            field = tl.where(bits >= EXPONENT, _BINS - 1, field)
            # Places outside of the tensor fall into bin 0, and out of it again.
            field = tl.where(inside, field, 0).to(tl.int32)
            bins = tl.histogram(tl.ravel(field), _BINS).to(tl.int64)
            place = tl.arange(0, _BINS)
            bins = tl.where(place == 0, bins - total_of(inside == 0), bins)
            tl.atomic_add(counts_ptr + 4 + place, bins, mask=bins != 0, sem="relaxed")


@triton.jit
def total_of(mask):
    """The number of true elements of a tile."""
    return tl.sum(tl.ravel(mask.to(tl.int32)), axis=0).to(tl.int64)


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


@triton.jit(do_not_specialize=["total", "per_line", "chunks", "role", "site"])
def count_blocks_kernel(
    x_ptr,
    out_ptr,
    counts_ptr,
    L,
    total,
    per_line,
    chunks,
    N,
    U,
    seed_ptr,
    role,
    site,
    R: tl.constexpr,
    RU: tl.constexpr,
    BY: tl.constexpr,
    W: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    PART: tl.constexpr,
    SIDE: tl.constexpr,
    WHOLE: tl.constexpr,
    FAR: tl.constexpr,
):
    """`block.quantize_blocks_kernel`, counting. U, RU: N and R without ends."""
    outer, along, inner, count = block_indices(L, total, per_line, chunks, SIZE, BLOCKS, SIDE)
    first = first_offset(L, outer, along, inner, SIZE)
    largest, finite = largest_magnitude(x_ptr, first, count, L.inner, SIZE, BLOCKS, PART, WHOLE)
    exponent = scale_exponent(largest, N)
    down, up = power_of_two(-exponent)[:, None], power_of_two(exponent)[:, None]
    whole = tl.broadcast_to(finite[:, None], [BLOCKS, PART])
    for start in range(0, SIZE, PART):
        place = start + tl.arange(0, PART)
        inside = block_mask(place, count, WHOLE, BLOCKS, PART)
        offset = first[:, None] + (place * L.inner)[None, :]
        near = offset if FAR else tl.full([], 0, tl.int64)
        lifts = element_lifts(offset, near, seed_ptr, role, site, R)
        if BY == BY_FLOAT64:
            x = load_double(x_ptr + offset, inside)
            if x_ptr.dtype.element_ty == tl.float64:
                x = moderated(x)
            rounded = round_to(x * down, lifts, N, R)
            endless = round_to(x * down, lifts, U, RU)
            r = (rounded * up).to(tl.float32)
            values = x
        else:
            x = widened(tl.load(x_ptr + offset, mask=inside, other=0.0))
            y = scaled_word(x, down.to(tl.float32))
            rounded = round_to_float(y, lifts, N, R)
            endless = round_to_float(y, lifts, U, RU)
            r = rounded * up.to(tl.float32)
            values = double(x)
        if W.values:
            store_rounded(out_ptr + offset, tl.where(whole, r, float("nan")), inside)
        over = beyond_ends(endless, N, R) & whole
        add_counts(counts_ptr, values, over, (rounded == 0.0) & whole, inside, W)


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


class _Call(NamedTuple):
    """The request to every kernel that counts: the arguments of `Backend.quantize_counting`, with x
    and out as the kernel takes them."""

    x: Tensor
    quantizer: tuple[int, ...]
    seed: Tensor | None
    role: int
    site: int
    out: Tensor | None
    counts: Tensor | None
    wanted: Wanted


def quantize_counting(
    x: Tensor,
    quantizer: tuple[int, ...],
    seed: Tensor | None,
    role: int,
    site: int,
    out: Tensor | None,
    counts: Tensor | None,
    limits: Tensor | None,
) -> None:
    """As `Backend.quantize_counting`."""
    wanted = Wanted(
        out is not None, counts is not None, counts is not None and counts.numel() > COUNTS
    )
    scaled = takes_scales(quantizer)
    stochastic = quantizer[InQuantizer.ROUNDING] == STOCHASTIC.value
    other_order = out is not None and x.stride() != out.stride()
    if scaled or stochastic or other_order or not dense(x):
        x = x.contiguous()
    target = out
    if out is not None and out.stride() != x.stride():
        target = torch.empty_like(x, dtype=out.dtype)
    call = _Call(x, quantizer, seed, role, site, target, counts, wanted)
    with on_device(x):
        if quantizer[KIND] == AFFINE:
            _count_lines(call, affine.ends_of(x, quantizer) if limits is None else limits)
        elif quantizer[KIND] == BLOCK:
            _count_blocks(call)
        else:
            _count_elements(call)
    if out is not None and target is not None and target is not out:
        out.copy_(target)


def _count_elements(call: _Call) -> None:
    x, quantizer, seed, role, site, out, counts, wanted = call
    rule, numbers = rule_of(quantizer[InQuantizer.FORMAT], *quantizer[InQuantizer.RULE])
    endless_rule, endless = unbounded(rule, numbers)
    how = way(quantizer[InQuantizer.FORMAT], x.dtype, torch.float32 if out is None else out.dtype)
    count_kernel[(triton.cdiv(x.numel(), _BLOCK),)](
        x, out, counts, x.numel(), numbers, endless, seed_for(rule, seed, x.device), role, site,
        R=rule, RU=endless_rule, BY=how, W=wanted, BLOCK=_BLOCK, **EXACT,
        **registers(ALL_REGISTERS),
    )  # fmt: skip


def _count_blocks(call: _Call) -> None:
    x, quantizer, seed, role, site, out, counts, wanted = call
    element = block.element_of(quantizer)
    rule, numbers = rule_of(element, *quantizer[InQuantizer.RULE])
    endless_rule, endless = unbounded(rule, numbers)
    lines, sizes, programs, constants = block.tiles(x.shape, quantizer)
    count_blocks_kernel[(programs,)](
        x, out, counts, lines, *sizes, numbers, endless, seed_for(rule, seed, x.device), role,
        site, R=rule, RU=endless_rule, BY=way(element, x.dtype, torch.float32), W=wanted,
        FAR=x.numel() >= 2**32, **constants, **EXACT,
    )  # fmt: skip


def _count_lines(call: _Call, limits: Tensor) -> None:
    x, quantizer, seed, role, site, out, counts, wanted = call
    rule, numbers = rule_of(affine._INTEGERS, *quantizer[InQuantizer.RULE])
    sizes = axis_sizes(x.shape, quantizer)
    matrices, places, programs, constants = affine.tiles(sizes, affine._LINE_TILE)
    count_lines_kernel[(programs,)](
        x, out, counts, limits, sizes[1], affine.top_code(quantizer), matrices, *places, numbers,
        seed_for(rule, seed, x.device), role, site, R=rule, W=wanted,
        SYMMETRIC=bool(quantizer[InAffine.SYMMETRIC]), **constants, **EXACT,
        **registers(ALL_REGISTERS),
    )  # fmt: skip
