"""Every rounding of the backend: csrc/common/round.h and accumulate.h, then the short forms of the
certified kernels (`certified.certificate` says when they hold).

General forms take float64 tiles: an exact value, or a longer sum rounded to odd, which gives the
bits of the exact one because formats have at most 24 significant bits and a draw at most 24 more
(32 where the value is exact). `round_to_float` takes exact float32 values too, without float64: a
GPU outside a data centre has few such units. Kernels are compiled without contraction
(`_launch.EXACT`): contracted, splitting would be the identity.

m is man_bits of the format, e its emin, N its `Numbers`, R its `Rule`. lift: if stochastic, of
`draws.lift_of_draw`, else ignored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._launch import interpreting
from lpkernels.backends.triton.rounding import rule as _rule
from lpkernels.backends.triton.rounding.bits import (
    EXPONENT32,
    SIGN,
    bits_of,
    double,
    from_upper,
    man_bits_of,
    reciprocal,
    signed,
    single,
    unsigned,
    upper,
    value_of,
    with_sign,
    zero_of,
)
from lpkernels.backends.triton.rounding.odd import odd_sum
from lpkernels.backends.triton.rounding.table import round_to_table

_INTERPRETED = tl.constexpr(interpreting())
# Last places of float64 and float32 in a power of two; 1.5 times as many.
_GRID, _GRID32 = tl.constexpr(2.0**52), tl.constexpr(2.0**23)
_MAGIC, _MAGIC32 = tl.constexpr(1.5 * 2.0**52), tl.constexpr(1.5 * 2.0**23)


@triton.jit
def exact_sum(a, b, MODE: tl.constexpr):
    """`odd_sum`; if MODE is toward_negative a zero is -0 unless both addends are +0."""
    total = odd_sum(a, b)
    if MODE == _rule.TOWARD_NEGATIVE:
        total = tl.where(total == 0.0, value_of((bits_of(a) | bits_of(b)) & SIGN), total)
    return total


@triton.jit
def multiply_add(a, b, c, MODE: tl.constexpr):
    """a b + c rounded once to float32, subnormals kept; to nearest unless MODE is a direction.
    Triton's own multiply-add rounds to nearest, and twice where it is interpreted."""
    if _INTERPRETED:
        rule = _rule.Rule(False, MODE, _rule.INFINITY)
        return single(add_rounded(double(c), double(a) * double(b), 0, _rule.FLOAT32, rule))
    elif MODE == _rule.NEAREST_EVEN:
        return tl.fma(a, b, c)
    else:
        tl.static_assert(_rule.TOWARD_ZERO <= MODE and MODE <= _rule.TOWARD_NEGATIVE)
        AWAY: tl.constexpr = "p" if MODE == _rule.TOWARD_POSITIVE else "m"
        WAY: tl.constexpr = "z" if MODE == _rule.TOWARD_ZERO else AWAY
        CODE: tl.constexpr = "fma.r" + WAY + ".f32 $0, $1, $2, $3;"
        return tl.inline_asm_elementwise(CODE, "=f,f,f,f", [a, b, c], tl.float32, True, 1)


# Every mode.


@triton.jit
def beyond_max(a, N, R: tl.constexpr):
    """The value of a nearest result beyond max, as a number in a's precision."""
    number = N.max if R.overflow == _rule.SATURATE else float("nan")
    return tl.cast(float("inf") if R.overflow == _rule.INFINITY else number, a.dtype)


@triton.jit
def overflowed(a, negative, N, R: tl.constexpr):
    """The value of a magnitude beyond max; no direction stops an infinite input at max."""
    beyond, largest = beyond_max(a, N, R), tl.cast(N.max, a.dtype)
    infinite = a == float("inf")
    if R.always_overflows:
        return beyond
    elif (R.mode == _rule.TOWARD_ZERO) or (R.mode == _rule.TO_ODD):
        return tl.where(infinite, beyond, largest)
    elif R.mode == _rule.TOWARD_POSITIVE:
        return tl.where(negative & (infinite == 0), largest, beyond)
    elif R.mode == _rule.TOWARD_NEGATIVE:
        return tl.where(negative | infinite, beyond, largest)
    else:
        return beyond


