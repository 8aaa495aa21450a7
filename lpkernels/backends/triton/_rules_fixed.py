"""Fixed-point sums in the last places of float32: a multiply-add rounds them, and little else.

A sum of n quanta q is held as (1.5 2^23 + n) q, a float32 whose last place is q while
|n| < 2^22: adding an exact product to it rounds their sum once to a multiple of q, in the direction
of the multiply-add, a tie to the even multiple. n is in the lower 22 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._rules import (
    TO_ODD,
    TOWARD_NEGATIVE,
    TOWARD_POSITIVE,
    TOWARD_ZERO,
    WRAP,
)
from lpkernels.backends.triton._rules32 import single, word
from lpkernels.backends.triton._rules_directed import float_of, multiply_add


@triton.jit
def zero_of(N):
    """What is held for 0."""
    return single(N.least) * 12582912.0


@triton.jit
def _integer_sum(a, b, sums, N, R: tl.constexpr):
    if (R.mode == TOWARD_ZERO) or (R.mode == TO_ODD):
        below = multiply_add(a, b, sums, TOWARD_NEGATIVE)
        above = multiply_add(a, b, sums, TOWARD_POSITIVE)
        if R.mode == TO_ODD:
            # Neighbours, or the same.
            return tl.where((word(below) & 1) != 0, below, above)
        else:
            return tl.where(above > zero_of(N), below, above)
    else:
        return multiply_add(a, b, sums, R.mode)


@triton.jit
def fixed_sum(a, b, sums, N, R: tl.constexpr):
    """a b + sums, held as above, rounded and saturated or wrapped.

    Saturated, any a and b: beyond 2^22 quanta the order is kept, infinities saturate, NaN stays.
    Signed formats of up to 23 bits, unsigned ones of up to 22. Wrapped, word_bits up to 21 and
    products below 2^21 quanta: n is held modulo 2^word_bits, from 0 on.
    """
    total = _integer_sum(a, b, sums, N, R)
    zero = zero_of(N)
    if R.overflow == WRAP:
        mask = tl.cast(single(N.unit), tl.int32) - 1
        return float_of((word(total) & mask) | word(zero))
    else:
        total = tl.minimum(total, zero + single(N.max), propagate_nan=tl.PropagateNan.ALL)
        return tl.maximum(total, zero + single(N.low), propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def fixed_value(sums, N, R: tl.constexpr):
    """The values of sums that are held as above; a zero is +0."""
    value = sums - zero_of(N)
    if R.overflow == WRAP:
        value = tl.where(value > single(N.max), value - single(N.unit) * single(N.least), value)
    return value
