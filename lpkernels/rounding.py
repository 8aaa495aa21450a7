"""Rounding one value to a format: an exact oracle and its vectorised twin.

``round_scalar`` computes in exact rationals and reads like the contract; ``round_array`` computes
the same bits in float64. Every other implementation of rounding is compared with these two.

A value x lies between two neighbours of the format, ``low <= |x| < high``; the mode says which one
it becomes, as if the exponent had no upper bound, and the format's overflow rule comes after.

- nearest_even, nearest_away: the nearer neighbour; a tie goes to the even code, or away from zero.
- toward_zero, toward_positive, toward_negative: the neighbour in that direction.
- to_odd: an inexact value becomes the neighbour with the odd code.
- stochastic with R random bits and a draw uniform in 0 .. 2^R - 1: with f the exact fraction of |x|
  between its neighbours, x moves away from zero when

      floor(f * 2^(R+1)) + 2 * draw + 1 >= 2^(R+1).

  Only the first R+1 bits of f matter, so a value truncated there, or rounded to odd in float64,
  gives the same bits; a value of the format never moves.

Even and odd are said of the code: of its mantissa, or, for man_bits = 0, of its biased exponent.
Without subnormals the neighbours of a value below min_normal are 0 (even) and min_normal.

docs/contract.md has the rules of overflow, infinities, NaN, zeros, formats without a sign and
tables.
"""

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from lpkernels.formats import FixedFormat, FloatFormat, Number, TableFormat
from lpkernels.formats.checks import ROUNDINGS as ROUNDINGS
from lpkernels.formats.checks import check_rounding as check_rounding
from lpkernels.formats.checks import checked_int

# The number of "stochastic" among a quantizer's integers.
STOCHASTIC = ROUNDINGS.index("stochastic")

MAX_RANDOM_BITS = 32

# A float64 in units of the format's step is clipped to these binary exponents: below, no mode can
# tell the value from a smaller one (the last fraction bit that matters is 2^-33); above, it is a
# multiple of 2^24 beyond every format, so it overflows, or wraps to 0, all the same.
_LEAST_EXPONENT = -400
_MOST_EXPONENT = 300


def round_scalar(
    value: Fraction | float,
    fmt: Number,
    rounding: str,
    *,
    draw: int = 0,
    random_bits: int = MAX_RANDOM_BITS,
    always_overflows: bool = False,
) -> float:
    """``value`` rounded once to ``fmt``, exactly: the definition of every rounding here.

    Args:
        value:       an exact rational, or a float: infinite, NaN and -0.0 included. A Fraction 0
                     counts as +0.
        draw:        0 .. 2^random_bits - 1; used by "stochastic" alone.
        random_bits: 1..32.
        always_overflows: beyond max every mode gives what ``overflow`` says, directed ones too.

    Returns:  a value of the format, an infinity or NaN.
    Raises:   TypeError, ValueError: a format whose values depend on the tensor, an unknown
        rounding, random_bits or draw out of range.
    """
    _check_arguments("round_scalar", fmt, rounding, random_bits)
    checked_int("round_scalar", "draw", draw, 0, 2**random_bits - 1)
    if math.isnan(value):
        return math.nan
    negative = math.copysign(1.0, value) < 0
    if math.isinf(value):
        return _infinite_input(fmt, negative)
    if isinstance(fmt, TableFormat):
        near, far, place, near_is_odd = _place_in_table(value, fmt, rounding == "stochastic")
        moves = _moves_away(place, near_is_odd, negative, rounding, 2 * draw + 1, random_bits)
        return far if moves else near
    magnitude = abs(Fraction(value))
    step, low, odd = _place(magnitude, fmt)
    fraction = (magnitude - low) / step
    if _moves_away(fraction, odd, negative, rounding, 2 * draw + 1, random_bits):
        low += step
    if isinstance(fmt, FixedFormat):
        return _into_word(-low if negative else low, fmt)
    if not fmt.signed and negative and low > 0:
        return _overflowed(fmt, negative=True)
    if low > Fraction(fmt.max):
        if always_overflows or not _stops_at_max(rounding, negative):
            return _overflowed(fmt, negative)
        low = Fraction(fmt.max)
    if low == 0 and fmt.one_zero:
        return 0.0
    return math.copysign(float(low), -1.0 if negative else 1.0)


