"""Dense codes: sign | exponent | mantissa of every value, least significant bit first, no gaps
between codes.

A FixedFormat's code is its integer in two's complement. A block is its scale byte (X + 127, 255 for
a NaN block) and then its elements; blocks follow each other in row-major order of (positions before
the format's axis, block along it, positions behind it). The last byte is filled with zeros.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import BlockFormat, FixedFormat, FloatFormat
from lpkernels.reference.blocks import block_exponents, join_blocks, saturating, split_blocks
from lpkernels.reference.values import Float32, Float64, narrow, widen

Codes = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Format = FloatFormat | FixedFormat | BlockFormat

# Values packed together; a multiple of 8, so that every slab starts on a byte.
_SLAB = 1 << 18
_SCALE_BITS = 8
_NAN_SCALE = 255


def pack(x: Float32, fmt: Format) -> Bytes:
    """The codes of x as a 1-D uint8 array of ceil(bits / 8) bytes.

    NaN has sign 0, exponent ones and the top mantissa bit ("fn": all ones). -0 packs as 0 where
    there is only one zero.

    Args:
        x: float32, any shape; every value is one of the format's.
    Raises: ValueError: a value without a code, named with its index.
    """
    if isinstance(fmt, BlockFormat):
        return _pack_blocks(x, fmt)
    flat = np.ascontiguousarray(x).reshape(-1)
    parts = []
    for start in range(0, flat.size, _SLAB):
        values = widen(flat[start : start + _SLAB])
        codes, known = encode(values, fmt)
        if not known.all():
            _refuse(x, start + int(np.argmin(known)), fmt)
        parts.append(np.packbits(_bits_of(codes, fmt.bits), bitorder="little"))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)


def unpack(codes: Bytes, fmt: Format, shape: tuple[int, ...]) -> Float32:
    """The float32 values of ``codes``, the inverse of pack; every NaN code becomes 0x7fc00000.

    Args:
        codes: 1-D uint8, as many bytes as pack makes of this shape.
    """
    count = math.prod(shape)
    if isinstance(fmt, BlockFormat):
        return _unpack_blocks(codes, fmt, tuple(shape))
    out = np.empty(count, dtype=np.float32)
    for start in range(0, count, _SLAB):
        number = min(_SLAB, count - start)
        first = start * fmt.bits // 8
        bits = np.unpackbits(codes[first : first + -(-number * fmt.bits // 8)], bitorder="little")
        fields = _codes_of(bits[: number * fmt.bits].reshape(number, fmt.bits))
        out[start : start + number] = narrow(decode(fields, fmt))
    return out.reshape(shape)


def _refuse(x: Float32, index: int, fmt: Format) -> None:
    where = tuple(int(i) for i in np.unravel_index(index, x.shape)) if x.ndim else ()
    value = float(x.reshape(-1)[index])
    raise ValueError(
        f"pack: {fmt} has no code for {value!r} at index {where}; round x with quantize first"
    )


def _bits_of(codes: Codes, width: int) -> NDArray[np.uint8]:
    """[..., width] bits, least significant first."""
    bits = codes[..., None] >> np.arange(width, dtype=np.uint32)
    return (bits & np.uint32(1)).astype(np.uint8)


def _codes_of(bits: NDArray[np.uint8]) -> Codes:
    weights = np.uint32(1) << np.arange(bits.shape[-1], dtype=np.uint32)
    return np.sum(bits * weights, axis=-1, dtype=np.uint32)


def encode(x: Float64, fmt: FloatFormat | FixedFormat) -> tuple[Codes, NDArray[np.bool_]]:
    """The code of every value, and whether it has one."""
    return _encode_fixed(x, fmt) if isinstance(fmt, FixedFormat) else _encode_float(x, fmt)


def _encode_fixed(x: Float64, fmt: FixedFormat) -> tuple[Codes, NDArray[np.bool_]]:
    # frac_bits reaches 149, and 2^-149 times a float32 is no float64 subnormal.
    quanta = x * 2.0**fmt.frac_bits
    lowest = -(2.0 ** (fmt.word_bits - 1)) if fmt.signed else 0.0
    highest = lowest + 2.0**fmt.word_bits - 1
    known = (quanta >= lowest) & (quanta <= highest) & (quanta == np.rint(quanta))
    integers = np.where(known, quanta, 0.0).astype(np.int64)
    return (integers & (2**fmt.word_bits - 1)).astype(np.uint32), known


def _special_codes(fmt: FloatFormat) -> tuple[int | None, int | None]:
    """The codes of +inf and NaN, None where the format has none."""
    ones = (2**fmt.exp_bits - 1) << fmt.man_bits
    if fmt.specials == "fn":
        return None, ones | (2**fmt.man_bits - 1)
    if fmt.specials == "ieee":
        return ones, ones | 2 ** (fmt.man_bits - 1) if fmt.man_bits else None
    return None, None


def _encode_float(x: Float64, fmt: FloatFormat) -> tuple[Codes, NDArray[np.bool_]]:
    finite = np.isfinite(x)
    magnitude = np.abs(np.where(finite, x, 0.0))
    floor_log2 = np.frexp(magnitude)[1].astype(np.int64) - 1
    exponent = np.where(magnitude == 0, fmt.emin, np.maximum(floor_log2, fmt.emin))
    quanta = np.ldexp(magnitude, fmt.man_bits - exponent)
    # A subnormal has less than 2^man_bits quanta at emin; its hidden bit and its exponent code are
    # then 0.
    known = finite & (quanta == np.rint(quanta)) & (magnitude <= fmt.max)
    if not fmt.subnormals:
        known &= (magnitude == 0) | (magnitude >= fmt.min_normal)
    biased = np.where(known, exponent - fmt.emin, 0)
    codes = (biased << fmt.man_bits) + np.where(known, quanta, 0.0).astype(np.int64)
    infinity, nan = _special_codes(fmt)
    if infinity is not None:
        codes = np.where(np.isinf(x), infinity, codes)
        known |= np.isinf(x)
    codes |= np.signbit(x).astype(np.int64) << (fmt.exp_bits + fmt.man_bits)
    if nan is not None:
        codes = np.where(np.isnan(x), nan, codes)
        known |= np.isnan(x)
    return codes.astype(np.uint32), known


def decode(codes: Codes, fmt: FloatFormat | FixedFormat) -> Float64:
    """The values of codes; without subnormals exponent code 0 is a zero, whatever its mantissa."""
    if isinstance(fmt, FixedFormat):
        integers = codes.astype(np.int64)
        if fmt.signed:
            integers -= (integers >> (fmt.word_bits - 1)) << fmt.word_bits
        return integers.astype(np.float64) * np.float64(fmt.quantum)
    biased = (codes >> np.uint32(fmt.man_bits)).astype(np.int64) & (2**fmt.exp_bits - 1)
    mantissa = codes.astype(np.int64) & (2**fmt.man_bits - 1)
    hidden = np.where(biased > 0, 1 << fmt.man_bits, 0)
    if not fmt.subnormals:
        mantissa = np.where(biased > 0, mantissa, 0)
    exponent = np.maximum(biased, 1) - fmt.bias - fmt.man_bits
    values = np.ldexp((hidden + mantissa).astype(np.float64), exponent)
    infinity, nan = _special_codes(fmt)
    top = biased == 2**fmt.exp_bits - 1
    if infinity is not None:
        values = np.where(top, np.where(mantissa == 0, np.inf, np.nan), values)
    elif nan is not None:
        values = np.where(top & (mantissa == 2**fmt.man_bits - 1), np.nan, values)
    negative = (codes >> np.uint32(fmt.exp_bits + fmt.man_bits)) & np.uint32(1)
    return np.where(negative == 1, -values, values)


def _block_mask(shape: tuple[int, ...], fmt: BlockFormat) -> NDArray[np.bool_]:
    """[outer, blocks, inner, scale bits + size * element bits]: which bits exist.

    The last block of a line may be short.
    """
    filled = split_blocks(np.ones(shape, dtype=bool), fmt)
    elements = np.repeat(filled, fmt.element.bits, axis=-1)
    return np.concatenate(
        [np.ones((*elements.shape[:3], _SCALE_BITS), dtype=bool), elements], axis=-1
    )


def _pack_blocks(x: Float32, fmt: BlockFormat) -> Bytes:
    if x.size == 0:
        return np.empty(0, dtype=np.uint8)
    values = split_blocks(widen(x), fmt)
    filled = split_blocks(np.ones(x.shape, dtype=bool), fmt)
    element = saturating(fmt.element)
    exponent, finite = block_exponents(values, element)
    nan_block = (np.isnan(values) | ~filled).all(axis=-1, keepdims=True)
    codes, known = encode(np.ldexp(np.where(finite, values, 0.0), -exponent), element)
    # NaN is a code of whole blocks only: among other values it has no code.
    known = np.where(finite, known, nan_block | np.isfinite(values)) | ~filled
    if not known.all():
        index = split_blocks(np.arange(x.size).reshape(x.shape), fmt)
        _refuse(x, int(index[~known].min()), fmt)
    scale = np.where(finite, exponent + 127, _NAN_SCALE).astype(np.uint32)
    codes = np.where(finite, codes, np.uint32(0))
    bits = [
        _bits_of(scale[..., 0], _SCALE_BITS),
        _bits_of(codes, element.bits).reshape(*codes.shape[:3], -1),
    ]
    stream = np.concatenate(bits, axis=-1)[_block_mask(x.shape, fmt)]
    return np.packbits(stream, bitorder="little")


def _unpack_blocks(codes: Bytes, fmt: BlockFormat, shape: tuple[int, ...]) -> Float32:
    if math.prod(shape) == 0:
        return np.empty(shape, dtype=np.float32)
    mask = _block_mask(shape, fmt)
    bits = np.zeros(mask.shape, dtype=np.uint8)
    stream = np.unpackbits(codes, bitorder="little")
    bits[mask] = stream[: np.count_nonzero(mask)]
    scale = _codes_of(bits[..., :_SCALE_BITS]).astype(np.int64)[..., None]
    fields = bits[..., _SCALE_BITS:].reshape(*mask.shape[:3], -1, fmt.element.bits)
    values = np.ldexp(decode(_codes_of(fields), fmt.element), scale - 127)
    values = np.where(scale == _NAN_SCALE, np.nan, values)
    return narrow(join_blocks(values, shape, fmt))
