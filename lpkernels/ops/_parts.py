"""The codes and the scales of a tensor as one tensor of bytes, which a layer keeps for backward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.backends import Parts, new_parts
from lpkernels.formats.grids import grid_shape, lengths_of_parts, tensor_scale_shape
from lpkernels.formats.integers import (
    FIXED,
    KIND,
    STEPS,
    InBlock,
    Ints,
    block_by_block,
    code_bits,
    element,
    has_tensor_scale,
    scale_bits,
    scale_format,
)
from lpkernels.ops._descriptions import has_every_code, select
from lpkernels.ops._packing import encode, pack, unpack, unpack_powers

# The bits of float32 in front of the exponent's lowest, and the widest codes that are kept.
_MAN_BITS = 23
_WHOLE = 32


class Layout(NamedTuple):
    """How the parts of a tensor in a block format lie as bytes, as `lpkernels.pack` lays them
    apart: the scale of the tensor or those of its lines if there are any, all scales, all elements.

    scale: the format of the scales; None for powers of two. scale_bits: of a scale's code.
    has_tensor_scale: whether there are scales of the tensor or its lines.
    every_code: whether every element has a code: some programs divide infinity by itself.
    saves: whether every scale has a code, and codes take less memory than values.
    """

    scale: Ints | None
    scale_bits: int
    element: Ints
    has_tensor_scale: bool
    every_code: bool
    saves: bool


def _layout(fmt: Ints) -> Layout:
    scale, elements, steps = scale_format(fmt), element(fmt), STEPS[fmt[InBlock.STEPS]]
    bits = scale_bits(fmt)
    divides = steps == "deepgemm" or (steps == "torchao" and elements[KIND] == FIXED)
    every_scale = scale is None or bits == _WHOLE or has_every_code(scale)
    return Layout(
        scale,
        bits,
        elements,
        has_tensor_scale=has_tensor_scale(fmt),
        every_code=not divides or has_every_code(elements),
        saves=every_scale and code_bits(fmt) < _WHOLE,
    )


_cached_layout = lru_cache(maxsize=1024)(_layout)


def _layout_of(fmt: Ints) -> Layout:
    return _layout(fmt) if torch.compiler.is_compiling() else _cached_layout(fmt)


def keeps_parts(fmt: Ints) -> bool:
    """Whether a layer keeps tensors in this block format as codes and scales: they take less memory
    than values, every scale has a code, and in a graph every element."""
    layout = _layout_of(fmt)
    return layout.saves and (layout.every_code or not torch.compiler.is_compiling())


def pack_parts(parts: Parts, fmt: Ints, backend: str) -> Tensor | None:
    """The codes of the three parts of a tensor; None where an element has no code."""
    values, scale, tensor_scale = parts
    layout = _layout_of(fmt)
    if layout.scale is None:
        # The exponent field is the code of a power of two, and 255 that of NaN.
        scales = (scale.contiguous().view(torch.int32) >> _MAN_BITS).to(torch.uint8).flatten()
    elif layout.scale_bits == _WHOLE:
        scales = scale.contiguous().view(torch.uint8).flatten()
    else:
        scales = pack(scale, layout.scale)
    if layout.every_code:
        elements = pack(values, layout.element)
    else:
        codes = encode(values, (), layout.element, backend)
        if codes is None:
            return None
        elements = codes
    if not layout.has_tensor_scale:
        return torch.cat([scales, elements])
    of_lines = tensor_scale.contiguous().view(-1).view(torch.uint8)
    return torch.cat([of_lines, scales, elements])


def values_format(fmt: Ints, rank: int) -> Ints:
    """The format with which `unpack` reads what `pack_parts` packed of a tensor of this rank; ()
    if none.

    It has all scales in front of the elements where blocks are no blocks along one axis with powers
    of two: those along columns are tiles of one column there. Codes do not tell, and unpacking does
    not ask, by which steps they were made.
    """
    return _values_format(fmt, rank) if torch.compiler.is_compiling() else _cached_format(fmt, rank)


def _values_format(fmt: Ints, rank: int) -> Ints:
    at, size = InBlock, fmt[InBlock.SIZE]
    if not block_by_block(fmt):
        return fmt
    if rank < 2 or size < 2 or fmt[at.AXIS] % rank != rank - 2:
        return ()
    tiles = {at.SIZE: 1, at.AXIS: -1, at.LINES: size, at.STEPS: STEPS.index("exact")}
    return tuple([tiles.get(i, number) for i, number in enumerate(fmt)])


_cached_format = lru_cache(maxsize=1024)(_values_format)


def unpack_parts(codes: Tensor, fmt: Ints, shape: Sequence[int]) -> Parts:
    """The three parts of a tensor of this shape."""
    layout = _layout_of(fmt)
    grid, of_lines = grid_shape(shape, fmt), tensor_scale_shape(shape, fmt)
    first, length, _ = lengths_of_parts(shape, fmt)
    scales = codes[first : first + length].clone()
    if layout.scale is None:
        scale = unpack_powers(scales)
    elif layout.scale_bits == _WHOLE:
        scale = scales.view(torch.float32)
    else:
        scale = unpack(scales, layout.scale, grid)
    values = unpack(codes[first + length :], layout.element, shape)
    if not layout.has_tensor_scale:
        return values, scale.view(grid), scale.new_ones(())
    return values, scale.view(grid), codes[:first].clone().view(torch.float32).view(of_lines)


def pack_parts_directly(parts: Parts, fmt: Ints, backend: str) -> Tensor | None:
    """`pack_parts` of plain tensors, in one pass where the backend can."""
    chosen = select("auto", "pack", parts[0].device)
    if not chosen.joins_passes:
        return pack_parts(parts, fmt, backend)
    try:
        return chosen.pack(parts, fmt)
    except ValueError:
        return None


def unpack_parts_directly(codes: Tensor, fmt: Ints, shape: Sequence[int]) -> Parts:
    """`unpack_parts` of a plain tensor, in one pass where the backend can."""
    chosen = select("auto", "unpack", codes.device)
    if not chosen.joins_passes:
        return unpack_parts(codes, fmt, shape)
    parts = new_parts(shape, fmt, codes.device)
    chosen.unpack(codes, fmt, shape, parts)
    return parts
