"""Quantisation of whole arrays to every format, the twin of exact_quantize."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import AffineFormat, BlockFormat, FixedFormat, Number
from lpkernels.reference import scaled as blocks
from lpkernels.reference.values import Float32, Float64, narrow, widen, without_tiny
from lpkernels.rng import SITE_QUANTIZE, draws
from lpkernels.rounding import overflows_array, round_array

# Elements rounded together: a few float64 arrays of that many fit in a second-level cache.
_SLAB = 1 << 15

# Codes of an AffineFormat: integers of at most 17 bits with their sign.
_INTEGERS = FixedFormat(24, 0)
_SMALLEST_STEP = 1e-8


class _Rounding:
    """A Quantizer's mode with the draws of one call, keyed by each value's row-major index, from
    `origin` on.

    overflowed: where not None, becomes True at the indices of finite values beyond their format.
    """

    def __init__(
        self,
        quantizer: Quantizer,
        seed: int,
        site: int,
        overflowed: NDArray[np.bool_] | None,
        origin: int,
    ):
        self.mode, self.rng = quantizer.rounding, quantizer.rng
        self.random_bits = 32 if quantizer.random_bits is None else quantizer.random_bits
        self.seed, self.site, self.overflowed, self.origin = seed, site, overflowed, origin

    def __call__(self, x: Float64, fmt: Number, index: NDArray[np.int64]) -> Float64:
        bits = None
        if self.mode == "stochastic":
            places = index + self.origin
            bits = draws(self.seed, self.site, 0, 0, places, self.random_bits, self.rng)
        if self.overflowed is not None:
            beyond = overflows_array(x, fmt, self.mode, draws=bits, random_bits=self.random_bits)
            self.overflowed[index[beyond]] = True
        return round_array(x, fmt, self.mode, draws=bits, random_bits=self.random_bits)


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
            format (1,), in place of the tensor's largest finite magnitude.
        origin: the index by which the first value of x draws; the others follow.
        overflowed: (x.size,), False on entry; becomes True where `counting` counts an overflow.
    Returns: float32, C-contiguous, of x's shape; NaN is 0x7fc00000.
    """
    fmt = quantizer.fmt
    rounding = _Rounding(quantizer, seed, site, overflowed, origin)
    if x.size == 0:
        return np.empty(x.shape, dtype=np.float32)
    if isinstance(fmt, BlockFormat):
        amax = None if limits is None else float(limits[0])
        return blocks.dequantize(blocks.scaled(x, fmt, rounding, amax), fmt)
    if isinstance(fmt, AffineFormat):
        return _quantize_affine(x, fmt, rounding, limits)
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty(flat.size, dtype=np.float32)
    for start in range(0, flat.size, _SLAB):
        slab = slice(start, min(start + _SLAB, flat.size))
        index = np.arange(slab.start, slab.stop)
        out[slab] = narrow(rounding(without_tiny(widen(flat[slab])), fmt, index))
    return out.reshape(x.shape)


def scaled(
    x: NDArray[np.floating],
    quantizer: Quantizer,
    *,
    seed: int = 0,
    site: int = SITE_QUANTIZE,
    amax: float | None = None,
) -> blocks.Scaled:
    """`quantize` to a block format, in codes and scales."""
    assert isinstance(quantizer.fmt, BlockFormat)
    return blocks.scaled(x, quantizer.fmt, _Rounding(quantizer, seed, site, None, 0), amax)


def _quantize_affine(
    x: NDArray[np.floating], fmt: AffineFormat, rounding: _Rounding, limits: Float64 | None
) -> Float32:
    values = widen(x)
    index = np.arange(x.size).reshape(x.shape)
    axes = (
        tuple(range(x.ndim))
        if fmt.axis is None
        else tuple(d for d in range(x.ndim) if d != range(x.ndim)[fmt.axis])
    )
    lo, hi = _ends(values, axes) if limits is None else _given_ends(limits, x.shape, axes)
    if fmt.symmetric:
        hi = np.where(hi < lo, np.nan, np.maximum(np.abs(lo), np.abs(hi)))
        lo = -hi
    if rounding.overflowed is not None:
        outside = np.isfinite(values) & (lo <= hi) & ((values < lo) | (values > hi))
        rounding.overflowed[outside.reshape(-1)] = True
    convert = _symmetric if fmt.symmetric else _asymmetric
    with np.errstate(over="ignore", invalid="ignore"):
        result = narrow(convert(values, lo, hi, fmt.bits, rounding, index))
    result[result == 0] = 0.0
    return result


def _ends(x: Float64, axes: tuple[int, ...]) -> tuple[Float64, Float64]:
    """The least and the largest finite value of every slice; inf and -inf where there is none."""
    finite = np.isfinite(x)
    lo = np.min(x, axis=axes, keepdims=True, where=finite, initial=np.inf)
    hi = np.max(x, axis=axes, keepdims=True, where=finite, initial=-np.inf)
    return lo, hi


def _given_ends(
    limits: Float64, shape: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[Float64, Float64]:
    """limits (2, slices) as `_ends` has them."""
    ends = [1 if d in axes else n for d, n in enumerate(shape)]
    return limits[0].reshape(ends), limits[1].reshape(ends)


def _asymmetric(
    x: Float64, lo: Float64, hi: Float64, bits: int, rounding: _Rounding, index: NDArray[np.int64]
) -> Float64:
    """code * s + lo, every step one float64 operation."""
    top = 2.0**bits - 1
    exact_step = (hi - lo) / top
    step = np.maximum(exact_step, _SMALLEST_STEP)
    u = (x - lo) / step
    code = rounding(np.clip(u, 0.0, top), _INTEGERS, index)
    value = np.where((code == top) & ~(exact_step < _SMALLEST_STEP), hi, code * step + lo)
    return np.where(hi < lo, np.nan, value)


def _symmetric(
    x: Float64, lo: Float64, hi: Float64, bits: int, rounding: _Rounding, index: NDArray[np.int64]
) -> Float64:
    """code * s over [-hi, hi]; all NaN where hi is."""
    top = 2.0 ** (bits - 1) - 1
    step = np.maximum(hi / top, _SMALLEST_STEP)
    code = rounding(np.clip(x / step, -top, top), _INTEGERS, index)
    return np.where(np.isnan(lo), np.nan, code * step)
