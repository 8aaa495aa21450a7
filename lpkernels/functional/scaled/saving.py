"""Codes and scales as one tensor of bytes, which a layer keeps for backward."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.formats.grids import grid_shape
from lpkernels.formats.integers import (
    FIXED,
    KIND,
    STEPS,
    TENSOR_SCALE,
    InBlock,
    Ints,
    block_by_block,
    code_bits,
    element,
    scale_bits,
    scale_format,
)
from lpkernels.ops import Operators

# The bits of float32 in front of the exponent's lowest, and the widest codes that are kept.
_MAN_BITS = 23
_WHOLE = 32


def is_packed(fmt: Ints) -> bool:
    """Whether tensors in this block format, in a graph every one, have codes for less memory."""
    scale = scale_format(fmt)
    has_nan = scale is None or code_bits(scale) == _WHOLE or ops.has_every_code(scale)
    has_nan = has_nan and not (torch.compiler.is_compiling() and _may_lack_a_code(fmt))
    return has_nan and code_bits(fmt) < _WHOLE


def _may_lack_a_code(fmt: Ints) -> bool:
    """Whether an element may be NaN and have no code: some programs divide infinity by itself."""
    steps, elements = STEPS[fmt[InBlock.STEPS]], element(fmt)
    divides = steps == "deepgemm" or (steps == "torchao" and elements[KIND] == FIXED)
    return divides and not ops.has_every_code(elements)


def packed(run: Operators, parts: ops.Parts, fmt: Ints, backend: str) -> Tensor | None:
    """The codes of the three parts of a tensor as `lpkernels.pack` lays them apart: the tensor's
    scale if there is one, all scales, all elements. None where an element has no code."""
    values, scale, tensor_scale = parts
    scale_type = scale_format(fmt)
    if scale_type is None:
        # The exponent field is the code of a power of two, and 255 that of NaN.
        scales = (scale.contiguous().view(torch.int32) >> _MAN_BITS).to(torch.uint8).flatten()
    elif code_bits(scale_type) == _WHOLE:
        scales = scale.contiguous().view(torch.uint8).flatten()
    else:
        scales = run.pack(scale, scale_type)
    elements = (
        run.encode(values, (), element(fmt), backend)
        if _may_lack_a_code(fmt)
        else run.pack(values, element(fmt))
    )
    if elements is None:
        return None
    of_tensor = [] if _tensor_bytes(fmt) == 0 else [tensor_scale.reshape(1).view(torch.uint8)]
    return torch.cat([*of_tensor, scales, elements])


def apart(fmt: Ints, rank: int) -> Ints:
    """The format with which `ops.unpack` reads `packed` of a tensor of this rank; () if none.

    It has all scales in front of the elements where blocks are no blocks along one axis with powers
    of two: those along columns are tiles of one column there.
    """
    at, size = InBlock, fmt[InBlock.SIZE]
    if not block_by_block(fmt):
        return fmt
    if rank < 2 or size < 2 or fmt[at.AXIS] % rank != rank - 2:
        return ()
    tiles = {at.SIZE: 1, at.AXIS: -1, at.LINES: size}
    return tuple([tiles.get(i, number) for i, number in enumerate(fmt)])


def unpacked(run: Operators, codes: Tensor, fmt: Ints, shape: Sequence[int]) -> ops.Parts:
    """The three parts of a tensor of this shape."""
    grid, scale_type, first = grid_shape(shape, fmt), scale_format(fmt), _tensor_bytes(fmt)
    length = (math.prod(grid) * scale_bits(fmt) + 7) // 8
    scales = codes[first : first + length].clone()
    if scale_type is None:
        scale = ops.unpack_powers(scales)
    elif code_bits(scale_type) == _WHOLE:
        scale = scales.view(torch.float32)
    else:
        scale = run.unpack(scales, scale_type, grid)
    values = run.unpack(codes[first + length :], element(fmt), shape)
    one = scale.new_ones(())
    tensor_scale = codes[:first].clone().view(torch.float32).view(()) if first else one
    return values, scale.view(grid), tensor_scale


def _tensor_bytes(fmt: Ints) -> int:
    return 4 if fmt[InBlock.SCALE] == TENSOR_SCALE else 0