def _place(magnitude: Fraction, fmt: FloatFormat | FixedFormat) -> tuple[Fraction, Fraction, bool]:
    """Distance of the two neighbours, the lower one, and whether the lower one's code is odd."""
    if isinstance(fmt, FixedFormat):
        step = Fraction(fmt.quantum)
        count = magnitude // step
        return step, count * step, count % 2 == 1
    min_normal = Fraction(fmt.min_normal)
    if magnitude < min_normal and not fmt.subnormals:
        return min_normal, Fraction(0), False
    exponent = floor_log2(magnitude) if magnitude >= min_normal else fmt.emin
    step = Fraction(2) ** (exponent - fmt.man_bits)
    count = magnitude // step
    # Codes count up through the binades: each one holds 2^man_bits of them.
    code = count + (exponent - fmt.emin) * 2**fmt.man_bits
    return step, count * step, code % 2 == 1


def floor_log2(magnitude: Fraction) -> int:
    """The exponent of a positive rational: 2^e <= magnitude < 2^(e+1)."""
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return exponent if magnitude >= Fraction(2) ** exponent else exponent - 1


def _moves_away(
    fraction: Any, odd: Any, negative: Any, rounding: str, offset: Any, random_bits: int
) -> Any:
    """Whether values become the neighbour farther from zero: of one value or of arrays.

    fraction: where a value lies between its neighbours, from 0 (on the nearer one) to 1; a Fraction
        or float64. odd: whether the nearer one counts as odd. offset: 2 draw + 1.
    """
    if rounding == "nearest_even":
        return (fraction > 0.5) | ((fraction == 0.5) & odd)
    if rounding == "nearest_away":
        return fraction >= 0.5
    if rounding == "toward_zero":
        return fraction > 1
    if rounding == "toward_positive":
        return (fraction > 0) & (negative ^ True)
    if rounding == "toward_negative":
        return (fraction > 0) & negative
    if rounding == "to_odd":
        return (fraction > 0) & (odd ^ True)
    one = 2 ** (random_bits + 1)
    return fraction * one // 1 + offset >= one


def _stops_at_max(rounding: str, negative: bool) -> bool:
    """Whether a finite value beyond max becomes max, whatever the format's overflow."""
    away = "toward_negative" if negative else "toward_positive"
    return rounding in ("toward_zero", "toward_positive", "toward_negative", "to_odd") and (
        rounding != away
    )


def _overflowed(fmt: FloatFormat, negative: bool) -> float:
    if negative and not fmt.signed:
        return 0.0 if fmt.overflow == "saturate" else math.nan
    magnitude = {"infinity": math.inf, "saturate": fmt.max, "nan": math.nan}[fmt.overflow]
    return -magnitude if negative and fmt.overflow != "nan" else magnitude


def _infinite_input(fmt: Number, negative: bool) -> float:
    if isinstance(fmt, FloatFormat):
        return _overflowed(fmt, negative)
    if (fmt.infinity == "nan") if isinstance(fmt, TableFormat) else (fmt.overflow == "wrap"):
        return math.nan
    return fmt.min if negative else fmt.max


def _into_word(value: Fraction, fmt: FixedFormat) -> float:
    """A multiple of the quantum saturated, or wrapped modulo 2^word_bits; zero is +0."""
    code = int(value / Fraction(fmt.quantum))
    if fmt.overflow == "wrap":
        code = (code - fmt.min_code) % 2**fmt.word_bits + fmt.min_code
    return min(max(code, fmt.min_code), fmt.max_code) * fmt.quantum


def round_array(
    x: np.ndarray,
    fmt: Number,
    rounding: str,
    *,
    draws: np.ndarray | None = None,
    random_bits: int = MAX_RANDOM_BITS,
    always_overflows: bool = False,
) -> np.ndarray:
    """Every element of ``x`` rounded once to ``fmt``: the bits of :func:`round_scalar`.

    Args:
        x:           float64, any shape; exact values, or exact values rounded to odd in float64.
        draws:       integers 0 .. 2^random_bits - 1, broadcastable to x; needed by "stochastic".
        random_bits: 1..32.
        always_overflows: as in :func:`round_scalar`.

    Returns:  float64, x's shape.
    Raises:   TypeError: x is not float64, or draws are missing or no integers.  ValueError: unknown
        rounding, random_bits or a draw out of range.
    """
    x, offset = _array_arguments("round_array", x, fmt, rounding, draws, random_bits)
    finite, negative = np.isfinite(x), np.signbit(x)
    if isinstance(fmt, TableFormat):
        near, far, place, odd = _places(x, fmt, rounding == "stochastic")
        away = _moves_away(place, odd, negative, rounding, offset, random_bits)
        rounded = np.where(away, far, near)
    elif isinstance(fmt, FixedFormat):
        count, *_ = _array_rounded(x, fmt, rounding, offset, random_bits)
        rounded = _array_into_word(np.where(negative, -count, count), fmt)
    else:
        count, step, exponent = _array_rounded(x, fmt, rounding, offset, random_bits)
        # This is overflow under a mode that stops nowhere.
        mode = "nearest_even" if always_overflows else rounding
        rounded = _array_overflow(count, step, exponent, negative, fmt, mode)
    infinite = np.where(
        negative, _infinite_input(fmt, negative=True), _infinite_input(fmt, negative=False)
    )
    return np.where(finite, rounded, np.where(np.isnan(x), np.nan, infinite))


