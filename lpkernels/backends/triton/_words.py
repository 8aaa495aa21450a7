"""Rounding of float32 values by 32-bit arithmetic on their bits: csrc/cpu/word_rules.h.

A GPU outside a data centre has one float64 unit for 32 or 64 of float32, so values that are
float32, float16 or bfloat16 already are rounded without float64. Why the bits are those of
`_rounding.round_to`:

From 2^floor on, floor the smallest normal exponent but no less than -126, the bits of a magnitude
without the D = 23 - man_bits lowest are its code in the format but for a constant, and the D lowest
are D bits of the fraction between two neighbours, all it has. So neighbours are one apart, a carry
out of the D bits goes to the next one, over the end of a binade too, and what lies beyond the
largest value has larger bits.

Below, neighbours are whole numbers n of the smallest step 2^q (the smallest normal value without
subnormals), and codes are n. The bits of n 2^q + 2^(q + 23) are n more than those of 2^(q + 23):
n < 2^23 there, so the sum is exact, and the nearest such sum has the parity of its code.

Stochastic with R bits moves a value away from zero when floor(f 2^(R+1)) + 2 draw + 1 >= 2^(R+1).
With T = (2 draw + 1) 2^(31-R), or T = draw for R = 32, that is f 2^32 + T >= 2^32, the carry out of
the D bits plus T 2^(D-32), cut off: what is cut off could only matter if f had places below it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._bits import (
    EXPONENT32,
    MAGNITUDE32,
    NAN32,
    SIGN32,
    bits_of,
    signed,
    single,
    unsigned,
    value_of,
)
from lpkernels.backends.triton._rounding import overflowed
from lpkernels.backends.triton._rule import (
    NEAREST_AWAY,
    NEAREST_EVEN,
    STOCHASTIC,
    TO_ODD,
    TOWARD_NEGATIVE,
    TOWARD_POSITIVE,
    TOWARD_ZERO,
)

_SIGNIFICAND = tl.constexpr(0x7FFFFF)
_HIDDEN = tl.constexpr(0x800000)


@triton.jit
def draw_word(draw, R: tl.constexpr):
    """T of a draw of R bits."""
    return draw if R == 32 else ((draw << 1) | 1) << (31 - R)


@triton.jit
def rounded_code(a, negative, draw, dropped, parity, R: tl.constexpr):
    """Magnitudes a from 2^floor on, as bits; parity: whether even codes are odd in bit `dropped`.

    Infinity stays infinity, whose D lowest bits are 0.
    """
    mask = (1 << dropped) - 1
    kept = -mask - 1
    if R.mode == NEAREST_EVEN:
        moved = a + (mask >> 1) + (((a >> dropped) ^ parity) & (mask & 1))
    elif R.mode == NEAREST_AWAY:
        moved = a + ((mask + 1) >> 1)
    elif R.mode == TOWARD_POSITIVE:
        moved = a + tl.where(negative, 0, mask)
    elif R.mode == TOWARD_NEGATIVE:
        moved = a + tl.where(negative, mask, 0)
    elif R.mode == TO_ODD:
        # The lowest kept bit, if a dropped one is set and the code is even.
        even = (a ^ (parity << dropped) ^ -1) & (mask + 1)
        moved = (a & kept) + (((a & mask) + mask) & even)
    elif R.mode == STOCHASTIC:
        moved = a + signed((draw >> 1) >> (unsigned(dropped) ^ 31))
    else:
        tl.static_assert(R.mode == TOWARD_ZERO)
        moved = a
    return moved & kept


@triton.jit
def high_fraction(significand, shift, R: tl.constexpr):
    """floor(f 2^32) of the fraction f in the `shift` >= 1 lowest bits of 24.

    For R = 32 the rule reads (floor(f 2^33) + 1) / 2 + draw >= 2^32, so there it is half of
    floor(f 2^33), rounded up; both are f 2^32 while f has no more than 32 bits.
    """
    beyond = tl.minimum(tl.maximum(shift - 32, 0), 31)
    low = (significand << 1) >> beyond
    if R.mode == STOCHASTIC and R.random_bits == 32:
        low = low + 1
    high = significand << (-tl.minimum(shift, 32) + 32)
    return unsigned(tl.where(shift > 32, low >> 1, high))


@triton.jit
def rounded_count(a, negative, draw, place, R: tl.constexpr):
    """Magnitudes a below 2^floor, as bits; place: q + 150, the biased exponent of 2^(q + 23)."""
    magic = place << 23
    if R.mode == NEAREST_EVEN:
        return bits_of((value_of(a) + value_of(magic)) - value_of(magic))
    exponent = a >> 23
    significand = tl.where(exponent == 0, a, (a & _SIGNIFICAND) | _HIDDEN)
    shift = place - tl.maximum(exponent, 1)
    # Any shift beyond 24 leaves nothing.
    held = tl.minimum(shift, 31)
    n = significand >> held
    inexact = (n << held) != significand
    if R.mode == TOWARD_POSITIVE:
        up = inexact & (negative == 0)
    elif R.mode == TOWARD_NEGATIVE:
        up = inexact & negative
    elif R.mode == TO_ODD:
        up = inexact & ((n & 1) == 0)
    elif R.mode == NEAREST_AWAY:
        up = signed(high_fraction(significand, shift, R)) < 0
    elif R.mode == STOCHASTIC:
        # The carry out of fraction + draw.
        up = high_fraction(significand, shift, R) > (draw ^ 0xFFFFFFFF)
    else:
        up = n < 0
    return bits_of(value_of(n + tl.where(up, 1, 0) + magic) - value_of(magic))


@triton.jit
def round_words(x, draw, N, R: tl.constexpr, EVEN: tl.constexpr):
    """float32 x in a float format that `words_fit`; a NaN is one of either sign.

    Args:
        draw: T of the draws, uint32; ignored unless stochastic.
        EVEN: `evenly_spaced` of the format.
    """
    bits = bits_of(x)
    a = bits & MAGNITUDE32
    sign = bits & SIGN32
    negative = sign != 0
    # 2^-man_bits has the biased exponent 127 - man_bits.
    dropped = (bits_of(single(N.unit)) >> 23) - 104
    parity = tl.cast(N.code, tl.int32) & 1 if R.exponent_parity else 0
    r = rounded_code(a, negative, draw, dropped, parity, R)
    if not EVEN:
        least = bits_of(single(N.least))
        place = (least >> 23) + 23
        if R.subnormals:
            place = place + dropped - 23
        floor = tl.maximum(least, _HIDDEN)
        r = tl.where(a < floor, rounded_count(a, negative, draw, place, R), r)
    beyond = bits_of(overflowed(value_of(a), negative, a == EXPONENT32, N, R))
    r = tl.where(r > bits_of(single(N.max)), beyond, r) | sign
    return value_of(tl.where(a > EXPONENT32, NAN32, r))
