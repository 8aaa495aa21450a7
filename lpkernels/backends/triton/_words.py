"""Rounding of float32 values by 32-bit arithmetic on their bits: csrc/cpu/word_rules.h.

A GPU outside a data centre has one float64 unit for 32 or 64 of float32, so values that are
float32, float16 or bfloat16 already are rounded without float64. Why the bits are those of
`_rules.round_to`:

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

from lpkernels.backends.triton._rules import (
    INFINITY,
    NEAREST_AWAY,
    NEAREST_EVEN,
    SATURATE,
    STOCHASTIC,
    TO_ODD,
    TOWARD_NEGATIVE,
    TOWARD_POSITIVE,
    TOWARD_ZERO,
)
from lpkernels.formats import FloatFormat, format_from_ints

_SIGN = tl.constexpr(-(2**31))
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_EXPONENT = tl.constexpr(0x7F800000)
_NAN = tl.constexpr(0x7FC00000)
_SIGNIFICAND = tl.constexpr(0x7FFFFF)
_HIDDEN = tl.constexpr(0x800000)


def words_fit(fmt: tuple[int, ...]) -> bool:
    """Whether these rules take a format, given as its integers.

    One spacing below 2^floor, a largest value not below that, 2^(q + 23) a float32.
    """
    parsed = format_from_ints(fmt)
    if not isinstance(parsed, FloatFormat):
        return False
    if parsed.emin - (parsed.man_bits if parsed.subnormals else 0) + 23 > 127:
        return False
    reaches = parsed.emin == -127 and parsed.subnormals and parsed.max >= 2.0**-126
    return parsed.emin >= -126 or reaches


def evenly_spaced(fmt: tuple[int, ...]) -> bool:
    """Whether values below 2^floor follow the rule of those above: float32's own exponents."""
    parsed = format_from_ints(fmt)
    return isinstance(parsed, FloatFormat) and parsed.emin == -126 and parsed.subnormals


@triton.jit
def word_of(x):
    """The bits of a float32 number or tile."""
    return tl.cast(tl.cast(x, tl.float32), tl.int32, bitcast=True)


@triton.jit
def single(x):
    """float16, bfloat16 or float32 as float32, exactly.

    bfloat16 by its bits: Triton's interpreter loses its smallest subnormals in a conversion.
    """
    if x.dtype == tl.bfloat16:
        return tl.cast(
            tl.cast(x, tl.int16, bitcast=True).to(tl.int32) << 16, tl.float32, bitcast=True
        )
    else:
        return x.to(tl.float32)


@triton.jit
def float_of(word):
    return tl.cast(word, tl.float32, bitcast=True)


@triton.jit
def unsigned(word):
    return tl.cast(word, tl.uint32, bitcast=True)


@triton.jit
def signed(word):
    return tl.cast(word, tl.int32, bitcast=True)


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
        return word_of((float_of(a) + float_of(magic)) - float_of(magic))
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
    return word_of(float_of(n + tl.where(up, 1, 0) + magic) - float_of(magic))


@triton.jit
def overflowed_word(a, sign, N, R: tl.constexpr):
    """What becomes of what rounds beyond max, sign included; see `_rules.overflowed`."""
    largest = word_of(N.max)
    if R.overflow == INFINITY:
        beyond = sign | _EXPONENT
    elif R.overflow == SATURATE:
        beyond = sign | largest
    else:
        beyond = (sign & 0) | _NAN
    infinite = a == _EXPONENT
    if (R.mode == TOWARD_ZERO) or (R.mode == TO_ODD):
        return tl.where(infinite, beyond, sign | largest)
    elif R.mode == TOWARD_POSITIVE:
        return tl.where(infinite | (sign == 0), beyond, sign | largest)
    elif R.mode == TOWARD_NEGATIVE:
        return tl.where(infinite | (sign != 0), beyond, sign | largest)
    else:
        return beyond


@triton.jit
def round_words(x, draw, N, R: tl.constexpr, EVEN: tl.constexpr):
    """float32 x in a float format that `words_fit`; every NaN is 0x7fc00000.

    Args:
        draw: T of the draws, uint32; ignored unless stochastic.
        EVEN: `evenly_spaced` of the format.
    """
    bits = word_of(x)
    a = bits & _MAGNITUDE
    sign = bits & _SIGN
    negative = sign != 0
    # 2^-man_bits has the biased exponent 127 - man_bits.
    dropped = (word_of(N.unit) >> 23) - 104
    parity = tl.cast(N.code, tl.int32) & 1 if R.exponent_parity else 0
    r = rounded_code(a, negative, draw, dropped, parity, R)
    if not EVEN:
        least = word_of(N.least)
        place = (least >> 23) + 23
        if R.subnormals:
            place = place + dropped - 23
        floor = tl.maximum(least, _HIDDEN)
        r = tl.where(a < floor, rounded_count(a, negative, draw, place, R), r)
    r = tl.where(r > word_of(N.max), overflowed_word(a, sign, N, R), r | sign)
    return float_of(tl.where(a > _EXPONENT, _NAN, r))
