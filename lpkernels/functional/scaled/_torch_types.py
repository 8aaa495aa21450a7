"""Codes and scales in torch's own narrow types.

Values reach the types as codes: torch's conversions round, saturate and flush in their own way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.formats import (
    BF16,
    E4M3FN,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    FP4_E2M1,
    FP16,
    FP32,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    Number,
    TableFormat,
)
from lpkernels.functional import _checks

_TYPES = {
    E4M3FN: torch.float8_e4m3fn,
    E4M3FNUZ: torch.float8_e4m3fnuz,
    E5M2FNUZ: torch.float8_e5m2fnuz,
    E5M2: torch.float8_e5m2,
    FP16: torch.float16,
    BF16: torch.bfloat16,
    FP32: torch.float32,
}
_BYTE = 8
# Each block is packed as the byte of its scale and the byte of its one element.
_BYTES = BlockFormat("e4m3", 1).to_ints()


def _type(fmt: Number) -> torch.dtype:
    """torch's type of a format, two values a byte for e2m1; uint8 where it has none."""
    if isinstance(fmt, TableFormat):
        return torch.uint8
    if isinstance(fmt, FixedFormat):
        return torch.int8 if fmt.word_bits == _BYTE else torch.uint8
    if _same_values(fmt, FP4_E2M1):
        return torch.float4_e2m1fn_x2
    dtypes = (dtype for one, dtype in _TYPES.items() if _same_values(fmt, one))
    return next(dtypes, torch.uint8)


def _same_values(one: FloatFormat, other: FloatFormat) -> bool:
    """Whether they have the same codes; what becomes of larger values does not matter."""
    names = ("exp_bits", "man_bits", "bias", "specials", "subnormals", "signed")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def elements(values: Tensor, fmt: BlockFormat) -> Tensor:
    """The codes of values as `Scaled.tensors` gives them."""
    dtype = _type(fmt.element)
    if dtype == torch.float4_e2m1fn_x2:
        if not values.dim() or values.shape[-1] % 2:
            raise ValueError(
                f"tensors: two values of {fmt} share a byte, so the last dimension must be even, "
                f"got shape {tuple(values.shape)}; pad x with a zero"
            )
        shape = (*values.shape[:-1], values.shape[-1] // 2)
        return ops.pack(values, fmt.element).view(shape).view(dtype)
    return _coded(values, fmt.element, dtype, fmt.element.bits)


def values_of(codes: Tensor, fmt: BlockFormat) -> Tensor:
    """The values of `elements`."""
    dtype = _type(fmt.element)
    _check("elements", codes, dtype, fmt)
    if dtype == torch.float4_e2m1fn_x2:
        shape = (*codes.shape[:-1], codes.shape[-1] * 2)
        return ops.unpack(codes.contiguous().view(torch.uint8).flatten(), fmt.element, shape)
    return _values(codes, fmt.element, fmt.element.bits)


def scales(s: Tensor, fmt: BlockFormat) -> Tensor:
    """The codes of scales as `Scaled.tensors` gives them."""
    if fmt.scale == "e8m0":
        codes = ops.pack_scaled(torch.zeros_like(s), s, s.new_ones(()), _BYTES)[::2]
        return codes.contiguous().view(s.shape).view(torch.float8_e8m0fnu)
    scale = _scale(fmt)
    return _coded(s, scale, _type_of_scale(scale), scale.bits - 1)


def scales_of(codes: Tensor, fmt: BlockFormat) -> Tensor:
    """The values of `scales`."""
    if fmt.scale == "e8m0":
        _check("scale", codes, torch.float8_e8m0fnu, fmt)
        return ops.unpack_powers(codes.view(torch.uint8))
    scale = _scale(fmt)
    _check("scale", codes, _type_of_scale(scale), fmt)
    return _values(codes, scale, scale.bits - 1)


def _scale(fmt: BlockFormat) -> FloatFormat:
    return fmt.scale if isinstance(fmt.scale, FloatFormat) else FP32


def _type_of_scale(scale: FloatFormat) -> torch.dtype:
    # Scales of e2m1 do not share bytes. A scale has no sign: eight bits hold a code of nine.
    return torch.uint8 if scale.bits < _BYTE else _type(scale)


def _check(name: str, codes: object, dtype: torch.dtype, fmt: BlockFormat) -> None:
    _checks.tensor("from_tensors", name, codes)
    assert isinstance(codes, Tensor)
    if codes.dtype != dtype:
        raise TypeError(
            f"from_tensors: {name} of {fmt} must be {dtype}, as tensors() gives them, got "
            f"{codes.dtype}; .view({dtype}) reads codes"
        )


def _coded(x: Tensor, fmt: Number, dtype: torch.dtype, width: int) -> Tensor:
    """The codes of x; where they are one a byte, their lowest `width` bits."""
    if dtype == torch.float32:
        return x
    if not x.numel():
        return x.new_empty(x.shape, dtype=dtype)
    if dtype != torch.uint8:
        return ops.pack(x, fmt).view(dtype).view(x.shape)
    if width > _BYTE:
        raise ValueError(
            f"tensors: torch has no type of {fmt}, whose codes do not fit into a byte; lp.pack "
            "stores them densely"
        )
    bits = _bits_of(ops.pack(x, fmt), _BYTE)[: x.numel() * fmt.bits]
    return _bytes_of(bits.view(-1, fmt.bits)[:, :width]).view(x.shape)


def _values(codes: Tensor, fmt: Number, width: int) -> Tensor:
    """The inverse of `_coded`."""
    if codes.dtype == torch.float32 or not codes.numel():
        return codes.float()
    dense = codes.contiguous().view(-1).view(torch.uint8)
    if codes.dtype == torch.uint8:
        bits = _bits_of(dense, width).view(-1, width)
        bits = torch.nn.functional.pad(bits, (0, fmt.bits - width)).flatten()
        bits = torch.nn.functional.pad(bits, (0, -bits.numel() % _BYTE))
        dense = _bytes_of(bits.view(-1, _BYTE))
    return ops.unpack(dense, fmt, codes.shape)


def _bits_of(codes: Tensor, width: int) -> Tensor:
    """The lowest `width` bits of every byte, in one dimension."""
    places = torch.arange(width, dtype=torch.uint8, device=codes.device)
    return ((codes.view(-1, 1) >> places) & 1).flatten()


def _bytes_of(bits: Tensor) -> Tensor:
    """The number that each row of bits is, the lowest bit first."""
    places = torch.arange(bits.shape[-1], dtype=torch.uint8, device=bits.device)
    return (bits << places).sum(-1, dtype=torch.uint8)
