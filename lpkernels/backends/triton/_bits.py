"""Numbers as bits and back, in float32 and float64, and multiply-adds that round in a direction."""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._launch import interpreting
from lpkernels.backends.triton._rule import TOWARD_NEGATIVE, TOWARD_POSITIVE, TOWARD_ZERO

SIGN = tl.constexpr(-(2**63))
MAGNITUDE = tl.constexpr(2**63 - 1)
EXPONENT = tl.constexpr(0x7FF0000000000000)
#: The same in the bits of a float32.
SIGN32 = tl.constexpr(-(2**31))
MAGNITUDE32 = tl.constexpr(2**31 - 1)
EXPONENT32 = tl.constexpr(0x7F800000)
NAN32 = tl.constexpr(0x7FC00000)

_INTERPRETED = tl.constexpr(interpreting())
# Sum of the biased exponents of a power of two and of its reciprocal, in place.
_RECIPROCAL = tl.constexpr(2046 << 52)


@triton.jit
def wide(x):
    """A number or a tile as float64, exactly."""
    return tl.cast(x, tl.float64)


@triton.jit
def single(x):
    """A number or a tile as float32."""
    return tl.cast(x, tl.float32)


@triton.jit
def widened(x):
    """A tile of float16, bfloat16 or float32 as float32, exactly.

    bfloat16 by its bits: Triton's interpreter loses its smallest subnormals in a conversion.
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
    """A magnitude, or what has x's sign already, with the sign of x; of one precision."""
    if x.dtype == tl.float64:
        return value_of(bits_of(magnitude) | (bits_of(x) & SIGN))
    else:
        return value_of(bits_of(magnitude) | (bits_of(x) & SIGN32))


@triton.jit
def is_infinite(a):
    """Of a magnitude in float64."""
    return bits_of(a) == EXPONENT


@triton.jit
def moderated(x):
    """x with its magnitude moved into 2^-400 .. 2^300, beyond which every value rounds alike, also
    once scaled by 2^-127 .. 2^127."""
    a = magnitude_of(x)
    held = tl.where((a > 2.0**300) & (bits_of(a) < EXPONENT), wide(2.0**300), a)
    held = tl.where((a < 2.0**-400) & (a > 0.0), wide(2.0**-400), held)
    return with_sign(held, x)


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
    return ((upper(wide(x)) >> 20) & 0x7FF) - 1023


@triton.jit
def odd_sum(a, b):
    """a + b rounded to odd, in the precision of both: the nearest sum if it is exact or odd, else
    the one past the error."""
    s = a + b
    b_part = s - a
    error = (a - (s - b_part)) + (b - b_part)
    bits = bits_of(s)
    # -1 where the error leads back towards zero: the exact sum lies below |s| then. An infinite sum
    # has a NaN for error, which compares false, and stays as it is.
    back = (bits_of(error) ^ bits) >> (63 if a.dtype == tl.float64 else 31)
    return value_of(tl.where(tl.abs(error) > 0.0, (bits + back) | 1, bits))


@triton.jit
def exact_sum(a, b, MODE: tl.constexpr):
    """`odd_sum`; if MODE is toward_negative a zero is -0 unless both addends are +0."""
    total = odd_sum(a, b)
    if MODE == TOWARD_NEGATIVE:
        zero = value_of((bits_of(a) | bits_of(b)) & SIGN)
        total = tl.where(total == 0.0, zero, total)
    return total


@triton.jit
def _interpreted_multiply_add(a, b, c, MODE: tl.constexpr):
    """`multiply_add` from float64: the sum made odd, its neighbours in float32."""
    total = exact_sum(wide(c), wide(a) * wide(b), MODE)
    nearest = single(total)
    inward = value_of(bits_of(nearest) - 1)
    outward = value_of(bits_of(nearest) + 1)
    if MODE == TOWARD_ZERO:
        return tl.where(tl.abs(wide(nearest)) > tl.abs(total), inward, nearest)
    elif MODE == TOWARD_POSITIVE:
        next_one = tl.where(nearest < 0.0, inward, outward)
        return tl.where(wide(nearest) < total, next_one, nearest)
    elif MODE == TOWARD_NEGATIVE:
        next_one = tl.where(nearest > 0.0, inward, outward)
        return tl.where(wide(nearest) > total, next_one, nearest)
    else:
        return nearest


@triton.jit
def multiply_add(a, b, c, MODE: tl.constexpr):
    """a b + c rounded once to float32, subnormals kept; to nearest unless MODE is a direction.

    Triton's own multiply-add rounds to nearest, and twice where it is interpreted.
    """
    if _INTERPRETED:
        return _interpreted_multiply_add(a, b, c, MODE)
    elif MODE == TOWARD_ZERO:
        return tl.inline_asm_elementwise(
            "fma.rz.f32 $0, $1, $2, $3;", "=f,f,f,f", [a, b, c], tl.float32, True, 1
        )
    elif MODE == TOWARD_POSITIVE:
        return tl.inline_asm_elementwise(
            "fma.rp.f32 $0, $1, $2, $3;", "=f,f,f,f", [a, b, c], tl.float32, True, 1
        )
    elif MODE == TOWARD_NEGATIVE:
        return tl.inline_asm_elementwise(
            "fma.rm.f32 $0, $1, $2, $3;", "=f,f,f,f", [a, b, c], tl.float32, True, 1
        )
    else:
        return tl.fma(a, b, c)
