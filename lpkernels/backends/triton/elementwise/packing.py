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

from lpkernels.backends import Parts
from lpkernels.backends.triton._launch import EXACT, on_device
from lpkernels.backends.triton.elementwise.block import dequantize, magnitude_bits
from lpkernels.backends.triton.elementwise.codes import codec_of, decode, encode, table_codes
from lpkernels.backends.triton.elementwise.scales import (
    block_format,
    element_ints,
    power_of_two,
    scale_exponent,
)
from lpkernels.backends.triton.elementwise.tiles import elements_in, tiles_in, tiles_of
from lpkernels.backends.triton.rounding.bits import EXPONENT32, bits_of, double, narrow, value_of
from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats.integers import BLOCK, KIND, InBlock, element

_WORDS, _VALUES = 512, 1024
# With four warps a thread would pack four words, and spill with codes of two bits.
_PACK_WARPS = 8
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
def pack_kernel(x_ptr, words_ptr, missing_ptr, count, T, F: tl.constexpr, WORDS: tl.constexpr):
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
        code, has_code = encode(double(tl.load(x_ptr + index, mask=inside, other=0.0)), F, T)
        bits = bits | tl.where(inside, code_piece(code, tl.minimum(shift, 31)), 0)
        least = tl.where(inside & (has_code == 0), tl.minimum(least, index), least)
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
def unpack_kernel(codes_ptr, out_ptr, count, total, T, F: tl.constexpr, VALUES: tl.constexpr):
    """A program owns VALUES neighbouring values; grid: all of them."""
    index = tl.cast(tl.program_id(0), tl.int64) * VALUES + tl.arange(0, VALUES)
    inside = index < count
    code = field_at(codes_ptr, index * F.width, total, F.width, inside)
    tl.store(out_ptr + index, narrow(decode(code, F, T)), mask=inside)


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


