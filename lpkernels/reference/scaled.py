"""Tensors of codes and scales, and back: the twin of exact_scaled, for whole arrays."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import BlockFormat, FixedFormat, Number, TableFormat
from lpkernels.formats.grids import grid_of, grid_shape
from lpkernels.reference import programs
from lpkernels.reference.blocks import (
    element_of,
    exact_scales,
    join_blocks,
    split_blocks,
    tensor_scale,
)
from lpkernels.reference.values import (
    Float32,
    Float64,
    narrow,
    product_to_odd,
    quotient_to_odd,
    widen,
    without_tiny,
)


class Round(Protocol):
    """Rounds values to a format in a Quantizer's mode, with the draws of row-major indices."""

    @property
    def mode(self) -> str: ...

    def __call__(self, x: Float64, fmt: Number, index: NDArray[np.int64]) -> Float64: ...


class Scaled(NamedTuple):
    """A tensor as codes q, the scales s of its blocks, and its scale t: x^ = q s t.

    values: q, of the tensor's shape. scale: s on the grid of blocks (`formats.grids.grid_shape`),
    NaN for a block of NaN, whose codes are 0. tensor_scale: t, 0-d.
    """

    values: Float32
    scale: Float32
    tensor_scale: Float32


def no_scale() -> Float32:
    """t of a tensor whose format has none."""
    return np.ones((), np.float32)


def scaled(
    x: NDArray[np.floating], fmt: BlockFormat, rounding: Round, amax: float | None = None
) -> Scaled:
    """x (float16, float32 or float64) in the block format.

    amax: in place of the largest finite magnitude, where a scale belongs to the whole tensor.
    """
    ints = fmt.to_ints()
    if x.size == 0:
        shape = grid_shape(x.shape, ints)
        return Scaled(np.zeros(x.shape, np.float32), np.zeros(shape, np.float32), no_scale())
    grid = grid_of(x.shape, ints)
    wide = without_tiny(widen(x))
    if fmt.steps != "exact":
        wide = widen(narrow(wide))
    values = split_blocks(wide, grid)
    index = split_blocks(np.arange(x.size).reshape(x.shape), grid)
    # The largest of each block: NaN if it holds a NaN, else an infinity if it holds one.
    largest = np.max(np.abs(values), axis=-1, keepdims=True)
    of_tensor = np.max(np.abs(wide), where=np.isfinite(wide), initial=0.0)
    if amax is not None:
        usable = 0 <= amax < np.inf
        of_tensor = np.float64(amax if usable else np.nan)
        if fmt.block_size == "tensor":
            largest = np.where(np.isfinite(largest) & usable, amax, np.nan)
    t = 1.0
    with np.errstate(all="ignore"):
        if fmt.steps == "exact":
            if fmt.tensor_scale:
                t = tensor_scale(float(of_tensor), fmt)
            finite = np.isfinite(largest) & np.isfinite(t)
            s = exact_scales(np.where(finite, largest, 0.0), fmt, t if np.isfinite(t) else 1.0)
            s = np.where(finite, s, np.nan)
            divided = np.where(finite, values, 0.0), np.where(finite, s, 1.0)
            if isinstance(fmt.element, TableFormat):
                shrunk = np.where(divided[1] == 0, 0.0, divided[0] / divided[1])
            else:
                shrunk = _shrunk(*divided, t)
        else:
            s, t, shrunk = programs.scaled(values, largest, float(of_tensor), fmt, rounding)
    codes = rounding(shrunk, element_of(fmt), index)
    if isinstance(fmt.element, FixedFormat) or programs.has_one_zero(fmt):
        codes = codes + 0.0
    return Scaled(
        narrow(join_blocks(np.where(np.isnan(s), 0.0, codes), x.shape, grid)),
        narrow(s).reshape(grid_shape(x.shape, ints)),
        narrow(np.array(t)),
    )


def _shrunk(values: Float64, s: Float64, t: float) -> Float64:
    """values / (s t) for rounding to a code; zeros where that is a division by 0."""
    divisor = s * (t if np.isfinite(t) else 1.0)  # of 24 bits each: exact
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
    t = widen(q.tensor_scale)
    with np.errstate(all="ignore"):
        # A code has 24 bits at most, and so has s: their product is exact.
        values = product_to_odd(codes * s, t)
    return narrow(join_blocks(values, q.values.shape, grid))
