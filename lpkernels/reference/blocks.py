"""The rounding of arrays, and blocks of values that share a scale: the cut of a tensor into them,
and the exact scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import FP32, BlockFormat, FloatFormat, Number, TableFormat
from lpkernels.formats.grids import Grid
from lpkernels.formats.integers import LINE_SCALE, InBlock
from lpkernels.reference.values import Float64, product_to_odd, quotient_to_odd
from lpkernels.rng import draws
from lpkernels.rounding import MAX_RANDOM_BITS, overflows_array, round_array

_LEAST_EXPONENT, _LARGEST_EXPONENT = -127, 127


@dataclass(frozen=True)
class Rounding:
    """A Quantizer's mode with the draws of one call, keyed by each value's row-major index, from
    `origin` on.

    overflowed: where not None, becomes True at the indices of finite values beyond their format.
    """

    quantizer: Quantizer
    seed: int
    site: int
    overflowed: NDArray[np.bool_] | None = None
    origin: int = 0

    @property
    def mode(self) -> str:
        return self.quantizer.rounding

    def __call__(self, x: Float64, fmt: Number, index: NDArray[np.int64]) -> Float64:
        number, bits = self.quantizer.random_bits or MAX_RANDOM_BITS, None
        if self.mode == "stochastic":
            places, rng = index + self.origin, self.quantizer.rng
            bits = draws(self.seed, self.site, 0, 0, places, number, rng)
        if self.overflowed is not None:
            beyond = overflows_array(x, fmt, self.mode, draws=bits, random_bits=number)
            self.overflowed[index[beyond]] = True
        return round_array(x, fmt, self.mode, draws=bits, random_bits=number)


def saturating(fmt: FloatFormat) -> FloatFormat:
    """The format as blocks use it: beyond max is max, whatever its own overflow says."""
    return replace(fmt, overflow="saturate")


def element_of(fmt: BlockFormat) -> Number:
    """The format of a block's codes. Integers are symmetric, unless the target is beyond the
    largest. Symmetric ones of b bits are the floats of one exponent bit and b - 2 bits of mantissa,
    whose zeros have signs."""
    element = fmt.element
    if isinstance(element, FloatFormat):
        return saturating(element)
    if isinstance(element, TableFormat) or fmt.largest > element.max:
        return element
    man_bits = element.word_bits - 2
    return FloatFormat(
        1, man_bits, bias=1 - man_bits + element.frac_bits, specials="none", overflow="saturate"
    )


def split_blocks(x: NDArray[Any], grid: Grid) -> NDArray[Any]:
    """x (not empty) as (outer, down, across, tall * wide), short tiles filled up with 0."""
    outer, rows, cols, tall, wide = grid
    full = np.zeros((outer, grid.down * tall, grid.across * wide), dtype=x.dtype)
    full[:, :rows, :cols] = x.reshape(outer, rows, cols)
    tiles = full.reshape(outer, grid.down, tall, grid.across, wide).swapaxes(2, 3)
    return tiles.reshape(outer, grid.down, grid.across, tall * wide)


def join_blocks(blocks: NDArray[Any], shape: tuple[int, ...], grid: Grid) -> NDArray[Any]:
    """The inverse of split_blocks."""
    outer, rows, cols, tall, wide = grid
    tiles = blocks.reshape(outer, grid.down, grid.across, tall, wide).swapaxes(2, 3)
    full = tiles.reshape(outer, grid.down * tall, grid.across * wide)
    return np.ascontiguousarray(full[:, :rows, :cols]).reshape(shape)


def shape_of_lines(grid: Grid, fmt: BlockFormat) -> tuple[int, ...]:
    """The shape of t beside (outer, down, across, tall * wide): one value, or one a line."""
    if fmt.to_ints()[InBlock.SCALE] != LINE_SCALE:
        return (1, 1, 1, 1)
    return (grid.outer, 1, grid.across, 1) if grid.wide == 1 else (grid.outer, grid.down, 1, 1)


def tensor_scale(amax: Float64, fmt: BlockFormat) -> Float64:
    """t = A / (B M) in float32, at most its largest value; NaN of an amax that is none."""
    usable = (amax >= 0) & (amax < np.inf)
    # B has no more than 24 bits, M neither.
    divisor = np.array(fmt.largest_scale * fmt.largest)
    quotient = quotient_to_odd(np.where(usable, amax, 0.0), divisor)
    return np.where(usable, round_array(quotient, saturating(FP32), "nearest_even"), np.nan)


def exact_scales(
    largest: Float64, fmt: BlockFormat, t: Float64, target: float | None = None
) -> Float64:
    """s of blocks whose largest magnitudes are finite, by fmt's rule; target: in place of the
    format's."""
    if fmt.scale == "e8m0":
        return np.ldexp(1.0, power_of_two_scales(largest, fmt))
    scale = FP32 if isinstance(fmt.scale, str) else fmt.scale
    rounding = "toward_positive" if fmt.rule == "up" else "nearest_even"
    divisor = product_to_odd(np.array(fmt.largest if target is None else target), t)
    quotient = quotient_to_odd(largest, np.where(divisor == 0, 1.0, divisor))
    s = np.minimum(round_array(quotient, saturating(scale), rounding), scale.max)
    return np.where(divisor == 0, 0.0, np.where(largest == 0, fmt.zero_scale, s))


def power_of_two_scales(largest: Float64, fmt: BlockFormat) -> NDArray[np.int64]:
    """X of the scale 2^X by fmt's rule, -127 of zeros."""
    element = fmt.element
    assert not isinstance(element, TableFormat)
    # frexp: largest = mantissa * 2^exponent with mantissa in [1/2, 1).
    mantissa, exponent = np.frexp(largest)
    exponent = exponent.astype(np.int64)
    top_mantissa, top = np.frexp(element.max)
    man_bits = element.man_bits if isinstance(element, FloatFormat) else element.word_bits - 2
    if fmt.rule == "up":
        top_mantissa, top = np.frexp(fmt.largest)
        x = exponent - top + (mantissa > top_mantissa)
    elif fmt.rule == "ceil":
        x = exponent - (mantissa == 0.5) - (top - 1)
    elif fmt.rule == "even":
        x = exponent - top + (mantissa >= 1 - 2.0 ** -(man_bits + 2))
    else:
        x = exponent - top
    return np.where(largest == 0, _LEAST_EXPONENT, np.clip(x, _LEAST_EXPONENT, _LARGEST_EXPONENT))
