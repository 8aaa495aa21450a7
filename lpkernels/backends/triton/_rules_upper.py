"""Rounding of float64 sums, cheaply: what the certified kernels do where float32 is too short.

m is man_bits of the format. Most of it happens in the upper 32 bits of a float64, which hold its
sign, its exponent and 20 bits of its significand; a GPU has half as many float64 lanes as integer
ones, or far fewer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._rules import (
    NEAREST_AWAY,
    STOCHASTIC,
    TOWARD_ZERO,
    bits_of,
    value_of,
    wide,
)

_EXPONENT = tl.constexpr(0x7FF00000)
_SIGN = tl.constexpr(-(2**63))
# 1.5 2^52 over the last place of a significand.
_MAGIC = tl.constexpr(6755399441055744.0)


@triton.jit
def upper(x):
    """The upper 32 bits of a float64."""
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
def fused64(s, N):
    """nearest_even by 2 multiply-adds, m = 1..23: `_rules32.fused32` with D = 52 - m."""
    scale = wide(N.unit) * 4503599627370496.0
    return tl.fma(s, scale, tl.fma(s, -scale, s))


@triton.jit
def nearest64(s, N):
    """nearest_even with subnormals and the sign of zero, man_bits 1..23; no overflow.

    As `floored32`: 1.5 2^(52 - m) binades added and taken away, the binade at least that of the
    smallest normal. Exact for every s below 2^900: a grid of float64 is a grid of the format.
    """
    # The product of powers of two, in place: their exponents added.
    magic = upper(wide(N.unit) * _MAGIC) - 0x3FF00000
    binade = tl.maximum(upper(s) & _EXPONENT, upper(wide(N.least)))
    shift = from_upper(binade + magic)
    return value_of(bits_of((s + shift) - shift) | (bits_of(s) & _SIGN))


@triton.jit
def cut64(s, drawn, N, R: tl.constexpr):
    """toward_zero, nearest_away, stochastic: something added below the last place, then cut off.

    All in the upper bits; the carry goes on into the exponent as it should. The last bit of s that
    counts must be one of them: that of the format for toward_zero (m <= 20), the one below for
    nearest_away (m <= 19), the (R + 1)st below for R random bits (m + R <= 19). Nothing beneath
    it can change a result. No overflow, and no floor of subnormals: s is to be a multiple of the
    subnormals' last place, then a smaller s has no bits where it is cut.

    drawn: if stochastic, an int32 tile of 2 draw + 1.
    """
    m = -exponent_of(N.unit)
    bits = upper(s)
    if R.mode == STOCHASTIC:
        # A power of two that the compiler does not know as one: a multiply-add, no shift.
        bits = drawn * tl.cast(wide(N.unit) * (1 << (19 - R.random_bits)), tl.int32) + bits
    elif R.mode == NEAREST_AWAY:
        bits = bits + (1 << (19 - m))
    else:
        tl.static_assert(R.mode == TOWARD_ZERO)
    return from_upper(bits & -(1 << (20 - m)))
