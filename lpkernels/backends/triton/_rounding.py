"""Every rounding of sums and products: csrc/common/round.h and accumulate.h, line by line, then the
short forms of the certified kernels. (`_words` rounds inputs of quantize without any float64.)

General forms take float64 tiles: an exact value, or a longer sum rounded to odd, which gives the
bits of the exact one because formats have at most 24 significant bits and a draw at most 24 more
(32 where the value itself is exact). Kernels are compiled without contraction (`_launch.EXACT`):
contracted, splitting would be the identity.

m is man_bits of the format, e its emin, N its `Numbers`, R its `Rule`. `_certificate` says when one
rounding of a sum that was rounded to float32 or float64 is one rounding of the exact sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._bits import (
    EXPONENT,
    EXPONENT32,
    bits_of,
    exact_sum,
    exponent_of,
    from_upper,
    is_infinite,
    magnitude_of,
    multiply_add,
    reciprocal,
    signed,
    single,
    unsigned,
    upper,
    value_of,
    wide,
    with_sign,
)  # fmt: skip
from lpkernels.backends.triton._rule import (
    INFINITY,
    NEAREST_AWAY,
    NEAREST_EVEN,
    SATURATE,
    STOCHASTIC,
    TO_ODD,
    TOWARD_NEGATIVE,
    TOWARD_POSITIVE,
    TOWARD_ZERO,
    WRAP,
)  # fmt: skip

# 2^52, and 1.5 2^52 over the last place of a significand.
_GRID = tl.constexpr(4503599627370496.0)
_MAGIC = tl.constexpr(6755399441055744.0)
_UPPER_EXPONENT = tl.constexpr(0x7FF00000)


@triton.jit
def rounded_fraction(below, fraction, quantum, odd, negative, threshold, MODE: tl.constexpr):
    """``below`` or one quantum more; ``odd`` is the parity of below's code."""
    if MODE == NEAREST_EVEN:
        up = (fraction > 0.5) | ((fraction == 0.5) & odd)
    elif MODE == NEAREST_AWAY:
        up = fraction >= 0.5
    elif MODE == TOWARD_POSITIVE:
        up = (fraction > 0.0) & (negative == 0)
    elif MODE == TOWARD_NEGATIVE:
        up = (fraction > 0.0) & negative
    elif MODE == TO_ODD:
        up = (fraction > 0.0) & (odd == 0)
    elif MODE == STOCHASTIC:
        up = fraction >= threshold
    else:
        tl.static_assert(MODE == TOWARD_ZERO)
        up = fraction < 0.0
    return tl.where(up, below + quantum, below)


@triton.jit
def beyond_max(a, N, R: tl.constexpr):
    """What a nearest result beyond max becomes, in a's precision, a number."""
    if R.overflow == INFINITY:
        return tl.cast(float("inf"), a.dtype)
    elif R.overflow == SATURATE:
        return tl.cast(N.max, a.dtype)
    else:
        return tl.cast(float("nan"), a.dtype)


@triton.jit
def overflowed(a, negative, infinite, N, R: tl.constexpr):
    """What becomes of a magnitude beyond max; no direction stops an infinite input at max."""
    beyond, largest = beyond_max(a, N, R), tl.cast(N.max, a.dtype)
    if (R.mode == TOWARD_ZERO) or (R.mode == TO_ODD):
        return tl.where(infinite, beyond, largest)
    elif R.mode == TOWARD_POSITIVE:
        return tl.where(negative & (infinite == 0), largest, beyond)
    elif R.mode == TOWARD_NEGATIVE:
        return tl.where(negative | infinite, beyond, largest)
    else:
        return beyond


@triton.jit
def _split_quanta(a, quantum, inverse):
    """The multiple of a power of two not above a < 2^52 of them, and the fraction above it."""
    magic = quantum * _GRID
    below = (a + magic) - magic
    below = tl.where(below > a, below - quantum, below)
    return below, (a - below) * inverse


