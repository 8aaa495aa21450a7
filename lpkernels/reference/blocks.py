"""Blocks of an OCP Microscaling format: the cut of a tensor into them, and their exponents."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import BlockFormat, FloatFormat
from lpkernels.reference.values import Float64

_LEAST_EXPONENT, _LARGEST_EXPONENT = -127, 127


def saturating(element: FloatFormat) -> FloatFormat:
    """The element format as a block uses it: beyond max is max, whatever its own overflow says."""
    return FloatFormat(
        element.exp_bits,
        element.man_bits,
        bias=element.bias,
        specials=element.specials,
        subnormals=element.subnormals,
        overflow="saturate",
    )


def _outer_length_inner(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Sizes before axis, along it and behind it; a 0-d tensor is one line of one."""
    if not shape:
        return 1, 1, 1
    axis = range(len(shape))[axis]
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def split_blocks(x: NDArray[Any], fmt: BlockFormat) -> NDArray[Any]:
    """x (not empty) as (outer, blocks, inner, size), the last block of a line filled with 0.

    Blocks run along fmt.axis; outer counts the positions before it, inner those behind it; size is
    fmt.block_size, or the length of a line that is shorter.
    """
    outer, length, inner = _outer_length_inner(x.shape, fmt.axis)
    size = min(fmt.block_size, length)
    blocks = -(-length // size)
    full = np.zeros((outer, blocks * size, inner), dtype=x.dtype)
    full[:, :length] = x.reshape(outer, length, inner)
    return full.reshape(outer, blocks, size, inner).swapaxes(2, 3)


def join_blocks(blocks: NDArray[Any], shape: tuple[int, ...], fmt: BlockFormat) -> NDArray[Any]:
    """The inverse of split_blocks."""
    outer, length, inner = _outer_length_inner(shape, fmt.axis)
    lines = blocks.swapaxes(2, 3).reshape(outer, -1, inner)[:, :length]
    return np.ascontiguousarray(lines).reshape(shape)


def block_exponents(
    blocks: Float64, element: FloatFormat
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """X of every block, clamp(floor(log2 max|x|) - emax, -127, 127), and whether it is finite.

    Both have the shape of blocks with a last dimension of 1. A block of zeros has X = -127; the X
    of a block with NaN or infinity means nothing.
    """
    finite = np.asarray(np.isfinite(blocks).all(axis=-1, keepdims=True))
    largest = np.max(np.abs(np.where(finite, blocks, 0.0)), axis=-1, keepdims=True)
    # frexp: largest = mantissa * 2^exponent with mantissa in [1/2, 1).
    floor_log2 = np.frexp(largest)[1].astype(np.int64) - 1
    exponent = np.clip(floor_log2 - element.emax, _LEAST_EXPONENT, _LARGEST_EXPONENT)
    return np.where(largest == 0, _LEAST_EXPONENT, exponent), finite
