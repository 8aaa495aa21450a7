"""Between the float32 values that travel and the float64 values that are computed with, exactly.

A process may run with denormals flushed to zero (torch.set_flush_denormal). Conversions of float32
subnormals would then lose them, so both directions take them apart as integers; in float64 every
value of a format, product or sum is normal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]

_EXPONENT32 = np.uint32(0x7F800000)
_MANTISSA32 = np.uint32(0x007FFFFF)
_SIGN32 = np.uint32(0x80000000)
_NAN32 = np.uint32(0x7FC00000)
_SIGN64 = np.uint64(0x8000000000000000)
_TINY = 2.0**-500


def widen(x: NDArray[np.floating]) -> Float64:
    """``x`` as a new float64 array: exact for float16 and float32, subnormals included."""
    # A signalling NaN becomes a quiet one, which NumPy would report.
    with np.errstate(invalid="ignore"):
        return _widened(x)


def _widened(x: NDArray[np.floating]) -> Float64:
    if x.dtype == np.float32:
        return _widen_float32(np.ascontiguousarray(x).reshape(x.shape))
    return np.array(x, dtype=np.float64, order="C")


def without_tiny(x: Float64) -> Float64:
    """``x`` with 2^-500, of the same sign, for any smaller magnitude but zero.

    Both lie so far below every quantum (at least 2^-149) that they round alike in every mode; the
    larger one can be scaled by a power of two, and is no float64 subnormal that could be flushed.
    """
    bits = x.view(np.uint64)
    magnitude = bits & ~_SIGN64
    tiny = (magnitude != 0) & (magnitude < np.float64(_TINY).view(np.uint64))
    if not tiny.any():
        return x
    return np.where(tiny, (bits & _SIGN64) | np.float64(_TINY).view(np.uint64), bits).view(
        np.float64
    )


def _widen_float32(x: Float32) -> Float64:
    bits = x.view(np.uint32)
    subnormal = ((bits & _EXPONENT32) == 0) & ((bits & _MANTISSA32) != 0)
    wide: Float64 = x.astype(np.float64)
    if subnormal.any():
        picked = bits[subnormal]
        magnitude = (picked & _MANTISSA32).astype(np.float64) * 2.0**-149
        wide[subnormal] = np.where(picked & _SIGN32, -magnitude, magnitude)
    return wide


def narrow(x: Float64) -> Float32:
    """``x`` rounded to float32 (nearest even); every NaN is 0x7fc00000.

    Values of a format are float32 values already, so nothing is rounded for them.
    """
    x = np.ascontiguousarray(x).reshape(x.shape)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        bits = x.astype(np.float32).view(np.uint32)
    magnitude = np.abs(x)
    # rint: nearest even on the multiples of 2^-149; 2^23 of them are the smallest normal, with the
    # right bits.
    small = (magnitude < 2.0**-126) & (magnitude > 0)
    if small.any():
        quanta = np.rint(magnitude[small] * 2.0**149).astype(np.uint32)
        bits[small] = quanta | np.where(np.signbit(x[small]), _SIGN32, np.uint32(0))
    bits[np.isnan(x)] = _NAN32
    return bits.view(np.float32)