@triton.jit
def cut(bits, added, dropped, parity, R: tl.constexpr):
    """The bits of a float, or their upper half, rounded where the ``dropped`` lowest are cut off.

    From the smallest normal value on the kept bits of a magnitude are its code plus a constant.
    Codes of neighbours are one apart, so a carry gives the next value, over the end of a binade
    too. An infinity stays one. added: the part of a draw's lift that falls into the dropped places.
    parity: whether even codes are odd in the lowest kept bit."""
    one = tl.full([], 1, bits.dtype) << dropped
    mask = one - 1
    sign = bits >> (bits.dtype.primitive_bitwidth - 1)
    if R.mode == _rule.NEAREST_EVEN:
        moved = bits + (mask >> 1) + (((bits >> dropped) ^ parity) & mask & 1)
    elif R.mode == _rule.NEAREST_AWAY:
        moved = bits + (one >> 1)
    elif R.mode == _rule.TOWARD_POSITIVE:
        moved = bits + (mask & ~sign)
    elif R.mode == _rule.TOWARD_NEGATIVE:
        moved = bits + (mask & sign)
    elif R.mode == _rule.TO_ODD:
        # The lowest kept bit, if a dropped one is set and the code is even.
        moved = bits + (((bits & mask) + mask) & one & ~(bits ^ (parity << dropped)))
    elif R.mode == _rule.STOCHASTIC:
        moved = bits + added
    else:
        tl.static_assert(R.mode == _rule.TOWARD_ZERO)
        moved = bits
    return moved & ~mask


@triton.jit
def _lifted(rest, magic, lift):
    """Whether rest, a part of a quantum, and the lift of a draw make a whole one. 2^33 rest /
    quantum is rest 2^85 / magic; in float32 rest 2^56 / magic, whose factor may be none: two."""
    if rest.dtype == tl.float64:
        part = rest * (reciprocal(magic) * 2.0**85)
    else:
        n = 183 - (bits_of(magic) >> 23)
        part = rest * value_of(((n >> 1) + 127) << 23) * value_of((n - (n >> 1) + 127) << 23)
    return tl.cast(part, tl.int64) + lift >= 1 << 33


@triton.jit
def _rounded_multiple(a, quantum, negative, lift, R: tl.constexpr):
    """A magnitude below 2^52 or, in float32, 2^23 quanta as a multiple n of them; n is the code."""
    magic = quantum * (_GRID if a.dtype == tl.float64 else _GRID32)
    near = (a + magic) - magic
    if R.mode == _rule.NEAREST_EVEN:
        return near
    else:
        below = tl.where(near > a, near - quantum, near)
        rest = a - below
        if R.mode == _rule.NEAREST_AWAY:
            up = rest + rest >= quantum
        elif R.mode == _rule.TOWARD_POSITIVE:
            up = (rest > 0.0) & (negative == 0)
        elif R.mode == _rule.TOWARD_NEGATIVE:
            up = (rest > 0.0) & negative
        elif R.mode == _rule.TO_ODD:
            up = (rest > 0.0) & ((bits_of(below + magic) & 1) == 0)
        elif R.mode == _rule.STOCHASTIC:
            up = _lifted(rest, magic, lift)
        else:
            tl.static_assert(R.mode == _rule.TOWARD_ZERO)
            up = rest < 0.0
        return tl.where(up, below + quantum, below)


@triton.jit
def own_zero(r, R: tl.constexpr):
    """r, rounded with its sign, in a format with one zero: zero is +0, and without a sign what is
    still negative becomes 0 or NaN. In other formats r itself."""
    if R.one_zero:
        if not R.signed:
            other = tl.cast(0.0 if R.overflow == _rule.SATURATE else float("nan"), r.dtype)
            r = tl.where(r < 0.0, other, r)
        r = r + 0.0
    return r


