"""Quantisation of whole arrays to every format, the twin of exact_quantize."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import AffineFormat, BlockFormat
from lpkernels.reference.blocks import Rounding
from lpkernels.reference.exact_quantize import INTEGERS, SMALLEST_STEP
from lpkernels.reference.scaled import Scaled, dequantize
from lpkernels.reference.scaled import scaled as in_blocks
from lpkernels.reference.values import Float32, Float64, narrow, widen, without_tiny
from lpkernels.rng import SITE_QUANTIZE


def quantize(
    x: NDArray[np.floating],
    quantizer: Quantizer,
    *,
    seed: int = 0,
    site: int = SITE_QUANTIZE,
    limits: Float64 | None = None,
    overflowed: NDArray[np.bool_] | None = None,
    origin: int = 0,
) -> Float32:
    """x rounded once to the Quantizer's format.

    Args:
        x: float16, float32 or float64, any shape and strides. seed: already derived for its role.
        site: SITE_QUANTIZE or SITE_OUTPUT; draws are keyed (seed, site, 0, 0, row-major index).
        limits: for an affine format the low and the high end of every slice, (2, slices), in place
            of the slice's own ends; a slice with NaN for its ends becomes all NaN. For a block
            format (1,), in place of the tensor's largest finite magnitude, or (lines,) where each
            line has a scale.
        origin: the index by which the first value of x draws; the others follow.
        overflowed: (x.size,), False on entry; becomes True where `counting` counts an overflow.
    Returns: float32, C-contiguous, of x's shape; NaN is 0x7fc00000.
    """
    fmt = quantizer.fmt
    rounding = Rounding(quantizer, seed, site, overflowed, origin)
    if x.size == 0:
        return np.empty(x.shape, dtype=np.float32)
    if isinstance(fmt, BlockFormat):
        return dequantize(in_blocks(x, fmt, rounding, limits), fmt)
    if isinstance(fmt, AffineFormat):
        return _quantize_affine(x, fmt, rounding, limits)
    values = without_tiny(widen(x).reshape(-1))
    return narrow(rounding(values, fmt, np.arange(x.size))).reshape(x.shape)


def scaled(
    x: NDArray[np.floating],
    quantizer: Quantizer,
    *,
    seed: int = 0,
    site: int = SITE_QUANTIZE,
    amax: float | NDArray[np.floating] | None = None,
) -> Scaled:
    """`quantize` to a block format, in codes and scales."""
    assert isinstance(quantizer.fmt, BlockFormat)
    return in_blocks(x, quantizer.fmt, Rounding(quantizer, seed, site), amax)


def _quantize_affine(
    x: NDArray[np.floating], fmt: AffineFormat, rounding: Rounding, limits: Float64 | None
) -> Float32:
    """Every step is one float64 operation."""
    values, index = widen(x), np.arange(x.size).reshape(x.shape)
    sliced = None if fmt.axis is None else range(x.ndim)[fmt.axis]
    axes = tuple(d for d in range(x.ndim) if d != sliced)
    if limits is None:
        # inf and -inf where nothing is finite.
        finite = np.isfinite(values)
        lo = np.min(values, axis=axes, keepdims=True, where=finite, initial=np.inf)
        hi = np.max(values, axis=axes, keepdims=True, where=finite, initial=-np.inf)
    else:
        lo, hi = limits.reshape(2, *(1 if d in axes else n for d, n in enumerate(x.shape)))
    missing, top, zero = ~(lo <= hi), 2.0**fmt.bits - 1, lo
    with np.errstate(over="ignore", invalid="ignore"):
        if fmt.symmetric:
            hi = np.maximum(np.abs(lo), np.abs(hi))
            lo, zero, top = -hi, np.zeros_like(lo), 2.0 ** (fmt.bits - 1) - 1
        exact_step = (hi - zero) / top
        step = np.maximum(exact_step, SMALLEST_STEP)
        u = np.clip((values - zero) / step, -top if fmt.symmetric else 0.0, top)
        code = rounding(u, INTEGERS, index)
        value = code * step + zero
        if not fmt.symmetric:
            value = np.where((code == top) & ~(exact_step < SMALLEST_STEP), hi, value)
        result = narrow(np.where(missing, np.nan, value))
    if rounding.overflowed is not None:
        outside = np.isfinite(values) & ~missing & ((values < lo) | (values > hi))
        rounding.overflowed[outside.reshape(-1)] = True
    result[result == 0] = 0.0
    return result
