"""Quantisation element by element: the definition of right results for every format.

FloatFormat, FixedFormat and TableFormat round each value by itself. A BlockFormat and an
AffineFormat take their scale from a group of values first; the loops here say which group. Blocks
are defined for the steps "exact" alone: the steps of other programs are operations in float32, one
after the other, which `reference.programs` writes down; no rational would say more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import (
    FP32,
    AffineFormat,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    Number,
    TableFormat,
)
from lpkernels.formats.grids import grid_of, grid_shape, tensor_scale_shape
from lpkernels.reference.blocks import saturating, shape_of_lines
from lpkernels.reference.candidates import FOUR, is_nearer
from lpkernels.reference.scaled import Scaled
from lpkernels.reference.values import Float32, narrow, widen
from lpkernels.rng import SITE_QUANTIZE, draw
from lpkernels.rounding import floor_log2, round_scalar

# Rounds the value at a row-major index of the tensor to a format, in the Quantizer's mode and with
# that index's draw.
_Round = Callable[[Fraction | float, Number, int], float]

#: Codes of an AffineFormat: integers of at most 17 bits with their sign.
INTEGERS = FixedFormat(24, 0)
SMALLEST_STEP = 1e-8


def quantize(
    x: NDArray[np.floating], quantizer: Quantizer, *, seed: int = 0, site: int = SITE_QUANTIZE
) -> Float32:
    """x rounded once to the Quantizer's format.

    Args:
        x: float16, float32 or float64, any shape. seed: already derived for its role.
        site: SITE_QUANTIZE or SITE_OUTPUT; draws are keyed (seed, site, 0, 0, row-major index).
    Returns: float32 of x's shape; NaN is 0x7fc00000.
    """
    fmt = quantizer.fmt
    random_bits = 32 if quantizer.random_bits is None else quantizer.random_bits

    def rounded(value: Fraction | float, target: Number, index: int) -> float:
        stochastic = quantizer.rounding == "stochastic"
        bits = draw(seed, site, 0, 0, index, random_bits, quantizer.rng) if stochastic else 0
        return round_scalar(value, target, quantizer.rounding, draw=bits, random_bits=random_bits)

    values = widen(x).reshape(-1).tolist()
    if isinstance(fmt, BlockFormat):
        return dequantize(scaled(x, fmt, rounded), fmt)
    if isinstance(fmt, AffineFormat):
        result = _affine(values, x.shape, fmt, rounded)
    else:
        result = [rounded(v, fmt, i) for i, v in enumerate(values)]
    return narrow(np.array(result, dtype=np.float64).reshape(x.shape))


def _affine(
    values: list[float], shape: tuple[int, ...], fmt: AffineFormat, rounded: _Round
) -> list[float]:
    """One range for the tensor, or for every slice x.select(axis, i)."""
    everything = np.arange(len(values)).reshape(shape)
    slices = [everything] if fmt.axis is None else np.moveaxis(everything, fmt.axis, 0)
    result = [math.nan] * len(values)
    for members in slices:
        indices = members.reshape(-1).tolist()
        finite = [values[i] for i in indices if math.isfinite(values[i])]
        ends = min(finite, default=0.0), max(finite, default=0.0)
        for i in indices if finite else ():
            result[i] = _of_slice(values[i], *ends, fmt, rounded, i)
    return result


def _of_slice(
    value: float, lo: float, hi: float, fmt: AffineFormat, rounded: _Round, index: int
) -> float:
    """The result, +0 where it is a zero, of a value of a slice whose finite ones are lo .. hi."""
    least, top = 0.0, 2.0**fmt.bits - 1
    if fmt.symmetric:
        top = 2.0 ** (fmt.bits - 1) - 1
        least, lo, hi = -top, 0.0, max(-lo, hi)
    exact_step = (hi - lo) / top
    step = max(exact_step, SMALLEST_STEP)
    code = (value - lo) / step
    if not math.isnan(code):
        code = rounded(min(max(code, least), top), INTEGERS, index)
    ends = code == top and exact_step >= SMALLEST_STEP and not fmt.symmetric
    return float(narrow(np.array(hi if ends else code * step + lo))) + 0.0


def scaled(
    x: NDArray[np.floating], fmt: BlockFormat, rounded: _Round, amax: float | None = None
) -> Scaled:
    """x in the block format, whose steps are exact; amax as in `reference.scaled.scaled`, one
    number."""
    shape, of_lines = (of(x.shape, fmt.to_ints()) for of in (grid_shape, tensor_scale_shape))
    codes, scales = [0.0] * x.size, [0.0] * math.prod(shape)
    values = widen(x).reshape(-1).tolist()
    blocks = _blocks(x.shape, fmt)
    lines = _lines(x.shape, fmt)
    scales_of_lines = [1.0] * math.prod(of_lines)
    for line in range(len(scales_of_lines) if fmt.tensor_scale and values else 0):
        finite = [
            abs(values[i])
            for of, members in zip(lines, blocks, strict=True)
            for i in members
            if of == line and math.isfinite(values[i])
        ]
        most = max(finite, default=0.0) if amax is None else amax
        scales_of_lines[line] = _tensor_scale(most, fmt)
    for number, members in enumerate(blocks):
        block, t = [values[i] for i in members], scales_of_lines[lines[number]]
        largest = max(abs(v) for v in block)
        if fmt.block_size == "tensor" and amax is not None:
            largest = amax if amax >= 0 else math.nan
        if not all(map(math.isfinite, [*block, largest, t])):
            scales[number] = math.nan
            continue
        s = block_scale(largest, fmt, t)
        of_block = _codes(values, members, s, t, fmt, rounded)
        if isinstance(fmt.target, str):
            s_4 = block_scale(largest, fmt, t, FOUR)
            codes_4 = _codes(values, members, s_4, t, fmt, rounded)
            four, six = (
                [Fraction(code) * Fraction(scale) * Fraction(t) for code in of]
                for of, scale in ((codes_4, s_4), (of_block, s))
            )
            if is_nearer(block, four, six, fmt.target):
                s, of_block = s_4, codes_4
        scales[number] = s
        for i, code in zip(members, of_block, strict=True):
            codes[i] = code
    return Scaled(_array(codes, x.shape), _array(scales, shape), _array(scales_of_lines, of_lines))


def _codes(
    values: list[float], members: list[int], s: float, t: float, fmt: BlockFormat, rounded: _Round
) -> list[float]:
    """The codes of a block under a scale."""
    divisor = Fraction(s) * Fraction(t)
    return [_code(values[i], divisor, fmt, rounded, i) for i in members]


def _array(values: list[float], shape: tuple[int, ...]) -> Float32:
    return narrow(np.array(values, dtype=np.float64).reshape(shape))


def _blocks(shape: tuple[int, ...], fmt: BlockFormat) -> list[list[int]]:
    """Row-major indices of every block's values, in the order of the blocks' scales."""
    if math.prod(shape) == 0:
        return []
    grid = grid_of(shape, fmt.to_ints())
    places = np.arange(math.prod(shape)).reshape(grid.outer, grid.rows, grid.cols)
    indices = []
    for matrix in places:
        for top in range(0, grid.rows, grid.tall):
            for left in range(0, grid.cols, grid.wide):
                block = matrix[top : top + grid.tall, left : left + grid.wide]
                indices.append(block.reshape(-1).tolist())
    return indices


def _lines(shape: tuple[int, ...], fmt: BlockFormat) -> list[int]:
    """The number of every block's line, in the order of `_blocks`; 0 where lines have no scales."""
    if math.prod(shape) == 0:
        return []
    grid = grid_of(shape, fmt.to_ints())
    lines = shape_of_lines(grid, fmt)
    numbers = np.arange(math.prod(lines)).reshape(lines)
    return np.broadcast_to(numbers, (grid.outer, grid.down, grid.across, 1)).reshape(-1).tolist()