def overflows_array(
    x: np.ndarray,
    fmt: Number,
    rounding: str,
    *,
    draws: np.ndarray | None = None,
    random_bits: int = MAX_RANDOM_BITS,
) -> np.ndarray:
    """Whether each finite element of ``x`` lies beyond ``fmt``, once rounded as if it had no end.

    An element counts whatever the format's overflow makes of it, and also where a directed mode
    stops at max; in an unsigned format every element counts that is still negative. Arguments and
    errors as in :func:`round_array`; infinities and NaN are False.
    """
    x, offset = _array_arguments("overflows_array", x, fmt, rounding, draws, random_bits)
    if isinstance(fmt, TableFormat):
        return np.isfinite(x) & ((x < fmt.min) | (x > fmt.max))
    count, step, _ = _array_rounded(x, fmt, rounding, offset, random_bits)
    if isinstance(fmt, FixedFormat):
        code = np.where(np.signbit(x), -count, count)
        beyond = (code > fmt.max_code) | (code < fmt.min_code)
    else:
        beyond = np.ldexp(count, np.minimum(step, fmt.emax + 2)) > fmt.max
        if not fmt.signed:
            beyond |= np.signbit(x) & (count > 0)
    return np.isfinite(x) & beyond


def _array_arguments(
    owner: str,
    x: np.ndarray,
    fmt: Number,
    rounding: str,
    draws: np.ndarray | None,
    random_bits: int,
) -> tuple[np.ndarray, np.ndarray | np.int64]:
    """The checked x, and ``2 * draw + 1`` of stochastic rounding."""
    _check_arguments(owner, fmt, rounding, random_bits)
    x = np.asarray(x)
    if x.dtype != np.float64:
        raise TypeError(f"{owner}: x must be float64, got {x.dtype}; use x.astype(np.float64)")
    stochastic = rounding == "stochastic"
    return x, _checked_draws(owner, draws, random_bits) if stochastic else np.int64(0)


