"""quantize for block formats (OCP Microscaling Formats v1.0): a scale for every block.

A tile has some blocks by their elements along the axis, or a part of the elements where blocks are
long. Where the axis is the innermost, neighbouring blocks lie one behind the other; elsewhere
blocks lie side by side, with their elements `inner` apart.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends._layout import axis_sizes
from lpkernels.backends.triton._launch import EXACT, on_device
from lpkernels.backends.triton.elementwise.quantize import (
    BY_FLOAT64,
    element_lifts,
    load_double,
    seed_for,
    store_rounded,
    way,
)
from lpkernels.backends.triton.rounding.bits import (
    EXPONENT,
    EXPONENT32,
    MAGNITUDE,
    MAGNITUDE32,
    bits_of,
    double,
    moderated,
    single,
    value_of,
    widened,
)
from lpkernels.backends.triton.rounding.round import round_to, round_to_float
from lpkernels.backends.triton.rounding.rule import SATURATE, rule_of
from lpkernels.formats.integers import InBlock, InFloat

_ELEMENTS = 1024


class Lines(NamedTuple):
    """The length of the axis and its stride; kernels are compiled for the divisors of both."""

    length: int
    inner: int


@triton.jit
def block_indices(
    L, total, per_line, chunks, SIZE: tl.constexpr, BLOCKS: tl.constexpr, SIDE: tl.constexpr
):
    """For each of this program's BLOCKS blocks: the outer position, the block along the axis, the
    inner position, and the number of elements, which is 0 where there is no block.

    total: blocks in all but the inner positions; per_line: along the axis; chunks: tiles side by
    side.
    """
    program = tl.cast(tl.program_id(0), tl.int64)
    lane = tl.arange(0, BLOCKS)
    if SIDE:
        block = program // chunks
        inner = program % chunks * BLOCKS + lane
        exists = inner < L.inner
    else:
        block = program * BLOCKS + lane
        inner = lane.to(tl.int64) * 0
        exists = block < total
    along = block % per_line
    count = tl.where(exists, tl.minimum(-along * SIZE + L.length, SIZE), 0)
    return block // per_line, along, inner, count


@triton.jit
def first_offset(L, outer, along, inner, SIZE: tl.constexpr):
    """Where the first element of a block lies."""
    return (outer * L.length + along * SIZE) * L.inner + inner


@triton.jit
def block_mask(place, count, WHOLE: tl.constexpr, BLOCKS: tl.constexpr, PART: tl.constexpr):
    """Which of the elements ``place`` of each block exist. With WHOLE all elements of an existing
    block do."""
    if WHOLE:
        return tl.broadcast_to((count > 0)[:, None], [BLOCKS, PART])
    else:
        return place[None, :] < count[:, None]


@triton.jit
def largest_magnitude(
    x_ptr,
    first,
    count,
    step,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    PART: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """The largest |x| of every block in float64, and whether all of its elements are finite.

    Integers, the bits, are compared: any NaN is more than infinity.
    """
    DOUBLE: tl.constexpr = x_ptr.dtype.element_ty == tl.float64
    largest = tl.zeros([BLOCKS], tl.int64 if DOUBLE else tl.int32)
    for start in range(0, SIZE, PART):
        place = start + tl.arange(0, PART)
        mask = block_mask(place, count, WHOLE, BLOCKS, PART)
        offset = first[:, None] + (place * step)[None, :]
        x = tl.load(x_ptr + offset, mask=mask, other=0.0)
        bits = bits_of(x) & MAGNITUDE if DOUBLE else bits_of(widened(x)) & MAGNITUDE32
        largest = tl.maximum(largest, tl.max(bits, axis=1))
    if DOUBLE:
        return value_of(largest), largest < EXPONENT
    else:
        finite = largest < EXPONENT32
        return double(value_of(largest)), finite


@triton.jit
def scale_exponent(largest, N):
    """X = clamp(floor(log2 largest) - emax, -127, 127) of the scale 2^X, -127 of zeros."""
    emax = (bits_of(single(N.max)) >> 23) - 127
    exponent = (bits_of(largest) >> 52).to(tl.int32) - 1023 - emax
    return tl.minimum(tl.maximum(exponent, -127), 127)


@triton.jit
def power_of_two(exponent):
    """2^exponent in float64, for int32."""
    return value_of((exponent.to(tl.int64) + 1023) << 52)


@triton.jit
def scaled_word(x, down):
    """float32 x * down, a power of two from 2^-127 to 2^127, as rounding to an element sees it.

    Exact from 2^-126 on. Below 2^-100 all values but zeros become one: steps of elements are
    at least 2^-22, and a draw looks at 33 places below them.
    """
    y = x * down
    tiny = (tl.abs(y) < 2.0**-100) & (x != 0.0)
    return tl.where(tiny, tl.where(x < 0.0, -(2.0**-100), 2.0**-100), y)


@triton.jit(do_not_specialize=["total", "per_line", "chunks", "role", "site"])
def quantize_blocks_kernel(
    x_ptr,
    out_ptr,
    L,
    total,
    per_line,
    chunks,
    N,
    seed_ptr,
    role,
    site,
    R: tl.constexpr,
    BY: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    PART: tl.constexpr,
    SIDE: tl.constexpr,
    WHOLE: tl.constexpr,
    FAR: tl.constexpr,
):
    """out = round(x / 2^X) * 2^X, X of the element's block.

    A program owns BLOCKS blocks of SIZE elements, PART elements of each at a time; grid: all
    blocks. FAR: whether words of draws have numbers from 2^32 on.
    """
    outer, along, inner, count = block_indices(L, total, per_line, chunks, SIZE, BLOCKS, SIDE)
    first = first_offset(L, outer, along, inner, SIZE)
    largest, finite = largest_magnitude(x_ptr, first, count, L.inner, SIZE, BLOCKS, PART, WHOLE)
    exponent = scale_exponent(largest, N)
    down, up = power_of_two(-exponent)[:, None], power_of_two(exponent)[:, None]
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
            r = (round_to(x * down, lifts, N, R) * up).to(tl.float32)
        else:
            x = widened(tl.load(x_ptr + offset, mask=inside, other=0.0))
            y = scaled_word(x, down.to(tl.float32))
            r = round_to_float(y, lifts, N, R) * up.to(tl.float32)
        store_rounded(out_ptr + offset, tl.where(finite[:, None], r, float("nan")), inside)


def element_of(fmt: tuple[int, ...]) -> tuple[int, ...]:
    """The element's integers as a block uses it: beyond max is max."""
    element = list(fmt[InBlock.ELEMENT])
    element[InFloat.OVERFLOW] = SATURATE.value
    return tuple(element)


