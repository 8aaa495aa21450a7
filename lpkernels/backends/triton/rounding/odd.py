"""Sums, products and quotients rounded to odd.

A result rounded to odd in float64 gives the bits of the exact one when it is rounded again to 51
bits or fewer, in every mode. The remainders here are exact because nothing is contracted
(`_launch.EXACT`), and they need no fused multiply-add, which the interpreter lacks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton.rounding.bits import bits_of, value_of

# Masks that keep the first 24 and the first 26 bits of a significand in float64.
_FIRST_24, _FIRST_26 = tl.constexpr(-(2**29)), tl.constexpr(-(2**27))


@triton.jit
def made_odd(near, rest):
    """The odd neighbour of near + rest; near is the nearest number of its precision, and stays if
    rest is 0 or NaN."""
    bits = bits_of(near)
    # -1 where the rest leads back towards zero: the exact number lies below |near| then.
    back = (bits_of(rest) ^ bits) >> (bits.dtype.primitive_bitwidth - 1)
    return value_of(tl.where(tl.abs(rest) > 0.0, (bits + back) | 1, bits))


@triton.jit
def odd_sum(a, b):
    """a + b in the precision of both. An infinite sum has a NaN for error, and stays as it is."""
    s = a + b
    b_part = s - a
    error = (a - (s - b_part)) + (b - b_part)
    return made_odd(s, error)


@triton.jit
def odd_product(x, y):
    """x y in float64, x of 48 bits and y of 24; an infinite product stays infinite."""
    near = x * y
    # Both halves of x have 24 bits, so that their products are exact.
    first = value_of(bits_of(x) & _FIRST_24)
    return made_odd(near, (first * y - near) + (x - first) * y)


@triton.jit
def odd_quotient(x, y):
    """x / y in float64, y positive and of 48 bits; an infinite quotient stays infinite.

    The quotient, of 53 bits, times y is a nearest product and an error, both exact (Dekker 1971);
    the parts have 26 and 27 bits, and 26 and 22. Magnitudes of x are 0 or 2^-500 and more, so that
    no error is subnormal."""
    near = x / y
    product = near * y
    near_first, y_first = value_of(bits_of(near) & _FIRST_26), value_of(bits_of(y) & _FIRST_26)
    near_last, y_last = near - near_first, y - y_first
    error = near_first * y_first - product
    error = error + near_first * y_last + near_last * y_first
    error = error + near_last * y_last
    return made_odd(near, (x - product) - error)