@triton.jit
def round_to_float(x, threshold, N, R: tl.constexpr):
    """x in a float format, every mode."""
    negative = bits_of(x) < 0
    a = magnitude_of(x)
    infinite = is_infinite(a)
    least = wide(N.least)

    # The binade of x, never below that of the smallest normal, and its quantum.
    binade = tl.maximum(value_of(bits_of(a) & EXPONENT), least)
    quantum = binade * wide(N.unit)
    if not R.subnormals:
        quantum = tl.where(a < least, binade, quantum)
    inverse = reciprocal(quantum)
    below, fraction = _split_quanta(a, quantum, inverse)
    if R.exponent_parity:
        code = (bits_of(binade) >> 52) - tl.cast(N.code, tl.int64)
        odd = (a >= least) & ((code & 1) != 0)
    else:
        odd = (bits_of(below * inverse + _GRID) & 1) != 0

    r = rounded_fraction(below, fraction, quantum, odd, negative, threshold, R.mode)
    r = tl.where((r > wide(N.max)) | infinite, overflowed(a, negative, infinite, N, R), r)
    # A NaN's exponent is that of infinity, so r is NaN by now.
    return with_sign(r, x)


@triton.jit
def is_above(a, N, R: tl.constexpr):
    """Whether a magnitude goes beyond max to nearest even: past the tie above it."""
    tie = tl.cast(N.max, a.dtype) + tl.cast(N.low, a.dtype)
    if R.tie_stays:
        return a > tie
    else:
        return a >= tie


@triton.jit
def round_to_float_nearest_even(x, N, R: tl.constexpr):
    """nearest_even for m >= 1 in a quarter of the operations, the bits of round_to_float."""
    a = magnitude_of(x)
    least = wide(N.least)
    binade = tl.maximum(value_of(bits_of(x) & EXPONENT), least)
    magic = binade * (wide(N.unit) * _MAGIC)
    if not R.subnormals:
        magic = tl.where(a < least, least * _MAGIC, magic)
    r = (x + magic) - magic
    return with_sign(tl.where(is_above(a, N, R), beyond_max(a, N, R), r), x)


@triton.jit
def wrapped_quanta(n, N, R: tl.constexpr):
    """n modulo 2^word_bits in the range of the format, for an integer n of any size: exact."""
    modulus = wide(N.unit)
    wrapped = n - tl.floor(n * reciprocal(modulus)) * modulus
    if R.signed:
        wrapped = tl.where(wrapped >= modulus * 0.5, wrapped - modulus, wrapped)
    return wrapped


@triton.jit
def round_to_fixed(x, threshold, N, R: tl.constexpr):
    """x in a fixed format, every mode; a zero is +0, an infinity wraps to NaN."""
    negative = x < 0.0
    a = magnitude_of(x)
    quantum = wide(N.least)
    inverse = reciprocal(quantum)
    # Every float64 is a multiple of the quantum there.
    whole = a >= quantum * _GRID
    below, fraction = _split_quanta(tl.where(whole, 0.0, a), quantum, inverse)
    below = tl.where(whole, a, below)
    odd = (bits_of(below * inverse + _GRID) & 1) != 0
    r = rounded_fraction(below, fraction, quantum, odd, negative, threshold, R.mode)
    v = tl.where(negative, -r, r)
    if R.overflow == WRAP:
        v = wrapped_quanta(v * inverse, N, R) * quantum
        v = tl.where(is_infinite(a), float("nan"), v)
    else:
        v = tl.where(v > wide(N.max), wide(N.max), v)
        v = tl.where(v < wide(N.low), wide(N.low), v)
    return v + 0.0


@triton.jit
def round_to(x, threshold, N, R: tl.constexpr):
    """x, exact or made odd, rounded once. threshold: of the draw, ignored unless stochastic."""
    if R.fixed:
        return round_to_fixed(x, threshold, N, R)
    elif (R.mode == NEAREST_EVEN) and (not R.exponent_parity):
        return round_to_float_nearest_even(x, N, R)
    else:
        return round_to_float(x, threshold, N, R)


