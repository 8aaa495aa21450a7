"""round_to and add_rounded for Triton: csrc/common/round.h and accumulate.h, line by line.

Values travel as float64 tiles: an exact value, or a longer sum rounded to odd, which gives the bits
of the exact one because formats have at most 24 significant bits and a draw at most 24 more (32
where the value itself is exact). Nothing here is a fused multiply-add and kernels are compiled
without contraction (`_launch`), so the interpreter, which fuses nothing, computes the same bits.

A format comes in two parts. Its `Rule` is compiled in: it decides which instructions there are. Its
`Numbers` are kernel arguments, so formats with the same rule share one compiled kernel. All of them
are values that float32 holds, because that is how Triton passes a number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import triton
import triton.language as tl

from lpkernels.formats import FixedFormat, FloatFormat, format_from_ints

# The positions in lpkernels.rounding.ROUNDINGS.
NEAREST_EVEN = tl.constexpr(0)
NEAREST_AWAY = tl.constexpr(1)
TOWARD_ZERO = tl.constexpr(2)
TOWARD_POSITIVE = tl.constexpr(3)
TOWARD_NEGATIVE = tl.constexpr(4)
TO_ODD = tl.constexpr(5)
STOCHASTIC = tl.constexpr(6)

# The positions in lpkernels.formats.OVERFLOWS, and the wrap of fixed point.
INFINITY = tl.constexpr(0)
SATURATE = tl.constexpr(1)
WRAP = tl.constexpr(3)

_SIGN = tl.constexpr(-(2**63))
_MAGNITUDE = tl.constexpr(2**63 - 1)
_EXPONENT = tl.constexpr(0x7FF0000000000000)
_NAN = tl.constexpr(0x7FF8000000000000)
# Sum of the biased exponents of a power of two and of its reciprocal, in place.
_RECIPROCAL = tl.constexpr(2046 << 52)


class Rule(NamedTuple):
    """What decides the instructions of one rounding; hashable, a constexpr of a kernel."""

    fixed: bool
    mode: int
    overflow: int
    subnormals: bool = True
    #: man_bits is 0: the code's parity is that of the exponent.
    exponent_parity: bool = False
    #: The tie beyond max rounds to max.
    tie_stays: bool = False
    #: Of a fixed format.
    signed: bool = True
    #: Of a stochastic mode.
    random_bits: int = 0
    philox: bool = False


class Numbers(NamedTuple):
    """The constants of one format, arguments of a kernel.

    Of a float format the smallest normal, 2^-man_bits, the largest value and half of its quantum,
    and the exponent code of the smallest normal less 1 when float64 holds it; of a fixed one its
    quantum, 2^word_bits, the largest and the lowest value, and 0.
    """

    least: float
    unit: float
    max: float
    low: float
    code: float


def rule_of(
    fmt: tuple[int, ...], mode: int, random_bits: int = 0, rng: int = 0
) -> tuple[Rule, Numbers]:
    """The two parts of a FloatFormat's or FixedFormat's integers, with a rounding mode's code."""
    parsed = format_from_ints(fmt)
    bits = random_bits if mode == STOCHASTIC.value else 0
    philox = bool(rng) and bits > 0
    if isinstance(parsed, FixedFormat):
        overflow = WRAP.value if parsed.overflow == "wrap" else SATURATE.value
        quantum = math.ldexp(1.0, -parsed.frac_bits)
        signed = int(parsed.signed)
        top = float(2 ** (parsed.word_bits - signed) - 1) * quantum
        lowest = -signed * 2.0 ** (parsed.word_bits - 1) * quantum
        numbers = Numbers(quantum, 2.0**parsed.word_bits, top, lowest, 0.0)
        rule = Rule(True, mode, overflow, signed=parsed.signed, random_bits=bits, philox=philox)
        return rule, numbers
    if not isinstance(parsed, FloatFormat):
        raise TypeError(f"rule_of: expected a FloatFormat or a FixedFormat, got {parsed}")
    emin = 1 - parsed.bias
    top_exponent = math.frexp(parsed.max)[1] - 1
    half_top = math.ldexp(1.0, top_exponent - parsed.man_bits - 1)
    if parsed.man_bits == 0:
        max_code_odd = (top_exponent + parsed.bias) % 2 == 1
    else:
        max_code_odd = (parsed.max / (2 * half_top)) % 2 == 1
    rule = Rule(
        fixed=False,
        mode=mode,
        overflow=fmt[6],
        subnormals=parsed.subnormals,
        exponent_parity=parsed.man_bits == 0,
        tie_stays=not max_code_odd,
        random_bits=bits,
        philox=philox,
    )
    unit = math.ldexp(1.0, -parsed.man_bits)
    return rule, Numbers(math.ldexp(1.0, emin), unit, parsed.max, half_top, float(emin - 1 + 1023))


@triton.jit
def wide(x):
    """A number or a tile as float64, exactly."""
    return tl.cast(x, tl.float64)


@triton.jit
def bits_of(x):
    return tl.cast(x, tl.int64, bitcast=True)


@triton.jit
def value_of(bits):
    return tl.cast(bits, tl.float64, bitcast=True)


@triton.jit
def magnitude_of(x):
    return value_of(bits_of(x) & _MAGNITUDE)


@triton.jit
def reciprocal(x):
    """1 / x for a power of two, by its exponent."""
    return value_of(-bits_of(x) + _RECIPROCAL)


@triton.jit
def is_infinite(a):
    return bits_of(a) == _EXPONENT


@triton.jit
def nan_like(x):
    """A tile of NaN of x's shape."""
    return value_of(bits_of(x) * 0 + _NAN)


