"""Quantisation of whole arrays to every format, the twin of exact_quantize."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import AffineFormat, BlockFormat, FixedFormat, FloatFormat
from lpkernels.reference.blocks import block_exponents, join_blocks, saturating, split_blocks
from lpkernels.reference.values import Float32, Float64, narrow, widen, without_tiny
from lpkernels.rng import SITE_QUANTIZE, draws
from lpkernels.rounding import round_array

# Elements rounded together: a few float64 arrays of that many fit in a second-level cache.
_SLAB = 1 << 15

# Codes of an AffineFormat: integers of at most 17 bits with their sign.
_INTEGERS = FixedFormat(24, 0)
_SMALLEST_STEP = 1e-8


class _Rounding:
    """A Quantizer's mode with the draws of one call, keyed by each value's row-major index."""

    def __init__(self, quantizer: Quantizer, seed: int, site: int):
        self.mode, self.rng = quantizer.rounding, quantizer.rng
        self.random_bits = 32 if quantizer.random_bits is None else quantizer.random_bits
        self.seed, self.site = seed, site

    def __call__(
        self, x: Float64, fmt: FloatFormat | FixedFormat, index: NDArray[np.int64]
    ) -> Float64:
        bits = None
        if self.mode == "stochastic":
            bits = draws(self.seed, self.site, 0, 0, index, self.random_bits, self.rng)
        return round_array(x, fmt, self.mode, draws=bits, random_bits=self.random_bits)


def quantize(
    x: NDArray[np.floating], quantizer: Quantizer, *, seed: int = 0, site: int = SITE_QUANTIZE
) -> Float32:
    """x rounded once to the Quantizer's format.

    Args:
        x: float16, float32 or float64, any shape and strides. seed: already derived for its role.
        site: SITE_QUANTIZE or SITE_OUTPUT; draws are keyed (seed, site, 0, 0, row-major index).
    Returns: float32, C-contiguous, of x's shape; NaN is 0x7fc00000.
    """
    fmt = quantizer.fmt
    rounding = _Rounding(quantizer, seed, site)
    if x.size == 0:
        return np.empty(x.shape, dtype=np.float32)
    if isinstance(fmt, BlockFormat):
        return _quantize_blocks(x, fmt, rounding)
    if isinstance(fmt, AffineFormat):
        return _quantize_affine(x, fmt, rounding)
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty(flat.size, dtype=np.float32)
    for start in range(0, flat.size, _SLAB):
        slab = slice(start, min(start + _SLAB, flat.size))
        index = np.arange(slab.start, slab.stop)
        out[slab] = narrow(rounding(without_tiny(widen(flat[slab])), fmt, index))
    return out.reshape(x.shape)


def _quantize_blocks(x: NDArray[np.floating], fmt: BlockFormat, rounding: _Rounding) -> Float32:
    values = split_blocks(without_tiny(widen(x)), fmt)
    index = split_blocks(np.arange(x.size).reshape(x.shape), fmt)
    element = saturating(fmt.element)
    exponent, finite = block_exponents(values, element)
    scaled = np.ldexp(np.where(finite, values, 0.0), -exponent)
    rounded = np.ldexp(rounding(scaled, element, index), exponent)
    return narrow(join_blocks(np.where(finite, rounded, np.nan), x.shape, fmt))


def _quantize_affine(x: NDArray[np.floating], fmt: AffineFormat, rounding: _Rounding) -> Float32:
    values = widen(x)
    index = np.arange(x.size).reshape(x.shape)
    axes = (
        tuple(range(x.ndim))
        if fmt.axis is None
        else tuple(d for d in range(x.ndim) if d != fmt.axis % x.ndim)
    )
    convert = _symmetric if fmt.symmetric else _asymmetric
    with np.errstate(over="ignore", invalid="ignore"):
        result = narrow(convert(values, np.isfinite(values), axes, fmt.bits, rounding, index))
    result[result == 0] = 0.0
    return result


def _asymmetric(
    x: Float64,
    finite: NDArray[np.bool_],
    axes: tuple[int, ...],
    bits: int,
    rounding: _Rounding,
    index: NDArray[np.int64],
) -> Float64:
    """code * s + lo, every step one float64 operation.

    Without a finite value lo = inf and hi = -inf, and all becomes NaN.
    """
    lo = np.min(x, axis=axes, keepdims=True, where=finite, initial=np.inf)
    hi = np.max(x, axis=axes, keepdims=True, where=finite, initial=-np.inf)
    top = 2.0**bits - 1
    exact_step = (hi - lo) / top
    step = np.maximum(exact_step, _SMALLEST_STEP)
    u = (x - lo) / step
    code = rounding(np.clip(u, 0.0, top), _INTEGERS, index)
    value = np.where((code == top) & ~(exact_step < _SMALLEST_STEP), hi, code * step + lo)
    return np.where(hi < lo, np.nan, value)


def _symmetric(
    x: Float64,
    finite: NDArray[np.bool_],
    axes: tuple[int, ...],
    bits: int,
    rounding: _Rounding,
    index: NDArray[np.int64],
) -> Float64:
    """code * s over [-max|x|, max|x|]; no finite value: max|x| = -1, and all becomes NaN."""
    largest = np.max(np.abs(x), axis=axes, keepdims=True, where=finite, initial=-1.0)
    top = 2.0 ** (bits - 1) - 1
    step = np.maximum(largest / top, _SMALLEST_STEP)
    code = rounding(np.clip(x / step, -top, top), _INTEGERS, index)
    return np.where(largest < 0, np.nan, code * step)