@triton.jit
def add_rounded(acc, p, threshold, N, R: tl.constexpr):
    """acc + p with one rounding of the exact sum; all three float64."""
    if R.overflow == WRAP:
        # A multiple of the quantum from 2^50 quanta on, as it has at most 48 bits: reduced exactly,
        # so that making the sum odd cannot touch the bits that wrapping keeps.
        quantum = wide(N.least)
        a = magnitude_of(p)
        n = p * reciprocal(quantum)
        large = (a >= quantum * 1125899906842624.0) & (is_infinite(a) == 0)
        p = tl.where(large, wrapped_quanta(n, N, R) * quantum, p)
    return round_to(exact_sum(acc, p, R.mode), threshold, N, R)


# Nearest even, of sums in float32 or float64.


@triton.jit
def fused(s, N):
    """The splitting by 2 multiply-adds, for m = 1..10 in float32, 1..23 in float64; no floor of
    subnormals, no overflow, -0 becomes +0. csrc/cpu/certified_rules.h has the proof. Products are
    by a power of two, exact: fused or not gives the same."""
    if s.dtype == tl.float64:
        scale = wide(N.unit) * _GRID
    else:
        scale = single(N.unit) * 8388608.0
    return tl.fma(s, scale, tl.fma(s, -scale, s))


@triton.jit
def split32(s, N):
    """Veltkamp's splitting: 3 operations; no floor of subnormals, no overflow, -0 becomes +0.

    g and s - g lie on a grid of 2^(23 - m) ulps of s, or coarser: g + (s - g) is s on it, a tie
    even (Dekker 1971; Boldo 2006). For 1 <= m <= 22, |s| < 2^(103 + m), subnormal s too."""
    g = s * (single(N.unit) * 8388608.0 + 1.0)
    return g + (s - g)


@triton.jit
def _on_grid(s, N):
    """s on the grid of its binade, or of 2^e below that; 1 <= m <= 21. 1.5 2^(23 - m) binades put
    the sum where float32's ulp is the format's quantum; taking them away is exact, products too."""
    bits = tl.maximum(bits_of(s) & EXPONENT32, bits_of(single(N.least)))
    binade = value_of(bits)
    magic = single(N.unit) * 12582912.0
    return tl.fma(binade, -magic, tl.fma(binade, magic, s))


@triton.jit
def floored32(s, N):
    """With subnormals and the sign of zero: 5 operations; no overflow; |s| < 2^(102 + m)."""
    return with_sign(_on_grid(s, N), s)


@triton.jit
def ranged32(s, N, R: tl.constexpr):
    """Every s, overflow, infinity and NaN (it compares false and stays) included: 7 operations;
    2^(25 - m) max < 2^128. The grid of an infinity is NaN and not used."""
    above = is_above(tl.abs(s), N, R)
    return with_sign(tl.where(above, beyond_max(s, N, R), _on_grid(s, N)), s)


@triton.jit
def nearest64(s, N):
    """With subnormals and the sign of zero, m = 1..23; no overflow: as `floored32`, s < 2^900."""
    # A product of powers of two: their exponents added. A GPU has fewer lanes for float64.
    magic = upper(wide(N.unit) * _MAGIC) - 0x3FF00000
    binade = tl.maximum(upper(s) & _UPPER_EXPONENT, upper(wide(N.least)))
    shift = from_upper(binade + magic)
    return with_sign((s + shift) - shift, s)


# The other modes. Rounding toward zero to 24 bits and then to fewer is rounding toward zero once,
# and so upward after upward; a sum cut to 24 bits has its first D = 23 - m places below the last
# one, all that nearest_away and a draw of R <= 22 - m bits look at, however long it is. Sums in
# float32 are scaled so that the format's smallest normal value is float32's: the D lowest bits
# always go, in subnormals too, and the sign of zero survives.