@triton.jit
def moderated(x):
    """x with its magnitude moved into 2^-400 .. 2^300, beyond which every value rounds alike."""
    a = magnitude_of(x)
    sign = bits_of(x) & _SIGN
    held = tl.where((a > 2.0**300) & (bits_of(a) < _EXPONENT), wide(2.0**300), a)
    held = tl.where((a < 2.0**-400) & (a > 0.0), wide(2.0**-400), held)
    return value_of(bits_of(held) | sign)


@triton.jit
def stochastic_threshold(draw, R: tl.constexpr):
    """f >= this is  floor(f 2^(R+1)) + 2 draw + 1 >= 2^(R+1); exact for R <= 32."""
    wide_draw = wide(draw)
    return 1.0 - (wide_draw + wide_draw + 1.0) * (0.5 / (1 << R))


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
def beyond_max(x, N, R: tl.constexpr):
    """A tile like x of what a nearest result beyond max becomes."""
    if R.overflow == INFINITY:
        return value_of(bits_of(x) * 0 + _EXPONENT)
    elif R.overflow == SATURATE:
        return value_of(bits_of(x) * 0) + wide(N.max)
    else:
        return nan_like(x)


@triton.jit
def overflowed(a, negative, infinite, N, R: tl.constexpr):
    """What becomes of a magnitude beyond max; no direction stops an infinite input at max."""
    beyond = beyond_max(a, N, R)
    if (R.mode == TOWARD_ZERO) or (R.mode == TO_ODD):
        return tl.where(infinite, beyond, wide(N.max))
    elif R.mode == TOWARD_POSITIVE:
        return tl.where(negative & (infinite == 0), wide(N.max), beyond)
    elif R.mode == TOWARD_NEGATIVE:
        return tl.where(negative | infinite, beyond, wide(N.max))
    else:
        return beyond


@triton.jit
def round_to_float(x, threshold, N, R: tl.constexpr):
    """x in a float format, every mode."""
    sign = bits_of(x) & _SIGN
    negative = sign != 0
    a = magnitude_of(x)
    infinite = is_infinite(a)
    least = wide(N.least)

    # The binade of x, never below that of the smallest normal, and its quantum.
    binade = tl.maximum(value_of(bits_of(a) & _EXPONENT), least)
    quantum = binade * wide(N.unit)
    if not R.subnormals:
        quantum = tl.where(a < least, binade, quantum)
    inverse = reciprocal(quantum)

    magic = quantum * 4503599627370496.0
    below = (a + magic) - magic
    below = tl.where(below > a, below - quantum, below)
    fraction = (a - below) * inverse

    if R.exponent_parity:
        code = (bits_of(binade) >> 52) - tl.cast(N.code, tl.int64)
        odd = (a >= least) & ((code & 1) != 0)
    else:
        odd = (bits_of(below * inverse + 4503599627370496.0) & 1) != 0

    r = rounded_fraction(below, fraction, quantum, odd, negative, threshold, R.mode)
    r = tl.where((r > wide(N.max)) | infinite, overflowed(a, negative, infinite, N, R), r)
    # A NaN's exponent is that of infinity, so r is NaN by now.
    return value_of(bits_of(r) | sign)


@triton.jit
def round_to_float_nearest_even(x, N, R: tl.constexpr):
    """nearest_even for man_bits >= 1 in a quarter of the operations, the bits of round_to_float."""
    sign = bits_of(x) & _SIGN
    a = magnitude_of(x)
    least = wide(N.least)
    binade = tl.maximum(value_of(bits_of(x) & _EXPONENT), least)
    magic = binade * (wide(N.unit) * 6755399441055744.0)
    if not R.subnormals:
        magic = tl.where(a < least, least * 6755399441055744.0, magic)
    r = (x + magic) - magic
    tie = wide(N.max) + wide(N.low)
    if R.tie_stays:
        above = a > tie
    else:
        above = a >= tie
    r = tl.where(above, beyond_max(a, N, R), r)
    return value_of(bits_of(r) | sign)


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
    magic = quantum * 4503599627370496.0

    # From 2^52 quanta on every float64 is a multiple of the quantum.
    below = (a + magic) - magic
    below = tl.where(below > a, below - quantum, below)
    below = tl.where(a >= magic, a, below)
    fraction = (a - below) * inverse
    odd = (bits_of(below * inverse + 4503599627370496.0) & 1) != 0
    r = rounded_fraction(below, fraction, quantum, odd, negative, threshold, R.mode)
    v = tl.where(negative, -r, r)
    if R.overflow == WRAP:
        v = wrapped_quanta(v * inverse, N, R) * quantum
        v = tl.where(is_infinite(a), nan_like(v), v)
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
def odd_sum(a, b):
    """a + b rounded to odd: the nearest float64 if exact or odd, else the one past the error."""
    s = a + b
    b_part = s - a
    error = (a - (s - b_part)) + (b - b_part)
    # Ordered comparisons: an infinite sum has a NaN for error and stays as it is.
    bits = bits_of(s)
    inexact = (error > 0.0) | (error < 0.0)
    outward = (error > 0.0) == (s > 0.0)
    step = tl.where(outward, 1, -1)
    return value_of(tl.where(inexact & ((bits & 1) == 0), bits + step, bits))


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
    total = odd_sum(acc, p)
    if R.mode == TOWARD_NEGATIVE:
        # An exact zero sum is -0 unless both addends are +0.
        zero = value_of((bits_of(acc) | bits_of(p)) & _SIGN)
        total = tl.where(total == 0.0, zero, total)
    return round_to(total, threshold, N, R)


@triton.jit
def narrow(x):
    """The float32 that holds x, a value of a format; every NaN is 0x7fc00000."""
    bits = tl.cast(tl.cast(x, tl.float32), tl.int32, bitcast=True)
    return tl.cast(tl.where(x == x, bits, 0x7FC00000), tl.float32, bitcast=True)
