"""Dense codes: sign | exponent | mantissa of every value, least significant bit first, no gaps
between codes.

A FixedFormat's code is its integer in two's complement, a TableFormat's stands in its table. The
last byte is filled with zeros. Blocks of n values with a power-of-two scale are a scale byte (X +
127, 255 for a NaN block) and then their elements; blocks follow each other in row-major order of
the grid of scales. Other block formats are packed apart: the tensor's scale (float32, little
endian) if there is one, then all scales in row-major order, filled up to a byte, then all elements
in row-major order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import FP32, BlockFormat, FixedFormat, FloatFormat, Number, TableFormat
from lpkernels.formats.grids import grid_of, grid_shape, lengths_of_parts, tensor_scale_shape
from lpkernels.formats.integers import block_by_block, scale_bits
from lpkernels.reference.blocks import (
    element_of,
    join_blocks,
    power_of_two_scales,
    split_blocks,
)
from lpkernels.reference.scaled import Scaled, dequantize, no_scale
from lpkernels.reference.values import Float32, Float64, narrow, widen

Codes = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Format = Number | BlockFormat

_SCALE_BITS = 8
_NAN_SCALE = 255


def pack(x: Float32, fmt: Format) -> Bytes:
    """The codes of x as a 1-D uint8 array of ceil(bits / 8) bytes.

    NaN has sign 0, exponent ones and the top mantissa bit ("fn": all ones); with one zero it has
    the code of -0, or without a sign the last code. -0 packs as 0 where there is only one zero.

    Args:
        x: float32, any shape; every value is one of the format's. A block format is packed block
            by block, with rule "floor": other scales do not follow from the values.
    Raises: ValueError: a value without a code, named with its index.
    """
    if isinstance(fmt, BlockFormat):
        return pack_scaled(_scaled_of(x, fmt), fmt)
    codes, coded = encode(widen(x).reshape(-1), fmt)
    _check_codes(x, coded, fmt)
    return np.packbits(_bits_of(codes, fmt.bits), bitorder="little")


def unpack(codes: Bytes, fmt: Format, shape: tuple[int, ...]) -> Float32:
    """The float32 values of ``codes``, the inverse of pack; every NaN code becomes 0x7fc00000.

    Args:
        codes: 1-D uint8, as many bytes as pack makes of this shape.
    """
    count = math.prod(shape)
    if isinstance(fmt, BlockFormat):
        return dequantize(unpack_scaled(codes, fmt, tuple(shape)), fmt)
    return narrow(decode(_fields(codes, count, fmt.bits), fmt)).reshape(shape)


def _fields(codes: Bytes, count: int, width: int) -> Codes:
    """So many codes from the beginning of a stream."""
    bits = np.unpackbits(codes, bitorder="little")[: count * width]
    return _codes_of(bits.reshape(count, width))


def _check_codes(x: Float32, coded: NDArray[np.bool_], fmt: Format) -> None:
    """Raises: ValueError: a value that has no code, named with its index."""
    if coded.all():
        return
    index = int(np.argmin(coded))
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


def encode(x: Float64, fmt: Number) -> tuple[Codes, NDArray[np.bool_]]:
    """The code of every value, and whether it has one."""
    if isinstance(fmt, TableFormat):
        return _encode_table(x, fmt)
    return _encode_fixed(x, fmt) if isinstance(fmt, FixedFormat) else _encode_float(x, fmt)


def _encode_table(x: Float64, fmt: TableFormat) -> tuple[Codes, NDArray[np.bool_]]:
    values, codes = fmt.tensors().values, fmt.tensors().codes
    at = np.minimum(np.searchsorted(values, x), len(values) - 1)
    coded, nan = values[at] == x, np.isnan(x) & (fmt.nan_code is not None)
    return np.where(nan, fmt.nan_code or 0, codes[at]).astype(np.uint32), coded | nan


def _encode_fixed(x: Float64, fmt: FixedFormat) -> tuple[Codes, NDArray[np.bool_]]:
    # frac_bits reaches 149, and 2^-149 times a float32 is no float64 subnormal.
    quanta = x * 2.0**fmt.frac_bits
    inside = (quanta >= fmt.min_code) & (quanta <= fmt.max_code)
    coded = inside & (quanta == np.rint(quanta))
    integers = np.where(coded, quanta, 0.0).astype(np.int64)
    return (integers & (2**fmt.word_bits - 1)).astype(np.uint32), coded


def special_codes(fmt: FloatFormat) -> tuple[int | None, int | None]:
    """The codes of +inf and NaN; None: the format has none."""
    if fmt.one_zero:
        infinity = fmt.max_code + 1 if fmt.specials == "p3109" else None
        return infinity, 2 ** (fmt.bits - 1) if fmt.signed else 2**fmt.bits - 1
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
    coded = finite & (quanta == np.rint(quanta)) & (magnitude <= fmt.max)
    if not fmt.subnormals:
        coded &= (magnitude == 0) | (magnitude >= fmt.min_normal)
    biased = np.where(coded, exponent - fmt.emin, 0)
    codes = (biased << fmt.man_bits) + np.where(coded, quanta, 0.0).astype(np.int64)
    infinity, nan = special_codes(fmt)
    if infinity is not None:
        codes = np.where(np.isinf(x), infinity, codes)
        coded |= np.isinf(x)
    negative = np.signbit(x) & ~((x == 0) & fmt.one_zero)
    if not fmt.signed:
        coded &= ~negative
    codes |= negative.astype(np.int64) << (fmt.exp_bits + fmt.man_bits)
    if nan is not None:
        codes = np.where(np.isnan(x), nan, codes)
        coded |= np.isnan(x)
    return codes.astype(np.uint32), coded


def decode(codes: Codes, fmt: Number) -> Float64:
    """The values of codes; without subnormals exponent code 0 is a zero, whatever its mantissa, and
    +0 where a format has no -0. A code of a table that no value has is NaN."""
    if isinstance(fmt, TableFormat):
        return fmt.tensors().decoded[codes]
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
    infinity, nan = special_codes(fmt)
    if fmt.one_zero:
        plain = codes.astype(np.int64) & (2 ** (fmt.exp_bits + fmt.man_bits) - 1)
        if infinity is not None:
            values = np.where(plain == infinity, np.inf, values)
        signed = np.where(codes == plain, values, -values)
        return np.where(codes == nan, np.nan, signed + 0.0)
    top = biased == 2**fmt.exp_bits - 1
    if infinity is not None:
        values = np.where(top, np.where(mantissa == 0, np.inf, np.nan), values)
    elif nan is not None:
        values = np.where(top & (mantissa == 2**fmt.man_bits - 1), np.nan, values)
    negative = (codes >> np.uint32(fmt.exp_bits + fmt.man_bits)) & np.uint32(1)
    return np.where(negative == 1, -values, values)


def _encode_scale(s: Float32, fmt: BlockFormat) -> Codes:
    if fmt.scale == "e8m0":
        exponent = np.frexp(np.where(np.isnan(s), 1.0, widen(s)))[1].astype(np.int64) - 1
        return np.where(np.isnan(s), _NAN_SCALE, exponent + 127).astype(np.uint32)
    return encode(widen(s), FP32 if isinstance(fmt.scale, str) else fmt.scale)[0]


def _decode_scale(codes: Codes, fmt: BlockFormat) -> Float32:
    if fmt.scale == "e8m0":
        values = np.ldexp(1.0, codes.astype(np.int64) - 127)
        return narrow(np.where(codes == _NAN_SCALE, np.nan, values))
    return narrow(decode(codes, FP32 if isinstance(fmt.scale, str) else fmt.scale))


def _block_mask(shape: tuple[int, ...], fmt: BlockFormat) -> NDArray[np.bool_]:
    """[outer, down, across, scale bits + size * element bits]: which bits exist.

    The last block of a line may be short.
    """
    filled = split_blocks(np.ones(shape, dtype=bool), grid_of(shape, fmt.to_ints()))
    elements = np.repeat(filled, fmt.element.bits, axis=-1)
    return np.concatenate(
        [np.ones((*elements.shape[:3], _SCALE_BITS), dtype=bool), elements], axis=-1
    )


def _scaled_of(x: Float32, fmt: BlockFormat) -> Scaled:
    """The codes and scales of values; raises ValueError for a value that has no code."""
    if x.size == 0:
        return Scaled(x, np.empty(grid_shape(x.shape, fmt.to_ints()), np.float32), no_scale())
    grid = grid_of(x.shape, fmt.to_ints())
    values = split_blocks(widen(x), grid)
    filled = split_blocks(np.ones(x.shape, dtype=bool), grid)
    finite = np.isfinite(values).all(axis=-1, keepdims=True)
    nan_block = (np.isnan(values) | ~filled).all(axis=-1, keepdims=True)
    plain = np.where(finite, values, 0.0)
    exponent = power_of_two_scales(np.max(np.abs(plain), axis=-1, keepdims=True), fmt)
    codes = np.ldexp(plain, -exponent)
    coded = encode(codes, element_of(fmt))[1]
    # NaN is a code of whole blocks only: among other values it has no code.
    coded = np.where(finite, coded, nan_block | np.isfinite(values)) | ~filled
    _check_codes(x, join_blocks(coded, x.shape, grid), fmt)
    s = narrow(np.where(finite, np.ldexp(1.0, exponent), np.nan))
    return Scaled(
        narrow(join_blocks(codes, x.shape, grid)),
        s.reshape(grid_shape(x.shape, fmt.to_ints())),
        no_scale(),
    )


def pack_scaled(q: Scaled, fmt: BlockFormat) -> Bytes:
    """The codes and scales of a tensor as a 1-D uint8 array.

    Raises: ValueError: a value that is no code of the element.
    """
    element, ints = fmt.element, fmt.to_ints()
    codes, coded = encode(widen(q.values), element)
    _check_codes(q.values, coded, fmt)
    scales = _encode_scale(q.scale, fmt)
    if not block_by_block(ints):
        of_lines = np.asarray(q.tensor_scale, np.float32).tobytes() if fmt.tensor_scale else b""
        t = np.frombuffer(of_lines, np.uint8)
        streams = ((scales, scale_bits(ints)), (codes, element.bits))
        bits = [_bits_of(numbers.reshape(-1), width) for numbers, width in streams]
        return np.concatenate([t, *(np.packbits(stream, bitorder="little") for stream in bits)])
    if q.values.size == 0:
        return np.empty(0, dtype=np.uint8)
    tiles = split_blocks(codes, grid_of(q.values.shape, ints))
    bits = [
        _bits_of(scales.reshape(tiles.shape[:3]), _SCALE_BITS),
        _bits_of(tiles, element.bits).reshape(*tiles.shape[:3], -1),
    ]
    stream = np.concatenate(bits, axis=-1)[_block_mask(q.values.shape, fmt)]
    return np.packbits(stream, bitorder="little")


def unpack_scaled(codes: Bytes, fmt: BlockFormat, shape: tuple[int, ...]) -> Scaled:
    """The inverse of `pack_scaled`."""
    ints = fmt.to_ints()
    grid, count, element = grid_shape(shape, ints), math.prod(shape), fmt.element
    if not block_by_block(ints):
        of_lines = tensor_scale_shape(shape, ints)
        t, length = no_scale(of_lines), lengths_of_parts(shape, ints)[0]
        if fmt.tensor_scale:
            t = np.frombuffer(codes[:length].tobytes(), "<f4").reshape(of_lines)
            codes = codes[length:]
        width, number = scale_bits(ints), math.prod(grid)
        scale_bytes = -(-number * width // 8)
        scales = _decode_scale(_fields(codes[:scale_bytes], number, width), fmt)
        elements = decode(_fields(codes[scale_bytes:], count, element.bits), element)
        return Scaled(narrow(elements).reshape(shape), scales.reshape(grid), t)
    if count == 0:
        return Scaled(np.empty(shape, np.float32), np.empty(grid, np.float32), no_scale())
    mask = _block_mask(shape, fmt)
    bits = np.zeros(mask.shape, dtype=np.uint8)
    bits[mask] = np.unpackbits(codes, bitorder="little")[: np.count_nonzero(mask)]
    fields = bits[..., _SCALE_BITS:].reshape(*mask.shape[:3], -1, element.bits)
    values = decode(_codes_of(fields), element)
    return Scaled(
        narrow(join_blocks(values, shape, grid_of(shape, ints))),
        _decode_scale(_codes_of(bits[..., :_SCALE_BITS]), fmt).reshape(grid),
        no_scale(),
    )
