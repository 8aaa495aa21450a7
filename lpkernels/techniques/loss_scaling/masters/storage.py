"""How values are kept between steps: as codes of their format, at the format's own size."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import BF16, FP16, FP32, BlockFormat, FixedFormat, FloatFormat, Format
from lpkernels.functional.packing import pack, unpack
from lpkernels.functional.quantize import quantize
from lpkernels.functional.seeds import derived_seed

# Formats that torch has a dtype for and keeps at their size.
_DTYPES = {FP32: torch.float32, FP16: torch.float16, BF16: torch.bfloat16}


def rounded(values: Tensor, quantizer: Quantizer | None, seed: Tensor | None, key: int) -> Tensor:
    """Float32 values of the format; the values that are given where the format is float32.

    A draw is that of (seed, key, row-major index in `values`): pass whole tensors.
    """
    if quantizer is None or (quantizer.fmt == FP32 and values.dtype == torch.float32):
        return values
    own = None if seed is None or not quantizer.is_stochastic else derived_seed(seed, key)
    return quantize(values, quantizer, generator=own).float()


def encoded(values: Tensor, fmt: Format) -> Tensor:
    """float32 values of `fmt` as they are kept: a tensor of their shape where torch has a dtype of
    this format, else 1-D codes.

    Raises: ValueError: a value without a code: an infinity or NaN in a format that has none.
    """
    dtype = _DTYPES.get(fmt)  # type: ignore[arg-type]
    return pack(values, fmt) if dtype is None else values.to(dtype)  # type: ignore[arg-type]


def zeros(shape: torch.Size, fmt: FloatFormat, device: torch.device) -> Tensor:
    """`encoded` of zeros, for formats of whole bytes."""
    dtype = _DTYPES.get(fmt)
    if dtype is not None:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.zeros(math.prod(shape) * fmt.bits // 8, dtype=torch.uint8, device=device)


def decoded(kept: Tensor, fmt: Format, shape: torch.Size) -> Tensor:
    """The float32 values; where these are kept as they are, the tensor that is kept itself."""
    if fmt in _DTYPES:
        return kept.float()
    return unpack(kept, fmt, shape)  # type: ignore[arg-type]


def is_coded(fmt: Format) -> bool:
    """Whether values of this format are kept as 1-D codes."""
    return fmt not in _DTYPES


def code_bits(fmt: Format, shape: torch.Size) -> int:
    """The bits that values of this shape take in the format, without what fills up a byte."""
    numel = math.prod(shape)
    if isinstance(fmt, FloatFormat):
        return numel * fmt.bits
    if isinstance(fmt, FixedFormat):
        return numel * fmt.word_bits
    if not isinstance(fmt, BlockFormat):
        return numel * 32
    length = shape[fmt.axis] if shape else 1
    blocks = 0 if numel == 0 else numel // length * -(-length // fmt.block_size)
    return numel * fmt.element.bits + 8 * blocks


def remainder(master: Tensor, working: Tensor) -> Tensor:
    """How many codes of float32 lie between a master and its working copy, signed, as float32.
    Added to the code of one it gives that of the other; both have one sign, so that codes count
    along the magnitude.

    It is 0 for NaN, which is reassembled as the one NaN that the working copy has.
    """
    apart = master.contiguous().view(torch.int32) - working.contiguous().view(torch.int32)
    return apart.to(torch.float32).masked_fill_(master.isnan(), 0)


def reassembled(working: Tensor, apart: Tensor) -> Tensor:
    """The master that `remainder` was taken of."""
    codes = working.contiguous().view(torch.int32) + apart.to(torch.int32)
    return codes.view(torch.float32)
