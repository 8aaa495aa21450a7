"""fnuz and P3109 by the sentences that define them: lists of values, and rounding by looking them
up. All numbers here are short binary fractions, so that float64 compares and halves them exactly.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class Small(NamedTuple):
    """A format of k bits with p bits of precision; extended: with infinities."""

    k: int
    p: int
    signed: bool
    extended: bool

    @property
    def name(self) -> str:
        """Its name in gfloat."""
        kind = ("s" if self.signed else "u") + ("e" if self.extended else "f")
        return f"p3109_k{self.k}p{self.p}{kind}"


#: Every format of at most 8 bits.
SMALL = [
    Small(k, p, signed, extended)
    for k in range(3, 9)
    for signed in (True, False)
    for p in range(1, k + (not signed))
    for extended in (True, False)
]


def magnitudes(fmt: Small) -> Values:
    """Zero and the positive numbers, by code, as if codes went on for two more binades."""
    exponent_bits = fmt.k - fmt.p + (not fmt.signed)
    bias = 2 ** (exponent_bits - 1)
    per_binade = 2 ** (fmt.p - 1)
    code = np.arange(2 ** (exponent_bits + fmt.p - 1) + 2 * per_binade + 1)
    exponent, rest = code // per_binade, code % per_binade
    significand = np.where(exponent > 0, per_binade + rest, rest)
    return np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - bias - fmt.p + 1)


def largest_code(fmt: Small) -> int:
    """The code of the largest number: before infinity and, without a sign, before NaN."""
    return 2 ** (fmt.k - fmt.signed) - 1 - fmt.extended - (not fmt.signed)


def decoded(fmt: Small) -> Values:
    """The value of every code."""
    positive = magnitudes(fmt)[: 2 ** (fmt.k - fmt.signed)]
    last = largest_code(fmt)
    positive[last + 1 :] = np.nan
    if fmt.extended:
        positive[last + 1] = np.inf
    if not fmt.signed:
        return positive
    return np.concatenate([positive, [np.nan], -positive[1:]])


def hard(fmt: Small) -> Values:
    """Every value and midpoint up to two binades beyond the largest, what lies next to them, and
    the specials."""
    values = magnitudes(fmt)
    middles = (values[1:] + values[:-1]) / 2
    # Eight bits more than the format has are few enough for float32.
    beside = np.concatenate([middles + d * np.diff(values) for d in (-0.25, -(2.0**-8), 2.0**-8)])
    x = np.concatenate([values, middles, beside, [1e-30, 1e30, np.inf, np.nan]])
    return np.concatenate([x, -x])


def rounded(
    x: Values,
    fmt: Small,
    mode: str,
    overflow: str,
    draws: NDArray[np.int64] | int = 0,
    random_bits: int = 8,
) -> tuple[Values, NDArray[np.bool_]]:
    """x rounded, with +0 for every zero, and which finite values lie beyond the format then."""
    values, last = magnitudes(fmt), largest_code(fmt)
    negative, size = np.signbit(x), np.abs(x)
    inside = np.minimum(np.where(np.isnan(x), 0, size), values[-2])
    low = np.searchsorted(values, inside, side="right") - 1
    part = (inside - values[low]) / (values[low + 1] - values[low])
    odd = low % 2 == 1
    one = 2 ** (random_bits + 1)
    away = {
        "nearest_even": (part > 0.5) | ((part == 0.5) & odd),
        "nearest_away": part >= 0.5,
        "toward_zero": np.zeros_like(odd),
        "toward_positive": ~negative,
        "toward_negative": negative,
        "to_odd": ~odd,
        "stochastic": np.floor(part * one) + 2 * draws + 1 >= one,
    }[mode]
    code = low + ((part > 0) & away)
    outward = {"toward_positive": ~negative, "toward_negative": negative}.get(
        mode, np.full(x.shape, mode in ("nearest_even", "nearest_away", "stochastic"))
    )
    limit = {"infinity": np.inf, "saturate": values[last], "nan": np.nan}[overflow]
    result = values[np.minimum(code, last)]
    result = np.where((code > last) & (outward | np.isinf(x)), limit, result)
    if not fmt.signed:
        below = 0.0 if overflow == "saturate" else np.nan
        result = np.where(negative & (code > 0), below, result)
    result = np.where(negative, -result, result) + 0.0
    beyond = np.isfinite(x) & ((code > last) | (negative & (code > 0) & (not fmt.signed)))
    return np.where(np.isnan(x) | np.isnan(result), np.nan, result), beyond