@triton.jit
def round_to_float(x, lift, N, R: tl.constexpr, EVEN: tl.constexpr = False):
    """x in a float format, every mode; a float32 x if `float32_fits` the format, EVEN if its values
    are `evenly_spaced`. Below 2^e, in float32 below 2^-126 too, they have one quantum."""
    WIDE: tl.constexpr = x.dtype == tl.float64
    bits, a, m = bits_of(x), tl.abs(x), man_bits_of(N)
    negative = bits < 0
    added, parity = 0, 0
    if R.mode == _rule.STOCHASTIC:
        # The places cut off could only matter if the fraction had more places.
        added = tl.cast((lift << 19) >> (m + (0 if WIDE else 29)), bits.dtype)
    if R.exponent_parity:
        parity = tl.cast(N.code, bits.dtype) & 1
    r = tl.abs(value_of(cut(bits, added, (52 if WIDE else 23) - m, parity, R)))
    if not EVEN:
        least = tl.cast(N.least, x.dtype)
        quantum = least * tl.cast(N.unit, x.dtype) if R.subnormals else least
        floor = least if WIDE else tl.maximum(least, 2.0**-126)
        r = tl.where(a < floor, _rounded_multiple(a, quantum, negative, lift, R), r)
    r = tl.where(r > tl.cast(N.max, x.dtype), overflowed(a, negative, N, R), r)
    return own_zero(tl.where(x == x, with_sign(r, x), x), R)


@triton.jit
def wrapped_quanta(n, N, R: tl.constexpr):
    """n modulo 2^word_bits in the range of the format, for an integer n of any size: exact."""
    modulus = double(N.unit)
    wrapped = n - tl.floor(n * reciprocal(modulus)) * modulus
    if R.signed:
        wrapped = tl.where(wrapped >= modulus * 0.5, wrapped - modulus, wrapped)
    return wrapped


@triton.jit
def round_to_fixed(x, lift, N, R: tl.constexpr):
    """x in a fixed format, every mode; a zero is +0, an infinity wraps to NaN."""
    a = tl.abs(x)
    quantum = double(N.least)
    # Every other float64 is a multiple of the quantum.
    fine = a < quantum * _GRID
    r = _rounded_multiple(tl.where(fine, a, 0.0), quantum, x < 0.0, lift, R)
    v = with_sign(tl.where(fine, r, a), x)
    if R.overflow == _rule.WRAP:
        v = wrapped_quanta(v * reciprocal(quantum), N, R) * quantum
        v = tl.where(a == float("inf"), float("nan"), v)
    else:
        v = tl.where(v > double(N.max), double(N.max), v)
        v = tl.where(v < double(N.low), double(N.low), v)
    return v + 0.0


@triton.jit
def round_to(x, lift, N, R: tl.constexpr):
    """x, exact or made odd, float64, rounded once."""
    if R.table:
        return round_to_table(x, lift, N, R)
    elif R.fixed:
        return round_to_fixed(x, lift, N, R)
    elif (R.mode == _rule.NEAREST_EVEN) and (not R.exponent_parity):
        return ranged(x, N, R)
    else:
        return round_to_float(x, lift, N, R)


@triton.jit
def reduced(p, other, N):
    """p modulo the range of a wrapping format, from 2^50 quanta on, where p is a whole number of
    quanta, as it has at most 48 bits; for p + other. Making the sum odd then cannot touch the bits
    that wrapping keeps. The result has p's sign. If other is no whole number of quanta the result
    is larger than other, so that the sum keeps its sign; at most 50 bits, or the range and 27
    places below it, hold the sum."""
    size, other_size = tl.abs(p), tl.abs(other)
    quantum = double(N.least)
    whole = quantum * 2.0**50
    span = double(N.unit) * quantum
    inverse = reciprocal(span)
    beside = tl.where(other_size < whole, other_size, 0.0)
    rest = size - tl.floor(size * inverse) * span
    result = rest + (tl.floor(beside * inverse) + 1.0) * span
    return tl.where((size >= whole) & (size < float("inf")), with_sign(result, p), p)