@triton.jit
def cut64(s, drawn, N, R: tl.constexpr):
    """toward_zero, nearest_away, stochastic in the upper bits of a float64: something added below
    the last place, then cut off; m <= 20, for nearest_away m <= 19, for R random bits m + R <= 19.

    No overflow; s is to be a multiple of the subnormals' last place, then a smaller s has no bits
    where it is cut. drawn: if stochastic, an int32 tile of 2 draw + 1.
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


@triton.jit
def cut32(s, drawn, N, R: tl.constexpr):
    """A scaled sum, rounded to 24 bits as `summed` does it, in the format; drawn: as `cut64`."""
    # D, from the biased exponent of 2^-m.
    dropped = (bits_of(single(N.unit)) >> 23) - 104
    mask = (1 << dropped) - 1
    bits = bits_of(s)
    if R.mode == STOCHASTIC:
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
    return value_of(bits & ~mask)


@triton.jit
def odd32(below, above, N):
    """to_odd of a sum, given as float32 rounds it down and up: neighbours, or the same.

    The one of smaller magnitude has the smaller bits but for the sign. Whatever is dropped of it,
    or lies between the two, leaves a bit in the D lowest of one of them: neighbours differ there.
    """
    mask = (1 << ((bits_of(single(N.unit)) >> 23) - 104)) - 1
    first, second = bits_of(below), bits_of(above)
    smaller = signed(tl.minimum(unsigned(first), unsigned(second)))
    # The carry out of the dropped bits is the lowest one that is kept.
    lowest = ((first | second) & mask) + mask
    return value_of((smaller | lowest) & ~mask)


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


# Fixed-point sums in the last places of float32: n quanta q are held as (1.5 2^23 + n) q, whose
# last place is q while |n| < 2^22: a multiply-add rounds them, a tie to the even multiple.


@triton.jit
def zero_of(N, R: tl.constexpr):
    """What is held for 0; half of it for nearest_away, so that halves have a place."""
    return single(N.least) * (6291456.0 if R.mode == NEAREST_AWAY else 12582912.0)


@triton.jit
def _integer_sum(a, b, sums, N, R: tl.constexpr):
    if (R.mode == TOWARD_ZERO) or (R.mode == TO_ODD) or (R.mode == NEAREST_AWAY):
        below = multiply_add(a, b, sums, TOWARD_NEGATIVE)
        above = multiply_add(a, b, sums, TOWARD_POSITIVE)
        if R.mode == TO_ODD:
            # Neighbours, or the same.
            return tl.where((bits_of(below) & 1) != 0, below, above)
        positive = above > zero_of(N, R)
        if R.mode == NEAREST_AWAY:
            # Cut to halves, with half a quantum more where positive; then to a quantum, downward.
            below = below + single(N.least) * 0.5
            return value_of(bits_of(tl.where(positive, below, above)) & ~1)
        else:
            return tl.where(positive, below, above)
    else:
        return multiply_add(a, b, sums, R.mode)


@triton.jit
def fixed_sum(a, b, sums, N, R: tl.constexpr):
    """a b + sums, held as above. Saturated: up to 22 bits and a sign, any a and b: beyond 2^22
    quanta the order is kept, NaN stays. Wrapped: up to 21 bits, products below 2^21 quanta."""
    total = _integer_sum(a, b, sums, N, R)
    zero = zero_of(N, R)
    if R.overflow == WRAP:
        span = tl.cast(single(N.unit), tl.int32) << (1 if R.mode == NEAREST_AWAY else 0)
        if R.signed and ((R.mode == TOWARD_ZERO) or (R.mode == NEAREST_AWAY)):
            # Their sign counts: held from the lowest value on.
            half = span >> 1
            return value_of(((bits_of(total) + half) & (span - 1)) + (bits_of(zero) - half))
        else:
            return value_of((bits_of(total) & (span - 1)) | bits_of(zero))
    else:
        total = tl.minimum(total, zero + single(N.max), propagate_nan=tl.PropagateNan.ALL)
        return tl.maximum(total, zero + single(N.low), propagate_nan=tl.PropagateNan.ALL)
