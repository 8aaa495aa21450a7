"""Between the float32 values that travel and the float64 values that are computed with, exactly.

A process may run with denormals flushed to zero (torch.set_flush_denormal). Conversions of float32
subnormals would then lose them, so both directions take them apart as integers; in float64 every
value of a format, product or sum is normal.
"""

from __future__ import annotations

import math
from typing import NamedTuple

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
        wide = np.array(x, dtype=np.float64, order="C")
    if x.dtype == np.float32:
        bits = np.ascontiguousarray(x).reshape(x.shape).view(np.uint32)
        subnormal = ((bits & _EXPONENT32) == 0) & ((bits & _MANTISSA32) != 0)
        magnitude = (bits[subnormal] & _MANTISSA32).astype(np.float64) * 2.0**-149
        wide[subnormal] = np.where(bits[subnormal] & _SIGN32, -magnitude, magnitude)
    return wide


class Batch(NamedTuple):
    """The products a (..., M, K) @ b (..., K, N) as one batch, in row-major order.

    lead: the leading dimensions of the result, to which those of a and b broadcast. rows, length,
    cols: M, K and N.
    """

    lead: tuple[int, ...]
    rows: int
    length: int
    cols: int

    @classmethod
    def of(cls, a: Float32, b: Float32) -> Batch:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return cls(lead, a.shape[-2], a.shape[-1], b.shape[-1])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the results as one batch: (batch, M, N)."""
        return math.prod(self.lead), self.rows, self.cols

    def matrices(self, x: Float32) -> Float64:
        """The matrices x (..., R, C), one for each product: (batch, R, C)."""
        last = x.shape[-2:]
        return widen(np.broadcast_to(x, (*self.lead, *last)).reshape(math.prod(self.lead), *last))

    def starts(self, initial: Float32 | None) -> Float64 | None:
        """Where the sums start, (batch, M, N): `initial` broadcasts to the result; None: none."""
        if initial is None:
            return None
        return self.matrices(np.broadcast_to(initial, (*self.lead, self.rows, self.cols)))

    def result(self, sums: Float64) -> Float32:
        """(..., M, N) of the sums of the batch."""
        return narrow(sums).reshape(*self.lead, self.rows, self.cols)


def without_tiny(x: Float64) -> Float64:
    """``x`` with 2^-500, of the same sign, for any smaller magnitude but zero.

    Both lie so far below every quantum (at least 2^-149) that they round alike in every mode; the
    larger one can be scaled by a power of two, and is no float64 subnormal that could be flushed.
    """
    bits = x.view(np.uint64)
    magnitude = bits & ~_SIGN64
    least = np.float64(_TINY).view(np.uint64)
    tiny = (magnitude != 0) & (magnitude < least)
    if not tiny.any():
        return x
    return np.where(tiny, (bits & _SIGN64) | least, bits).view(np.float64)


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


def quotient_to_odd(x: Float64, y: Float64) -> Float64:
    """x / y to 53 bits, an inexact one to the odd neighbour: rounded again to 51 bits or fewer, it
    is what the exact quotient is rounded to, in every mode.

    x, y: finite, y not 0 and no wider than 50 bits.
    """
    mantissa, exponent = np.frexp(x)
    divisor, shift = np.frexp(y)
    quotient = mantissa / divisor
    product, error = _two_product(quotient, divisor)
    rest = (mantissa - product) - error
    return np.ldexp(to_odd(quotient, rest * np.sign(divisor)), exponent - shift)


def product_to_odd(x: Float64, y: Float64) -> Float64:
    """x * y as `quotient_to_odd` gives quotients; infinities and NaN as x * y has them."""
    mantissa, exponent = np.frexp(x)
    factor, shift = np.frexp(y)
    product, error = _two_product(mantissa, factor)
    return np.ldexp(to_odd(product, error), exponent + shift)


def to_odd(near: Float64, rest: Float64) -> Float64:
    """near + rest to odd: near, the float64 nearest to the sum, if it is exact or odd, else its
    neighbour on the side of the rest. An infinity or NaN, whose rest is NaN, stays."""
    bits = np.ascontiguousarray(near).view(np.int64)
    # Both comparisons fail for NaN.
    inexact_even = ((rest > 0) | (rest < 0)) & ((bits & 1) == 0)
    # Bits of magnitudes grow with them.
    step = np.where((rest > 0) == (near > 0), 1, -1)
    return np.where(inexact_even, bits + step, bits).view(np.float64).reshape(np.shape(near))


def _two_product(x: Float64, y: Float64) -> tuple[Float64, Float64]:
    """x * y rounded, and its error (Dekker 1971); magnitudes near 1."""
    product = x * y
    x_high, x_low = _split(x)
    y_high, y_low = _split(y)
    error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    return product, error


def _split(x: Float64) -> tuple[Float64, Float64]:
    """x as two numbers of 26 bits."""
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    return high, x - high
