"""pack and unpack: dense codes, least significant bit first.

Values without a code are found on the device. Whether there is one must be known before pack
returns, so it waits for the device once and cannot be in a captured graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.backends.triton._launch import EXACT, on_device
from lpkernels.backends.triton.elementwise.block import (
    block_indices,
    block_mask,
    element_of,
    first_offset,
    largest_magnitude,
    power_of_two,
    scale_exponent,
    tiles,
)
from lpkernels.backends.triton.elementwise.codes import Codec, codec_of, decode, encode
from lpkernels.backends.triton.rounding.bits import double, narrow
from lpkernels.backends.triton.rounding.rule import Numbers, rule_of
from lpkernels.formats.integers import BLOCK, KIND

_WORDS, _VALUES = 512, 1024
_SCALE_BITS = tl.constexpr(8)
_NAN_SCALE = tl.constexpr(255)
_NO_INDEX = tl.constexpr(2**63 - 1)


@triton.jit
def note_missing(missing_ptr, index, missing):
    """Notes the least index of a value without a code: of this tile and of all programs so far."""
    least = tl.where(missing, index, _NO_INDEX)
    tl.atomic_min(missing_ptr, tl.min(tl.ravel(least), axis=0), sem="relaxed")


@triton.jit
def code_piece(code, shift):
    """The part of a code that falls into a 32-bit word: shifted up, or down where negative."""
    up = code << tl.maximum(shift, 0)
    return tl.where(shift < 0, code >> tl.maximum(-shift, 0), up) & 0xFFFFFFFF


@triton.jit
def pack_kernel(x_ptr, words_ptr, missing_ptr, count, F: tl.constexpr, WORDS: tl.constexpr):
    """Codes of x, 32 bits to a word, and the index of the first x that has none.

    A program owns WORDS words, each with all codes that reach into it; grid: all words.
    """
    PIECES: tl.constexpr = 32 // F.width if 32 % F.width == 0 else (30 + F.width) // F.width + 1
    word = tl.cast(tl.program_id(0), tl.int64) * WORDS + tl.arange(0, WORDS)
    bits = word * 0
    least = bits + _NO_INDEX
    for piece in tl.static_range(PIECES):
        index = word * 32 // F.width + piece
        shift = index * F.width - word * 32
        inside = (index < count) & (shift < 32)
        code, known = encode(double(tl.load(x_ptr + index, mask=inside, other=0.0)), F)
        bits = bits | tl.where(inside, code_piece(code, tl.minimum(shift, 31)), 0)
        least = tl.where(inside & (known == 0), tl.minimum(least, index), least)
    note_missing(missing_ptr, least, least < _NO_INDEX)
    whole = word * 32 < count * F.width
    tl.store(words_ptr + word, tl.cast(bits.to(tl.uint32), tl.int32, bitcast=True), mask=whole)


@triton.jit
def field_at(codes_ptr, bit, total, WIDTH: tl.constexpr, inside):
    """The WIDTH bits of a stream of `total` bytes from bit number ``bit`` on, int64."""
    BYTES: tl.constexpr = (WIDTH + 14) // 8
    first = bit >> 3
    field = bit * 0
    for i in tl.static_range(BYTES):
        mask = inside & (first + i < total)
        byte = tl.load(codes_ptr + first + i, mask=mask, other=0)
        field = field | (byte.to(tl.int64) << (8 * i))
    return (field >> (bit & 7)) & ((1 << WIDTH) - 1)


@triton.jit
def unpack_kernel(codes_ptr, out_ptr, count, total, F: tl.constexpr, VALUES: tl.constexpr):
    """A program owns VALUES neighbouring values; grid: all of them."""
    index = tl.cast(tl.program_id(0), tl.int64) * VALUES + tl.arange(0, VALUES)
    inside = index < count
    code = field_at(codes_ptr, index * F.width, total, F.width, inside)
    tl.store(out_ptr + index, narrow(decode(code, F)), mask=inside)


@triton.jit
def first_bit(L, per_line, outer, along, inner, count, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Where a block's scale lies in the stream; its elements follow.

    Blocks are in row-major order of (outer, along, inner), the last along the axis short.
    """
    line = L.inner * (per_line * _SCALE_BITS + tl.cast(L.length, tl.int64) * WIDTH)
    full = (SIZE * WIDTH + _SCALE_BITS) * L.inner
    return outer * line + along * full + inner * (count * WIDTH + _SCALE_BITS)