@triton.jit
def add_rounded(acc, p, lift, N, R: tl.constexpr):
    """acc + p, both float64, with one rounding of the exact sum."""
    if R.overflow == _rule.WRAP:
        p = reduced(p, acc, N)
    return round_to(exact_sum(acc, p, R.mode), lift, N, R)


# Nearest even, of sums in float32 or float64.


@triton.jit
def fused(s, N):
    """The splitting by 2 multiply-adds, m = 1..10 in float32, 1..23 in float64; no floor of
    subnormals, no overflow, -0 becomes +0; fused or not (products by a power of two are exact)
    gives the same. csrc/cpu/sums/certified/certified_rules.h has the proof."""
    scale = tl.cast(N.unit, s.dtype) * (_GRID if s.dtype == tl.float64 else _GRID32)
    return tl.fma(s, scale, tl.fma(s, -scale, s))


@triton.jit
def split32(s, N):
    """Veltkamp's splitting: 3 operations; no floor of subnormals, no overflow, -0 becomes +0.

    g and s - g lie on a grid of 2^(23 - m) ulps of s, or coarser: g + (s - g) is s on it, a tie
    even (Dekker 1971; Boldo 2006). For 1 <= m <= 22, |s| < 2^(103 + m), subnormal s too."""
    g = s * (single(N.unit) * _GRID32 + 1.0)
    return g + (s - g)


@triton.jit
def _on_grid(s, N, R: tl.constexpr):
    """s on the grid of its binade, or of 2^e below that; m = 1..21, in float64 1..23. Where 1.5
    2^(23 - m) or 2^(52 - m) binades are added the last place is the quantum; the rest is exact."""
    if s.dtype == tl.float64:
        # A product of powers of two: their exponents added. A GPU has fewer lanes for float64.
        least = double(N.least)
        binade = tl.maximum(upper(s) & 0x7FF00000, upper(least))
        magic = binade + (upper(double(N.unit) * _MAGIC) - 0x3FF00000)
        if not R.subnormals:
            magic = tl.where(tl.abs(s) < least, upper(least * _MAGIC), magic)
        shift = from_upper(magic)
        return (s + shift) - shift
    else:
        tl.static_assert(R.subnormals)
        binade = value_of(tl.maximum(bits_of(s) & EXPONENT32, bits_of(single(N.least))))
        magic = single(N.unit) * _MAGIC32
        return tl.fma(binade, -magic, tl.fma(binade, magic, s))


@triton.jit
def floored(s, N, R: tl.constexpr):
    """With subnormals and the sign of zero: 5 operations; no overflow; |s| < 2^(102 + m), 2^900."""
    return with_sign(_on_grid(s, N, R), s)


@triton.jit
def ranged(s, N, R: tl.constexpr):
    """Every s, overflow, infinity and NaN (it compares false and stays) included: 7 operations; in
    float32 2^(25 - m) max < 2^128. The grid of an infinity is not used."""
    # To nearest even a magnitude goes beyond max from the tie above it on.
    a, tie = tl.abs(s), tl.cast(N.max, s.dtype) + tl.cast(N.low, s.dtype)
    above = a > tie if R.tie_stays else a >= tie
    return own_zero(with_sign(tl.where(above, beyond_max(s, N, R), _on_grid(s, N, R)), s), R)


# The other modes. Rounding toward zero to 24 bits and then to fewer is rounding toward zero once,
# and so upward after upward; a sum cut to 24 bits has its first D = 23 - m places below the last
# one, all that nearest_away and a draw of R <= 22 - m bits look at, however long it is. Sums in
# float32 are scaled so that the format's smallest normal value is float32's: the D lowest bits
# always go, in subnormals too, and the sign of zero survives.


