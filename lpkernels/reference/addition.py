"""The step every emulated sum is made of, for whole arrays of outputs: a sum and one rounding.

A product of two float32 values has at most 48 significant bits, so it is exact in float64. Its sum
with the accumulator is split into the nearest float64 and the error (two-sum, Knuth, The Art of
Computer Programming vol. 2, 4.2.2) and made odd: a sum rounded to odd in 53 bits gives, rounded
once more to at most 24 bits and 24 random ones, the bits of the exact sum (Boldo and Melquiond,
IEEE Transactions on Computers 57(4), 2008).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import FixedFormat, Number
from lpkernels.reference.values import Float64, to_odd
from lpkernels.rounding import round_array

# A product of 2^50 quanta or more has its last bit at 2^3 quanta or above: it is a whole number of
# quanta.
_WHOLE_QUANTA = 2.0**50


def odd_sum(a: Float64, b: Float64) -> Float64:
    """a + b to odd: the nearest float64 if exact or odd, else its neighbour towards the error."""
    with np.errstate(invalid="ignore"):
        s = np.asarray(a + b)
        b_part = s - a
        return to_odd(s, (a - (s - b_part)) + (b - b_part))


def _wrapped(a: Float64, b: Float64, fmt: FixedFormat) -> Float64:
    """a modulo the range of a wrapping format, where a is a whole number of quanta, for a + b.

    Making the sum odd then cannot reach the bits that wrapping keeps. The result has a's sign.
    Where b is no whole number of quanta the result is larger than b, so that a + b keeps its sign,
    which directed modes and ties need. It is at most two ranges larger, so that at most 50 bits, or
    the range and 27 places below it, hold the sum. Smaller a keep their value.
    """
    least = _WHOLE_QUANTA * fmt.quantum
    size = np.abs(a)
    whole = np.isfinite(a) & (size >= least)
    if not whole.any():
        return a
    span = 2.0**fmt.word_bits * fmt.quantum
    other = np.where(np.abs(b) < least, np.abs(b), 0.0)
    reduced = np.fmod(np.where(whole, size, 0.0), span) + span * (np.floor(other / span) + 1)
    return np.where(whole, np.copysign(reduced, a), a)


def add(
    left: Float64,
    right: Float64,
    fmt: Number,
    rounding: str,
    *,
    draws: NDArray[np.uint32] | None = None,
    random_bits: int = 32,
) -> Float64:
    """left + right rounded once to fmt: the bits of `exact.add`.

    Args:
        left, right: values of fmt, exact products or values of at most 48 significant bits. They
            broadcast.
        draws: the random bits of a stochastic sum, of the sum's shape.
    """
    if isinstance(fmt, FixedFormat) and fmt.overflow == "wrap":
        left, right = _wrapped(left, right, fmt), _wrapped(right, left, fmt)
    total = odd_sum(left, right)
    if rounding == "toward_negative":
        # An exact zero sum is -0 unless both addends are +0.
        total = np.where((total == 0) & (np.signbit(left) | np.signbit(right)), -0.0, total)
    return round_array(total, fmt, rounding, draws=draws, random_bits=random_bits)