@triton.jit
def or_into(words_ptr, bit, field, inside):
    """Joins fields of at most 32 bits to a stream of zeros."""
    shift = bit & 31
    low = (field << shift) & 0xFFFFFFFF
    high = field >> (-shift + 32)
    word = words_ptr + (bit >> 5)
    low = tl.cast(low.to(tl.uint32), tl.int32, bitcast=True)
    high = tl.cast(high.to(tl.uint32), tl.int32, bitcast=True)
    tl.atomic_or(word, low, mask=inside, sem="relaxed")
    tl.atomic_or(word + 1, high, mask=inside & (high != 0), sem="relaxed")


@triton.jit(do_not_specialize=["total", "per_line", "chunks"])
def pack_blocks_kernel(
    x_ptr,
    words_ptr,
    missing_ptr,
    L,
    total,
    per_line,
    chunks,
    N,
    F: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    PART: tl.constexpr,
    SIDE: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Scale and codes of every block into a stream of zeros, and the first x that has no code.

    Programs and grid as `block.quantize_blocks_kernel`. NaN is a code of whole blocks only.
    """
    outer, along, inner, count = block_indices(L, total, per_line, chunks, SIZE, BLOCKS, SIDE)
    first = first_offset(L, outer, along, inner, SIZE)
    bit = first_bit(L, per_line, outer, along, inner, count, SIZE, F.width)
    largest, finite = largest_magnitude(x_ptr, first, count, L.inner, SIZE, BLOCKS, PART, WHOLE)
    exponent = scale_exponent(largest, N)
    numbers = tl.zeros([BLOCKS], tl.int32)
    for start in range(0, SIZE, PART):
        place = start + tl.arange(0, PART)
        inside = block_mask(place, count, WHOLE, BLOCKS, PART)
        x = tl.load(x_ptr + first[:, None] + (place * L.inner)[None, :], mask=inside, other=0.0)
        numbers += tl.sum((inside & (x == x)).to(tl.int32), axis=1)
    has_numbers = (numbers > 0)[:, None]
    for start in range(0, SIZE, PART):
        place = start + tl.arange(0, PART)
        inside = block_mask(place, count, WHOLE, BLOCKS, PART)
        offset = first[:, None] + (place * L.inner)[None, :]
        x = double(tl.load(x_ptr + offset, mask=inside, other=0.0))
        code, known = encode(x * power_of_two(-exponent)[:, None], F)
        special = (tl.abs(x) < float("inf")) == 0
        missing = tl.where(finite[:, None], known == 0, has_numbers & special)
        note_missing(missing_ptr, offset, inside & missing)
        where = (bit + _SCALE_BITS)[:, None] + (place * F.width)[None, :]
        or_into(words_ptr, where, tl.where(finite[:, None], code, 0), inside)
    scale = tl.where(finite, exponent + 127, _NAN_SCALE)
    or_into(words_ptr, bit, scale.to(tl.int64), count > 0)


@triton.jit(do_not_specialize=["total", "per_line", "chunks", "bytes"])
def unpack_blocks_kernel(
    codes_ptr,
    out_ptr,
    L,
    total,
    per_line,
    chunks,
    bytes,
    F: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    PART: tl.constexpr,
    SIDE: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Programs and grid as `block.quantize_blocks_kernel`."""
    outer, along, inner, count = block_indices(L, total, per_line, chunks, SIZE, BLOCKS, SIDE)
    first = first_offset(L, outer, along, inner, SIZE)
    bit = first_bit(L, per_line, outer, along, inner, count, SIZE, F.width)
    scale = field_at(codes_ptr, bit, bytes, 8, count > 0)
    up = power_of_two(scale - 127)[:, None]
    for start in range(0, SIZE, PART):
        place = start + tl.arange(0, PART)
        inside = block_mask(place, count, WHOLE, BLOCKS, PART)
        where = (bit + _SCALE_BITS)[:, None] + (place * F.width)[None, :]
        value = decode(field_at(codes_ptr, where, bytes, F.width, inside), F) * up
        value = tl.where((scale == _NAN_SCALE)[:, None], float("nan"), value)
        offset = first[:, None] + (place * L.inner)[None, :]
        tl.store(out_ptr + offset, narrow(value), mask=inside)


def pack(x: Tensor, fmt: tuple[int, ...]) -> Tensor:
    """As `lpkernels.backends.Backend.pack`; the ValueError names the first element without one."""
    x = x.contiguous()
    missing = torch.full((1,), _NO_INDEX.value, dtype=torch.int64, device=x.device)
    with on_device(x):
        codes = _pack_blocks(x, fmt, missing) if fmt[KIND] == BLOCK else _pack(x, fmt, missing)
    index = int(missing)
    if index != _NO_INDEX.value:
        raise ValueError(
            f"pack: element {index} (in row-major order) is {x.view(-1)[index].item()}, "
            "for which the format has no code; quantize to the format first"
        )
    return codes


def _pack(x: Tensor, fmt: tuple[int, ...], missing: Tensor) -> Tensor:
    codec, count = codec_of(fmt), x.numel()
    bits = count * codec.width
    words = torch.empty(triton.cdiv(bits, 32), dtype=torch.int32, device=x.device)
    if count > 0:
        grid = (triton.cdiv(words.numel(), _WORDS),)
        pack_kernel[grid](x, words, missing, count, F=codec, WORDS=_WORDS, **EXACT)
    return words.view(torch.uint8)[: triton.cdiv(bits, 8)]


def _pack_blocks(x: Tensor, fmt: tuple[int, ...], missing: Tensor) -> Tensor:
    if x.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=x.device)
    codec, numbers = _element(fmt)
    lines, counts, programs, constants = tiles(x.shape, fmt)
    bits = x.numel() * codec.width + 8 * counts[0] * lines.inner
    words = torch.zeros(triton.cdiv(bits, 32), dtype=torch.int32, device=x.device)
    pack_blocks_kernel[(programs,)](
        x, words, missing, lines, *counts, numbers, F=codec, **constants, **EXACT
    )
    return words.view(torch.uint8)[: triton.cdiv(bits, 8)]


def _element(fmt: tuple[int, ...]) -> tuple[Codec, Numbers]:
    element = element_of(fmt)
    return codec_of(element), rule_of(element, 0)[1]


def unpack(codes: Tensor, fmt: tuple[int, ...], shape: Sequence[int]) -> Tensor:
    """As `lpkernels.backends.Backend.unpack`."""
    out = torch.empty(tuple(shape), dtype=torch.float32, device=codes.device)
    count = math.prod(shape)
    if count == 0:
        return out
    codes = codes.contiguous()
    with on_device(codes):
        if fmt[KIND] == BLOCK:
            lines, counts, programs, constants = tiles(out.shape, fmt)
            unpack_blocks_kernel[(programs,)](
                codes, out, lines, *counts, codes.numel(), F=_element(fmt)[0], **constants, **EXACT
            )
        else:
            unpack_kernel[(triton.cdiv(count, _VALUES),)](
                codes, out, count, codes.numel(), F=codec_of(fmt), VALUES=_VALUES, **EXACT
            )
    return out
