"""Numbers as bits and back, in float32 and float64."""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton.rounding.rule import NEAREST_AWAY

SIGN = tl.constexpr(-(2**63))
MAGNITUDE = tl.constexpr(2**63 - 1)
EXPONENT = tl.constexpr(0x7FF0000000000000)
#: These are the same masks for the bits of a float32.
SIGN32 = tl.constexpr(-(2**31))
MAGNITUDE32 = tl.constexpr(2**31 - 1)
EXPONENT32 = tl.constexpr(0x7F800000)
NAN32 = tl.constexpr(0x7FC00000)

# Sum of the biased exponents of a power of two and of its reciprocal, in place.
_RECIPROCAL = tl.constexpr(2046 << 52)


@triton.jit
def double(x):
    """A number or a tile as float64, exactly."""
    return tl.cast(x, tl.float64)


@triton.jit
def single(x):
    """A number or a tile as float32."""
    return tl.cast(x, tl.float32)


@triton.jit
def widened(x):
    """A tile of float16, bfloat16 or float32 as float32, exactly.

    bfloat16 is widened by its bits: Triton's interpreter loses its smallest subnormals in a
    conversion.
    """
    if x.dtype == tl.bfloat16:
        return value_of(tl.cast(tl.cast(x, tl.int16, bitcast=True), tl.int32) << 16)
    else:
        return single(x)


@triton.jit
def bits_of(x):
    """The bits of a float32 or a float64, as a signed integer of its size."""
    return tl.cast(x, tl.int64 if x.dtype == tl.float64 else tl.int32, bitcast=True)


@triton.jit
def value_of(bits):
    """The float32 or float64 with these bits."""
    return tl.cast(
        bits, tl.float64 if bits.dtype.primitive_bitwidth == 64 else tl.float32, bitcast=True
    )


@triton.jit
def signed(word):
    return tl.cast(word, tl.int32, bitcast=True)


@triton.jit
def unsigned(word):
    return tl.cast(word, tl.uint32, bitcast=True)


@triton.jit
def narrow(x):
    """The float32 that holds x, a value of a format; every NaN is 0x7fc00000."""
    return value_of(tl.where(x == x, bits_of(single(x)), NAN32))


@triton.jit
def magnitude_of(x):
    """|x| of a float64."""
    return value_of(bits_of(x) & MAGNITUDE)


@triton.jit
def with_sign(magnitude, x):
    """A magnitude, or a number that has x's sign already, with the sign of x; both of one
    precision."""
    if x.dtype == tl.float64:
        return value_of(bits_of(magnitude) | (bits_of(x) & SIGN))
    else:
        return value_of(bits_of(magnitude) | (bits_of(x) & SIGN32))


@triton.jit
def moderated(x):
    """x with its magnitude moved into 2^-400 .. 2^300, beyond which every value rounds alike, also
    once scaled by 2^-127 .. 2^127."""
    a = magnitude_of(x)
    clamped = tl.where((a > 2.0**300) & (bits_of(a) < EXPONENT), double(2.0**300), a)
    clamped = tl.where((a < 2.0**-400) & (a > 0.0), double(2.0**-400), clamped)
    return with_sign(clamped, x)


@triton.jit
def reciprocal(x):
    """1 / x for a power of two in float64, by its exponent."""
    return value_of(-bits_of(x) + _RECIPROCAL)


@triton.jit
def upper(x):
    """The upper 32 bits of a float64: sign, exponent and 20 bits of the significand."""
    return tl.cast(bits_of(x) >> 32, tl.int32)


@triton.jit
def from_upper(bits):
    """The float64 with these upper bits and zeros below."""
    return value_of(tl.cast(bits, tl.int64) << 32)


@triton.jit
def exponent_of(x):
    """The exponent of a number's leading bit; of one argument, not of a tile."""
    return ((upper(double(x)) >> 20) & 0x7FF) - 1023


@triton.jit
def man_bits_of(N):
    """man_bits of the Numbers of a float format."""
    return 127 - (bits_of(single(N.unit)) >> 23)


@triton.jit
def zero_of(N, R: tl.constexpr):
    """The number that `round.fixed_sum` holds for 0, in the last places of float32; half of it for
    nearest_away, so that halves have a place."""
    return single(N.least) * (1.5 * 2.0**22 if R.mode == NEAREST_AWAY else 1.5 * 2.0**23)