@triton.jit
def cut_sum(s, drawn, N, R: tl.constexpr):
    """A scaled sum, rounded to 24 bits as `summed` does it, in the format, without overflow; or one
    in float64, by its upper bits: m <= 20, for nearest_away m <= 19, for R random bits m + R <= 19,
    and s a multiple of the subnormals' last place: a smaller s has no bits where it is cut.
    drawn: if stochastic, an int32 tile of 2 draw + 1."""
    PLACES: tl.constexpr = 20 if s.dtype == tl.float64 else 23
    bits = upper(s) if s.dtype == tl.float64 else bits_of(s)
    added = 0
    if R.mode == _rule.STOCHASTIC:
        # A power of two that the compiler does not know as one: a multiply-add, no shift.
        added = drawn * tl.cast(single(N.unit) * (1 << (PLACES - 1 - R.random_bits)), tl.int32)
    bits = cut(bits, added, PLACES - man_bits_of(N), 0, R)
    return from_upper(bits) if s.dtype == tl.float64 else value_of(bits)


@triton.jit
def odd32(below, above, N):
    """to_odd of a sum, given as float32 rounds it down and up: neighbours, or the same. The one of
    smaller magnitude has the smaller bits but for the sign. Whatever is dropped of it, or lies
    between the two, leaves a bit in the D lowest of one of them: neighbours differ there."""
    mask = (1 << (23 - man_bits_of(N))) - 1
    first, second = bits_of(below), bits_of(above)
    smaller = signed(tl.minimum(unsigned(first), unsigned(second)))
    # The carry out of the dropped bits is the lowest one that is kept.
    lowest = ((first | second) & mask) + mask
    return value_of((smaller | lowest) & ~mask)


@triton.jit
def summed(a, b, sums, drawn, N, R: tl.constexpr):
    """a b + sums in the format, all of it scaled: a multiply-add and 1 to 5 operations."""
    if R.mode == _rule.TO_ODD:
        below = multiply_add(a, b, sums, _rule.TOWARD_NEGATIVE)
        return odd32(below, multiply_add(a, b, sums, _rule.TOWARD_POSITIVE), N)
    elif (R.mode == _rule.TOWARD_POSITIVE) or (R.mode == _rule.TOWARD_NEGATIVE):
        return cut_sum(multiply_add(a, b, sums, R.mode), drawn, N, R)
    else:
        return cut_sum(multiply_add(a, b, sums, _rule.TOWARD_ZERO), drawn, N, R)


# Fixed-point sums in the last places of float32: n quanta q are held as (1.5 2^23 + n) q, whose
# last place is q while |n| < 2^22: a multiply-add rounds them, a tie to the even multiple.


@triton.jit
def _integer_sum(a, b, sums, N, R: tl.constexpr):
    if (R.mode == _rule.TOWARD_ZERO) or (R.mode == _rule.TO_ODD) or (R.mode == _rule.NEAREST_AWAY):
        below = multiply_add(a, b, sums, _rule.TOWARD_NEGATIVE)
        above = multiply_add(a, b, sums, _rule.TOWARD_POSITIVE)
        if R.mode == _rule.TO_ODD:
            # Neighbours, or the same.
            return tl.where((bits_of(below) & 1) != 0, below, above)
        positive = above > zero_of(N, R)
        if R.mode == _rule.NEAREST_AWAY:
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
    if R.overflow == _rule.WRAP:
        span = tl.cast(single(N.unit), tl.int32) << (1 if R.mode == _rule.NEAREST_AWAY else 0)
        if R.signed and ((R.mode == _rule.TOWARD_ZERO) or (R.mode == _rule.NEAREST_AWAY)):
            # Their sign counts: held from the lowest value on.
            half = span >> 1
            return value_of(((bits_of(total) + half) & (span - 1)) + (bits_of(zero) - half))
        else:
            return value_of((bits_of(total) & (span - 1)) | bits_of(zero))
    else:
        total = tl.minimum(total, zero + single(N.max), propagate_nan=tl.PropagateNan.ALL)
        return tl.maximum(total, zero + single(N.low), propagate_nan=tl.PropagateNan.ALL)
