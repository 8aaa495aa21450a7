"""Tensors of codes and scales, and back: the twin of exact_quantize.scaled, for whole arrays."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import BlockFormat, FixedFormat, TableFormat
from lpkernels.formats.grids import grid_of, grid_shape, tensor_scale_shape
from lpkernels.reference import programs
from lpkernels.reference.blocks import (
    Rounding,
    element_of,
    exact_scales,
    join_blocks,
    shape_of_lines,
    split_blocks,
    tensor_scale,
)
from lpkernels.reference.candidates import FOUR, SIX, nearer
from lpkernels.reference.values import (
    Float32,
    Float64,
    narrow,
    product_to_odd,
    quotient_to_odd,
    widen,
    without_tiny,
)
from lpkernels.rounding import round_array


class Scaled(NamedTuple):
    """A tensor as codes q, the scales s of its blocks, and its scale t: x^ = q s t.

    values: q, of the tensor's shape. scale: s on the grid of blocks (`formats.grids.grid_shape`),
    NaN for a block of NaN, whose codes are 0. tensor_scale: t, 0-d, or one value a line.
    """

    values: Float32
    scale: Float32
    tensor_scale: Float32


def no_scale(shape: tuple[int, ...] = ()) -> Float32:
    """t of a tensor whose format has none, or that has no elements."""
    return np.ones(shape, np.float32)


def scaled(
    x: NDArray[np.floating],
    fmt: BlockFormat,
    rounding: Rounding,
    amax: float | NDArray[np.floating] | None = None,
) -> Scaled:
    """x (float16, float32 or float64) in the block format.

    amax: in place of the largest finite magnitude, where a scale belongs to the whole tensor; where
        each line has one, a number or one for each line.
    """
    ints = fmt.to_ints()
    of_lines = tensor_scale_shape(x.shape, ints)
    if x.size == 0:
        shape = grid_shape(x.shape, ints)
        empty = np.zeros(x.shape, np.float32), np.zeros(shape, np.float32)
        return Scaled(*empty, no_scale(of_lines))
    grid = grid_of(x.shape, ints)
    wide = without_tiny(widen(x))
    if fmt.steps != "exact":
        wide = widen(narrow(wide))
    values = split_blocks(wide, grid)
    index = split_blocks(np.arange(x.size).reshape(x.shape), grid)
    # The largest of each block: NaN if it holds a NaN, else an infinity if it holds one.
    largest = np.max(np.abs(values), axis=-1, keepdims=True)
    lines = shape_of_lines(grid, fmt)
    if amax is None:
        axes = tuple(axis for axis, length in enumerate(lines) if length == 1)
        magnitudes, usable = np.abs(values), np.isfinite(values)
        of_tensor = np.max(magnitudes, axes, where=usable, initial=0.0, keepdims=True)
    else:
        of_tensor = np.broadcast_to(np.ravel(amax), math.prod(lines)).reshape(lines)
        of_tensor = np.where((of_tensor >= 0) & (of_tensor < np.inf), of_tensor, np.nan)
        if fmt.block_size == "tensor":
            largest = np.where(np.isfinite(largest), of_tensor, np.nan)
    t = np.ones(lines)
    with np.errstate(all="ignore"):
        if fmt.steps == "exact":
            t = tensor_scale(of_tensor, fmt) if fmt.tensor_scale else t
            s, shrunk = _exact(values, largest, fmt, t)
        else:
            s, t, shrunk = programs.scaled(values, largest, of_tensor, fmt, grid, rounding)
    codes = rounding(shrunk, element_of(fmt), index)
    if isinstance(fmt.element, FixedFormat) or programs.has_one_zero(fmt):
        codes = codes + 0.0
    return Scaled(
        narrow(join_blocks(np.where(np.isnan(s), 0.0, codes), x.shape, grid)),
        narrow(s).reshape(grid_shape(x.shape, ints)),
        narrow(t).reshape(of_lines),
    )


def _exact(
    values: Float64, largest: Float64, fmt: BlockFormat, t: Float64
) -> tuple[Float64, Float64]:
    """The scales, and the values before they are rounded to codes."""
    finite = np.isfinite(largest) & np.isfinite(t)
    t = np.where(np.isfinite(t), t, 1.0)
    plain, most = np.where(finite, values, 0.0), np.where(finite, largest, 0.0)
    s = exact_scales(most, fmt, t)
    if isinstance(fmt.element, TableFormat):
        shrunk = np.where(s == 0, 0.0, plain / s)
    else:
        shrunk = _shrunk(plain, s, t)
    if isinstance(fmt.target, str):
        scales = {target: exact_scales(most, fmt, t, target) for target in (SIX, FOUR)}
        numbers = {target: _shrunk(plain, scales[target], t) for target in scales}
        # A code has 2 bits, and both scales have 24 at most.
        six, four = (
            round_array(numbers[target], element_of(fmt), "nearest_even") * scales[target] * t
            for target in scales
        )
        chosen = nearer(plain, four, six, fmt.target)
        s = np.where(chosen, scales[FOUR], scales[SIX])
        shrunk = np.where(chosen, numbers[FOUR], numbers[SIX])
    return np.where(finite, s, np.nan), shrunk


def _shrunk(values: Float64, s: Float64, t: Float64) -> Float64:
    """values / (s t) for rounding to a code; zeros where that is a division by 0."""
    divisor = s * t  # of 24 bits each: exact
    zero = divisor == 0
    quotient = quotient_to_odd(values, np.where(zero, 1.0, divisor))
    return np.where(zero, np.copysign(0.0, values), quotient)


def dequantize(q: Scaled, fmt: BlockFormat) -> Float32:
    """q s t, rounded once to float32."""
    if q.values.size == 0:
        return np.empty(q.values.shape, np.float32)
    grid = grid_of(q.values.shape, fmt.to_ints())
    codes = split_blocks(widen(q.values), grid)
    s = widen(q.scale).reshape(*codes.shape[:3], 1)
    t = widen(q.tensor_scale).reshape(shape_of_lines(grid, fmt))
    with np.errstate(all="ignore"):
        # A code has 24 bits at most, and so has s: their product is exact.
        values = product_to_odd(codes * s, t)
    return narrow(join_blocks(values, q.values.shape, grid))