def _array_rounded(
    x: np.ndarray,
    fmt: FloatFormat | FixedFormat,
    rounding: str,
    offset: np.ndarray | np.int64,
    random_bits: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each magnitude (0 where x is not finite) the rounded number of steps, the step's exponent
    and the value's exponent."""
    significand, exponent = np.frexp(np.where(np.isfinite(x), np.abs(x), 0.0))
    step = _step_exponents(exponent, fmt)
    # In units of the step: exact, and at least 2^-400 where not zero.
    scaled = np.ldexp(significand, np.clip(exponent - step, _LEAST_EXPONENT, _MOST_EXPONENT))
    count = np.floor(scaled)
    odd = _is_odd(count, exponent, fmt)
    away = _moves_away(scaled - count, odd, np.signbit(x), rounding, offset, random_bits)
    return count + away, step, exponent


def _step_exponents(exponent: np.ndarray, fmt: FloatFormat | FixedFormat) -> np.ndarray:
    """log2 of the distance between the neighbours of values in [2^(exponent-1), 2^exponent)."""
    if isinstance(fmt, FixedFormat):
        return np.full_like(exponent, -fmt.frac_bits)
    binade = np.maximum(exponent - 1, fmt.emin) - fmt.man_bits
    if fmt.subnormals:
        return binade
    return np.where(exponent - 1 < fmt.emin, fmt.emin, binade)


def _is_odd(count: np.ndarray, exponent: np.ndarray, fmt: FloatFormat | FixedFormat) -> np.ndarray:
    if isinstance(fmt, FloatFormat) and fmt.man_bits == 0:
        # Every binade has one code, so its parity is that of the biased exponent.
        return (count == 1.0) & ((exponent - fmt.emin) % 2 == 1)
    return np.fmod(count, 2.0) == 1.0


def _array_overflow(
    count: np.ndarray,
    step: np.ndarray,
    exponent: np.ndarray,
    negative: np.ndarray,
    fmt: FloatFormat,
    rounding: str,
) -> np.ndarray:
    # Every value beyond emax + 2 is too large; the clip keeps count * 2^step finite.
    magnitude = np.ldexp(count, np.minimum(step, fmt.emax + 2))
    signed = np.where(negative, -magnitude, magnitude)
    beyond = magnitude > fmt.max
    for sign in (False, True):
        stops = _stops_at_max(rounding, sign)
        limit = (-fmt.max if sign else fmt.max) if stops else _overflowed(fmt, sign)
        signed = np.where(beyond & (negative == sign), limit, signed)
    if not fmt.signed:
        signed = np.where(negative & (count > 0), _overflowed(fmt, negative=True), signed)
    # Adding +0 turns -0 into +0.
    return signed + 0.0 if fmt.one_zero else signed


def _array_into_word(code: np.ndarray, fmt: FixedFormat) -> np.ndarray:
    if fmt.overflow == "wrap":
        # fmod is exact, and both sums stay far below 2^53.
        modulus = 2.0**fmt.word_bits
        code = np.fmod(code, modulus)
        code = np.where(code < fmt.min_code, code + modulus, code)
        code = np.where(code > fmt.max_code, code - modulus, code)
    # Adding +0 turns -0 into +0.
    return np.clip(code, fmt.min_code, fmt.max_code) * fmt.quantum + 0.0


def _checked_draws(owner: str, draws: np.ndarray | None, random_bits: int) -> np.ndarray:
    """``2 * draw + 1`` as int64."""
    if draws is None:
        raise TypeError(f"{owner}: rounding='stochastic' needs draws, an integer array; got None")
    draws = np.asarray(draws)
    if draws.dtype.kind not in "iu":
        raise TypeError(f"{owner}: draws must be integers, got {draws.dtype}; use np.uint32")
    if draws.size and (int(draws.min()) < 0 or int(draws.max()) >= 2**random_bits):
        raise ValueError(
            f"{owner}: draws must be in 0..{2**random_bits - 1} for random_bits={random_bits}, "
            f"got {int(draws.min())}..{int(draws.max())}"
        )
    return 2 * draws.astype(np.int64) + 1


def _check_arguments(owner: str, fmt: object, rounding: object, random_bits: int) -> None:
    if not isinstance(fmt, Number):
        raise TypeError(
            f"{owner}: fmt must be a FloatFormat, FixedFormat or TableFormat, got {fmt!r} "
            f"({type(fmt).__name__}); other formats take their scale from a whole tensor: use "
            "quantize"
        )
    check_rounding(rounding, owner)
    checked_int(owner, "random_bits", random_bits, 1, MAX_RANDOM_BITS)


class _Places(NamedTuple):
    """Where values lie in a table: the neighbours nearer to and farther from zero, the fraction,
    and whether the nearer one counts as odd; zeros are +0.

    The fraction is 0 for a value of the table; of nearest modes 1/2 on the gap's boundary, 1/4 on
    the side of zero and 3/4 on the other side; of stochastic rounding it is the contract's f in
    float64.
    """

    near: np.ndarray
    far: np.ndarray
    fraction: np.ndarray
    odd: np.ndarray


def _place_in_table(value: Fraction | float, fmt: TableFormat, stochastic: bool) -> tuple[Any, ...]:
    """`_places` of one finite number, which is taken to odd in float64 first: a number of 53 bits
    that was made odd compares with a boundary, of 52 bits at most, as the exact number does."""
    near, far, fraction, odd = _places(np.array(odd_double(Fraction(value))), fmt, stochastic)
    return float(near), float(far), Fraction(float(fraction)), bool(odd)


def odd_double(exact: Fraction | float) -> float:
    """The number as a float64, an inexact one to the odd neighbour; a float stays as it is."""
    nearest = float(exact)
    if nearest == exact or int(np.float64(nearest).view(np.int64)) & 1:
        return nearest
    return math.nextafter(nearest, math.inf if exact > nearest else -math.inf)


def _places(x: np.ndarray, fmt: TableFormat, stochastic: bool) -> _Places:
    """The places of x, which is exact or to odd; 0 stands for what is not finite."""
    values, boundaries, lower_is_even, *_ = fmt.tensors()
    inside = np.clip(np.where(np.isfinite(x), x, 0.0), fmt.min, fmt.max) + 0.0
    at = np.minimum(np.searchsorted(values, inside, side="right"), len(values) - 1) - 1
    low, high, negative = values[at], values[at + 1], inside < 0
    near, far = np.where(negative, high, low), np.where(negative, low, high)
    if stochastic:
        fraction = (np.abs(inside) - np.abs(near)) / (np.abs(far) - np.abs(near))
    else:
        boundary = boundaries[at]
        away = (inside > boundary) != negative
        fraction = np.where(inside == boundary, 0.5, np.where(away, 0.75, 0.25))
    exact = (inside == low) | (inside == high)
    return _Places(
        np.where(exact, inside, near),
        np.where(exact, inside, far),
        np.where(exact, 0.0, fraction),
        lower_is_even[at] == negative,
    )