def tiles(shape: torch.Size, fmt: tuple[int, ...]) -> tuple[Lines, list[int], int, dict[str, int]]:
    """How blocks lie, their three counts, the number of tiles, and the kernels' constants."""
    outer, length, inner = axis_sizes(shape, fmt)
    size = min(fmt[InBlock.SIZE], length)
    part = min(triton.next_power_of_2(size), _ELEMENTS)
    side = inner > 1
    per_line = triton.cdiv(length, size)
    width = inner if side else outer * per_line
    blocks = min(triton.next_power_of_2(width), max(1, _ELEMENTS // part))
    chunks = triton.cdiv(width, blocks)
    count = chunks * (outer * per_line if side else 1)
    whole = size % part == 0 and length % size == 0
    constants = {"SIZE": size, "BLOCKS": blocks, "PART": part, "SIDE": side, "WHOLE": whole}
    return Lines(length, inner), [outer * per_line, per_line, chunks], count, constants


def quantize(
    x: Tensor, quantizer: tuple[int, ...], seed: Tensor | None, role: int, site: int, out: Tensor
) -> None:
    """Every value of x, rounded with its block's scale, into out, for a block format."""
    if x.numel() == 0:
        return
    element = element_of(quantizer)
    rule, numbers = rule_of(element, *quantizer[InQuantizer.RULE])
    how = way(element, x.dtype, torch.float32)
    x = x.contiguous()
    target = out if out.is_contiguous() else torch.empty_like(x, dtype=out.dtype)
    lines, counts, programs, constants = tiles(x.shape, quantizer)
    with on_device(x):
        quantize_blocks_kernel[(programs,)](
            x, target, lines, *counts, numbers, seed_for(rule, seed, x.device), role, site,
            R=rule, BY=how, FAR=x.numel() >= 2**32, **constants, **EXACT,
        )  # fmt: skip
    if target is not out:
        out.copy_(target)