def _tensor_scale(amax: float, fmt: BlockFormat) -> float:
    if not 0 <= amax < math.inf:
        return math.nan
    exact = Fraction(amax) / (Fraction(fmt.largest_scale) * Fraction(fmt.largest))
    return round_scalar(exact, saturating(FP32), "nearest_even")


def block_scale(
    largest: float, fmt: BlockFormat, t: float = 1.0, target: float | None = None
) -> float:
    """s of a block whose values are finite; target: in place of the format's."""
    if fmt.scale == "e8m0":
        return math.ldexp(1.0, power_of_two_scale(largest, fmt))
    if largest == 0:
        return fmt.zero_scale
    if t == 0:
        return 0.0
    scale = FP32 if isinstance(fmt.scale, str) else fmt.scale
    mode = "toward_positive" if fmt.rule == "up" else "nearest_even"
    divisor = Fraction(fmt.largest if target is None else target) * Fraction(t)
    exact = Fraction(largest) / divisor
    return min(round_scalar(exact, saturating(scale), mode), scale.max)


def power_of_two_scale(largest: float, fmt: BlockFormat) -> int:
    """X of the scale 2^X of a block of finite values."""
    if largest == 0:
        return -127
    top = Fraction(fmt.element.max)
    emax = floor_log2(top)
    a = Fraction(largest)
    if fmt.rule == "up":
        x = _ceil_log2(a / Fraction(fmt.largest))
    elif fmt.rule == "ceil":
        x = _ceil_log2(a) - emax
    else:
        x = floor_log2(a) - emax
        if fmt.rule == "even":
            one = fmt.element
            assert not isinstance(one, TableFormat)
            man_bits = one.man_bits if isinstance(one, FloatFormat) else one.word_bits - 2
            near_next = a >= Fraction(2) ** floor_log2(a) * (2 - Fraction(2) ** -(man_bits + 1))
            x += int(near_next)
    return min(127, max(-127, x))