@triton.jit
def largest_and_numbers(
    x_ptr,
    first,
    G,
    tall,
    wide,
    KIND: tl.constexpr,
    BLOCKS: tl.constexpr,
    PART: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """The bits of the largest |x| of every tile, and how many of its values are no NaN."""
    largest = tl.zeros([BLOCKS], tl.int32)
    numbers = tl.zeros([BLOCKS], tl.int32)
    for start in range(0, tl.cast(G.tall, tl.int64) * G.wide, PART):
        place, inside = elements_in(start, G, tall, wide, KIND, BLOCKS, PART, WHOLE)
        x = tl.load(x_ptr + first[:, None] + place[None, :], mask=inside, other=0.0)
        largest = tl.maximum(largest, tl.max(magnitude_bits(x), axis=1))
        numbers += tl.sum((inside & (x == x)).to(tl.int32), axis=1)
    return largest, numbers


@triton.jit(do_not_specialize=["down", "across", "side", "chunks"])
def pack_blocks_kernel(
    x_ptr, scale_ptr, words_ptr, missing_ptr, G, down, across, side, chunks, target, N,
    F: tl.constexpr, RULE: tl.constexpr, CODES: tl.constexpr, KIND: tl.constexpr,
    BLOCKS: tl.constexpr, PART: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Scale and codes of every block into a stream of zeros, and the first x that has no code.

    x are values of the block format, which say what the scales are; or they are the CODES of the
    scales. A program owns BLOCKS blocks; grid: all of them. NaN is a value of whole blocks only.
    """
    group = tl.program_id(0)
    tile, first, tall, wide, before = tiles_in(group, G, down, across, side, chunks, KIND, BLOCKS)
    bit = tile * _SCALE_BITS + before * F.width
    if CODES:
        s = tl.load(scale_ptr + tile, mask=wide > 0, other=1.0)
        finite = s == s
        exponent = (bits_of(double(s)) >> 52).to(tl.int32) - 1023
    else:
        largest, numbers = largest_and_numbers(
            x_ptr, first, G, tall, wide, KIND, BLOCKS, PART, WHOLE
        )
        finite, has_numbers = largest < EXPONENT32, (numbers > 0)[:, None]
        exponent = scale_exponent(double(value_of(largest)), target, N, RULE)
    for start in range(0, tl.cast(G.tall, tl.int64) * G.wide, PART):
        place, inside = elements_in(start, G, tall, wide, KIND, BLOCKS, PART, WHOLE)
        offset = first[:, None] + place[None, :]
        x = double(tl.load(x_ptr + offset, mask=inside, other=0.0))
        if CODES:
            code, has_code = encode(x, F)
            missing = has_code == 0
        else:
            code, has_code = encode(x * power_of_two(-exponent)[:, None], F)
            special = (tl.abs(x) < float("inf")) == 0
            missing = tl.where(finite[:, None], has_code == 0, has_numbers & special)
            code = tl.where(finite[:, None], code, 0)
        note_missing(missing_ptr, offset, inside & missing)
        number = start + tl.arange(0, PART)
        where = (bit + _SCALE_BITS)[:, None] + (number * F.width)[None, :]
        or_into(words_ptr, where, code, inside)
    scale = tl.where(finite, exponent + 127, _NAN_SCALE)
    or_into(words_ptr, bit, scale.to(tl.int64), wide > 0)


@triton.jit(do_not_specialize=["down", "across", "side", "chunks", "bytes"])
def unpack_blocks_kernel(
    codes_ptr, out_ptr, G, down, across, side, chunks, bytes,
    F: tl.constexpr, KIND: tl.constexpr, BLOCKS: tl.constexpr, PART: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Programs and grid as `pack_blocks_kernel`."""
    group = tl.program_id(0)
    tile, first, tall, wide, before = tiles_in(group, G, down, across, side, chunks, KIND, BLOCKS)
    bit = tile * _SCALE_BITS + before * F.width
    scale = field_at(codes_ptr, bit, bytes, 8, wide > 0)
    up = power_of_two(scale - 127)[:, None]
    for start in range(0, tl.cast(G.tall, tl.int64) * G.wide, PART):
        place, inside = elements_in(start, G, tall, wide, KIND, BLOCKS, PART, WHOLE)
        number = start + tl.arange(0, PART)
        where = (bit + _SCALE_BITS)[:, None] + (number * F.width)[None, :]
        value = decode(field_at(codes_ptr, where, bytes, F.width, inside), F) * up
        value = tl.where((scale == _NAN_SCALE)[:, None], float("nan"), value)
        tl.store(out_ptr + first[:, None] + place[None, :], narrow(value), mask=inside)


def pack(
    x: Tensor, fmt: tuple[int, ...], quantizer: tuple[int, ...] = (), scale: Tensor | None = None
) -> Tensor:
    """`Backend.pack` of values that are rounded; the ValueError names the first element without a
    code."""
    assert not quantizer
    x = x.contiguous()
    missing = torch.full((1,), _NO_INDEX.value, dtype=torch.int64, device=x.device)
    with on_device(x):
        if fmt[KIND] == BLOCK:
            codes = _pack_blocks(x, fmt, missing, None if scale is None else scale.contiguous())
        else:
            codes = _pack(x, fmt, missing)
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
        table = table_codes(fmt, x.device)
        pack_kernel[grid](
            x, words, missing, count, table, F=codec, WORDS=_WORDS, num_warps=_PACK_WARPS, **EXACT
        )
    return words.view(torch.uint8)[: triton.cdiv(bits, 8)]


def _pack_blocks(x: Tensor, fmt: tuple[int, ...], missing: Tensor, scale: Tensor | None) -> Tensor:
    if x.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=x.device)
    codec, layout = codec_of(element(fmt)), tiles_of(x.shape, fmt)
    bits = x.numel() * codec.width + 8 * layout.total
    words = torch.zeros(triton.cdiv(bits, 32), dtype=torch.int32, device=x.device)
    pack_blocks_kernel[(layout.groups,)](
        x, scale, words, missing, layout.lengths, *layout.counts, block_format(fmt).largest,
        rule_of(element_ints(fmt), 0)[1], F=codec, RULE=fmt[InBlock.RULE], CODES=scale is not None,
        **layout.constants, **EXACT,
    )  # fmt: skip
    return words.view(torch.uint8)[: triton.cdiv(bits, 8)]


def unpack(codes: Tensor | Parts, fmt: tuple[int, ...], shape: Sequence[int]) -> Tensor:
    """As `lpkernels.backends.Backend.unpack`."""
    if not isinstance(codes, Tensor):
        return dequantize(codes, fmt)
    out = torch.empty(tuple(shape), dtype=torch.float32, device=codes.device)
    count = math.prod(shape)
    if count == 0:
        return out
    codes = codes.contiguous()
    with on_device(codes):
        if fmt[KIND] == BLOCK:
            layout = tiles_of(out.shape, fmt)
            unpack_blocks_kernel[(layout.groups,)](
                codes, out, layout.lengths, *layout.counts, codes.numel(),
                F=codec_of(element(fmt)), **layout.constants, **EXACT,
            )  # fmt: skip
        else:
            unpack_kernel[(triton.cdiv(count, _VALUES),)](
                codes, out, count, codes.numel(), table_codes(fmt, codes.device), F=codec_of(fmt),
                VALUES=_VALUES, **EXACT,
            )  # fmt: skip
    return out
