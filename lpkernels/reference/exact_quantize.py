"""Quantisation element by element: the definition of right results for every format.

FloatFormat, FixedFormat and TableFormat round each value by itself. A BlockFormat and an
AffineFormat take their scale from a group of values first; the loops here say which group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import AffineFormat, BlockFormat, FixedFormat, Number
from lpkernels.reference import exact_scaled
from lpkernels.reference.values import Float32, narrow, widen
from lpkernels.rng import SITE_QUANTIZE, draw
from lpkernels.rounding import round_scalar

# Rounds the value at a row-major index of the tensor to a format, in the Quantizer's mode and with
# that index's draw.
_Round = Callable[[Fraction | float, Number, int], float]

# Codes of an AffineFormat: integers of at most 17 bits with their sign.
_INTEGERS = FixedFormat(24, 0)
_SMALLEST_STEP = 1e-8


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
        return exact_scaled.dequantize(exact_scaled.scaled(x, fmt, rounded), fmt)
    elif isinstance(fmt, AffineFormat):
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
    convert = _symmetric_slice if fmt.symmetric else _slice
    result = [math.nan] * len(values)
    for members in slices:
        indices = members.reshape(-1).tolist()
        finite = [values[i] for i in indices if math.isfinite(values[i])]
        if finite:
            for i, value in zip(
                indices, convert(values, indices, finite, fmt.bits, rounded), strict=True
            ):
                result[i] = value
    return result


def _code(u: float, low: float, high: float, rounded: _Round, index: int) -> float:
    """u clamped to low..high and rounded to an integer; NaN stays NaN."""
    return math.nan if math.isnan(u) else rounded(min(max(u, low), high), _INTEGERS, index)


def _float32(value: float) -> float:
    """value rounded to float32, a zero result +0."""
    return float(narrow(np.array(value, dtype=np.float64))) + 0.0


def _slice(
    values: list[float], indices: list[int], finite: list[float], bits: int, rounded: _Round
) -> list[float]:
    lo, hi = min(finite), max(finite)
    top = 2.0**bits - 1
    step = (hi - lo) / top
    floored = step < _SMALLEST_STEP
    step = max(step, _SMALLEST_STEP)
    result = []
    for i in indices:
        code = _code((values[i] - lo) / step, 0.0, top, rounded, i)
        value = hi if code == top and not floored else code * step + lo
        result.append(_float32(value))
    return result


def _symmetric_slice(
    values: list[float], indices: list[int], finite: list[float], bits: int, rounded: _Round
) -> list[float]:
    top = 2.0 ** (bits - 1) - 1
    step = max(max(abs(v) for v in finite) / top, _SMALLEST_STEP)
    codes = (_code(values[i] / step, -top, top, rounded, i) for i in indices)
    return [_float32(code * step) for code in codes]