def _ceil_log2(x: Fraction) -> int:
    k = floor_log2(x)
    return k if x == Fraction(2) ** k else k + 1


def _code(value: float, divisor: Fraction, fmt: BlockFormat, rounded: _Round, index: int) -> float:
    element = fmt.element
    zero = value == 0 or divisor == 0
    # Zero keeps its sign as a float.
    exact = math.copysign(0.0, value) if zero else Fraction(value) / divisor
    if isinstance(element, FloatFormat):
        return rounded(exact, saturating(element), index)
    if isinstance(element, TableFormat):
        return rounded(float(exact), element, index)
    # Integers are symmetric unless the target is beyond the largest, and have one zero.
    code = rounded(exact, element, index) + 0.0
    return code if fmt.largest > element.max else max(code, -element.max)


def dequantize(q: Scaled, fmt: BlockFormat) -> Float32:
    """q s t, rounded once to float32."""
    result = [math.nan] * q.values.size
    codes, scales = widen(q.values).reshape(-1).tolist(), widen(q.scale).reshape(-1).tolist()
    of_lines = widen(q.tensor_scale).reshape(-1).tolist()
    blocks, lines = _blocks(q.values.shape, fmt), _lines(q.values.shape, fmt)
    for s, members, line in zip(scales, blocks, lines, strict=True):
        t = of_lines[line]
        for i in members if math.isfinite(s) and math.isfinite(t) else ():
            if codes[i] == 0 or s == 0 or t == 0 or not math.isfinite(codes[i]):
                result[i] = codes[i] * s * t
            else:
                exact = Fraction(codes[i]) * Fraction(s) * Fraction(t)
                result[i] = round_scalar(exact, FP32, "nearest_even")
    return _array(result, q.values.shape)
