"""Rounding of float32 sums in all modes but nearest_even: multiply-adds that round in a direction.

m is man_bits of the format, D = 23 - m. Rounding toward zero to 24 bits and then to fewer is
rounding toward zero once, and so upward after upward; a sum cut to 24 bits has its first 23 - m
places below the last one, which is all that nearest_away and a draw of R <= 22 - m bits look at.
So nothing need be known of how long products and sums are.

Sums are kept scaled by 2^(-126 - emin): the smallest normal value of the format is that of float32
then, the D lowest bits are always those that go, in subnormals too, and the sign of zero survives.
Results are below the overflow, see `_certificate`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._launch import interpreting
from lpkernels.backends.triton._rules import (
    NEAREST_AWAY,
    STOCHASTIC,
    TO_ODD,
    TOWARD_NEGATIVE,
    TOWARD_POSITIVE,
    TOWARD_ZERO,
    bits_of,
    odd_sum,
    value_of,
    wide,
)
from lpkernels.backends.triton._rules32 import single, word

_INTERPRETED = tl.constexpr(interpreting())
_SIGN = tl.constexpr(-(2**63))


@triton.jit
def float_of(bits):
    return tl.cast(bits, tl.float32, bitcast=True)


@triton.jit
def _interpreted_multiply_add(a, b, c, MODE: tl.constexpr):
    """`multiply_add` from float64: the sum made odd, its neighbours in float32."""
    product = wide(a) * wide(b)
    total = odd_sum(wide(c), product)
    if MODE == TOWARD_NEGATIVE:
        zero = value_of((bits_of(wide(c)) | bits_of(product)) & _SIGN)
        total = tl.where(total == 0.0, zero, total)
    nearest = single(total)
    inward = float_of(word(nearest) - 1)
    outward = float_of(word(nearest) + 1)
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


@triton.jit
def scale_of(N, PART: tl.constexpr):
    """Part 0 and 1 of the scale, powers of two whose product it is, or part 2: all of it.

    For -126 <= emin <= 0. Operands of usual sizes stay exact if each takes its part.
    """
    # -126 - emin, from a biased exponent.
    scale = 1 - (word(single(N.least)) >> 23)
    part = scale
    if PART == 0:
        part = scale >> 1
    elif PART == 1:
        part = scale - (scale >> 1)
    return float_of((part + 127) << 23)


@triton.jit
def unscaled(sums, N):
    """Sums without their scale, exactly: values of the format."""
    return sums * float_of(word(single(N.least)) + (126 << 23))


@triton.jit
def cut32(s, drawn, N, R: tl.constexpr):
    """A scaled sum, rounded to 24 bits as `summed` does it, in the format.

    drawn: if stochastic, an int32 tile of 2 draw + 1.
    """
    dropped = (word(single(N.unit)) >> 23) - 104
    mask = (1 << dropped) - 1
    bits = word(s)
    if R.mode == STOCHASTIC:
        # A power of two that the compiler does not know as one: a multiply-add, no shift.
        place = tl.cast(single(N.unit) * (1 << (22 - R.random_bits)), tl.int32)
        bits = drawn * place + bits
    elif R.mode == NEAREST_AWAY:
        bits = bits + (1 << (dropped - 1))
    elif R.mode == TOWARD_POSITIVE:
        bits = bits + (mask & ~(bits >> 31))
    elif R.mode == TOWARD_NEGATIVE:
        bits = bits + (mask & (bits >> 31))
    else:
        tl.static_assert(R.mode == TOWARD_ZERO)
    return float_of(bits & ~mask)


@triton.jit
def odd32(below, above, N):
    """to_odd of a sum, given as float32 rounds it down and up: neighbours, or the same.

    The one of smaller magnitude has the smaller bits but for the sign. Whatever is dropped of it,
    or lies between the two, leaves a bit in the D lowest of one of them: neighbours differ there.
    """
    mask = (1 << ((word(single(N.unit)) >> 23) - 104)) - 1
    first, second = (
        tl.cast(below, tl.uint32, bitcast=True), tl.cast(above, tl.uint32, bitcast=True),
    )  # fmt: skip
    smaller = tl.cast(tl.minimum(first, second), tl.int32, bitcast=True)
    # The carry out of the dropped bits is the lowest one that is kept.
    lowest = ((word(below) | word(above)) & mask) + mask
    return float_of((smaller | lowest) & ~mask)


@triton.jit
def summed(a, b, sums, drawn, N, R: tl.constexpr):
    """a b + sums in the format, all of it scaled: a multiply-add and 1 to 5 operations."""
    if R.mode == TO_ODD:
        below = multiply_add(a, b, sums, TOWARD_NEGATIVE)
        return odd32(below, multiply_add(a, b, sums, TOWARD_POSITIVE), N)
    elif (R.mode == TOWARD_POSITIVE) or (R.mode == TOWARD_NEGATIVE):
        return cut32(multiply_add(a, b, sums, R.mode), drawn, N, R)
    else:
        return cut32(multiply_add(a, b, sums, TOWARD_ZERO), drawn, N, R)
