"""Tables with a name that `parse_format` reads in every process: posits, supernormals, NF4,
logarithms, and the second moments of Adam in 4 bits."""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats._table import NamedTable, TableFormat
from lpkernels.formats.checks import checked_int

_MOST_BITS = 16
# Exponents of values that float32 holds with all bits of a posit.
_LEAST_EXPONENT, _MOST_EXPONENT = -149, 127

# The quantiles of a normal distribution of QLoRA (Dettmers et al. 2023, arXiv 2305.14314, appendix
# E), in the order of their codes.
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


@lru_cache(maxsize=128, typed=True)
def posit(n: int, es: int) -> TableFormat:
    """The posits of n bits with es bits of exponent: ``posit<n>es<es>``.

    Standard for Posit Arithmetic (2022), whose own posits have es = 2. Codes are the standard's, in
    two's complement; NaR is NaN's code, and an infinite value becomes NaN. nearest_even is the
    standard's rounding: the boundary of two neighbours is the posit of n + 1 bits between them,
    which is no arithmetic midpoint where that bit belongs to the exponent or the regime. Nothing
    but 0 is rounded to 0, and what is larger than maxpos becomes maxpos. Directed modes, to_odd and
    stochastic rounding look at values alone and may give 0. No accumulator here is a quire: sums
    in fp32 whose output is rounded come near, and are not equal.

    Args:
        n: 3..16. es: 0..4.

    Raises:
        TypeError: no int.  ValueError: out of range, or maxpos = 2^((n - 2) 2^es) is not below
        2^128, so that float32, in which values travel, does not hold it.

    >>> fmt = lp.posit(8, 1)
    >>> str(fmt), fmt.max
    ('posit8es1', 4096.0)
    >>> lp.quantize(torch.tensor([1e-9, 3.3]), fmt)
    tensor([2.4414e-04, 3.2500e+00])
    """
    n = checked_int("posit", "n", n, 3, _MOST_BITS)
    es = checked_int("posit", "es", es, 0, 4)
    top = (n - 2) << es
    if top > _MOST_EXPONENT:
        raise ValueError(
            f"posit: maxpos of posit{n}es{es} is 2^{top}, beyond float32, in which values travel; "
            f"(n - 2) 2^es is at most {_MOST_EXPONENT}, so use es={es - 1} or fewer bits"
        )
    # Of n + 1 bits; those with an even code are the posits of n bits.
    finer = _positive_posits(n + 1, es)
    positive, between = finer[1::2], finer[2:-1:2]
    codes = np.arange(1, 2 ** (n - 1))
    return _mirrored(
        f"posit{n}es{es}", positive, codes, (1 << n) - codes, np.concatenate([[0.0], between]),
        infinity="nan", nan_code=1 << (n - 1),
    )  # fmt: skip


def _positive_posits(n: int, es: int) -> NDArray[np.float64]:
    """The posits of the codes 1 .. 2^(n - 1) - 1."""
    code = np.arange(1, 2 ** (n - 1))
    width = n - 1
    ones = code >> (width - 1) == 1
    # The bits of the regime are alike; one of the other kind ends it.
    other = np.where(ones, code ^ (2**width - 1), code)
    length = width - np.frexp(other.astype(np.float64))[1]
    regime = np.where(ones, length - 1, -length)
    rest_bits = np.maximum(width - length - 1, 0)
    tail = code & ((1 << rest_bits) - 1)
    # Bits of the exponent that have no place are 0.
    tail <<= np.maximum(es - rest_bits, 0)
    fraction_bits = np.maximum(rest_bits - es, 0)
    exponent = (tail >> fraction_bits) + (regime << es)
    significand = (tail & ((1 << fraction_bits) - 1)) + (1 << fraction_bits)
    return np.ldexp(significand.astype(np.float64), exponent - fraction_bits)


@lru_cache(maxsize=128, typed=True)
def supernormal(exp_bits: int, man_bits: int, low: int, high: int) -> TableFormat:
    """A float format whose outer exponent codes count powers of two:
    ``supernormal_e<E>m<M>_<low>_<high>``.

    The bias is 2^(exp_bits - 1). Exponent codes from low to 2^exp_bits - 1 - high are normal, with
    a mantissa. The codes below them, seen as whole numbers, are powers of two going down from
    2^(low - bias - 1), and code 0 is zero; those above are powers of two going up from the next
    binade. Sign and magnitude; every code but that of -0 is a finite value.

    These are the values of SuperNormalFloat in MPTorch (with saturate=True), which names the paper
    "Range Extension with Supernormals for Mixed-Precision 8-bit DNN Training" (ARITH 2025).
    Rounding differs: here it is that of every table, while MPTorch rounds ties away from zero and
    flushes values below the least one to zero.

    Args:
        exp_bits: 1..8. man_bits: 0..12, together at most 15.
        low, high: how many exponent codes at each end are powers of two; one stays normal.

    Raises:
        TypeError: no int.  ValueError: out of range, or a value beyond float32.
    """
    exp_bits = checked_int("supernormal", "exp_bits", exp_bits, 1, 8)
    man_bits = checked_int("supernormal", "man_bits", man_bits, 0, _MOST_BITS - 1 - exp_bits)
    low = checked_int("supernormal", "low", low, 0, 2**exp_bits - 1)
    high = checked_int("supernormal", "high", high, 0, 2**exp_bits - 1 - low)
    bias = 2 ** (exp_bits - 1)
    code = np.arange(1, 2 ** (exp_bits + man_bits))
    first, upper = low << man_bits, (2**exp_bits - high) << man_bits
    below, above = code < first, code >= upper
    exponent = np.where(below, low - bias - first + code, (code >> man_bits) - bias)
    exponent = np.where(above, 2**exp_bits - high - bias + code - upper, exponent)
    for wrong in exponent[(exponent > _MOST_EXPONENT) | (exponent - man_bits < _LEAST_EXPONENT)][
        :1
    ]:
        raise ValueError(
            f"supernormal: a value is 2^{wrong}, whose bits float32, in which values travel, does "
            f"not hold; use fewer exp_bits, smaller low ({low}) or smaller high ({high})"
        )
    fraction = np.where(below | above, 0, code & (2**man_bits - 1)) / 2.0**man_bits
    name = f"supernormal_e{exp_bits}m{man_bits}_{low}_{high}"
    negative = code + 2 ** (exp_bits + man_bits)
    return _mirrored(name, np.ldexp(1 + fraction, exponent), code, negative)


@lru_cache(maxsize=1)
def nf4() -> TableFormat:
    """The 16 values of 4-bit NormalFloat: ``nf4`` (QLoRA, Dettmers et al. 2023, appendix E)."""
    return NamedTable(_NF4, "nf4")


@lru_cache(maxsize=1)
def linear4() -> TableFormat:
    """(i + 1) / 16 for the codes i = 0..15, without a zero: ``linear4``, an element of blocks.

    Li, Chen and Zhu 2023 (arXiv 2309.01507, section 4.1) keep Adam's second moment so, because
    Adam divides by its root: where a moment is rounded to 0, the step is 1 / eps times too large.
    The format is ``block128_linear4_sfp32``. In a block of zeros the scale is 0, so that all values
    are +0 exactly. Whatever is below 1/16 of the largest magnitude of its block becomes 1/16 of it
    in every mode, zeros and negative values too: the table is for states that are never negative.

    Differs: blocks run along a dimension and not through the flattened tensor, and ties go to the
    even code. The paper's scales by row and column ("rank-1") are not here.
    """
    return NamedTable([(i + 1) / 16 for i in range(16)], "linear4")


@lru_cache(maxsize=128, typed=True)
def logarithmic(bits: int, steps: int) -> TableFormat:
    """0 and +-2^((c - 2^(bits - 2)) / steps) for c = 1 .. 2^(bits - 1) - 1: ``log<bits>s<steps>``.

    Each value is the exact power rounded to float32, the same on every machine. Codes are a sign
    and c, and 0 is zero.

    Args:
        bits: 3..16. steps: values from one power of two to the next, from 1 up.

    Raises:
        TypeError: no int.  ValueError: out of range, a value beyond float32, or neighbours that are
        equal as float32.
    """
    bits = checked_int("logarithmic", "bits", bits, 3, _MOST_BITS)
    steps = checked_int("logarithmic", "steps", steps, 1, 2**23)
    code = np.arange(1, 2 ** (bits - 1))
    whole, part = np.divmod(code - 2 ** (bits - 2), steps)
    for wrong in whole[(whole > _MOST_EXPONENT) | (whole < _LEAST_EXPONENT)][:1]:
        raise ValueError(
            f"logarithmic: a value of log{bits}s{steps} has the exponent {wrong}, beyond float32's "
            f"{_LEAST_EXPONENT}..{_MOST_EXPONENT}, in which values travel; use more steps"
        )
    powers = {p: _power(p, steps) for p in {*part.tolist()}}
    values = np.array([_float32(powers[int(p)], int(e)) for e, p in zip(whole, part, strict=True)])
    if (np.diff(values) <= 0).any():
        raise ValueError(
            f"logarithmic: neighbours of log{bits}s{steps} are equal once they are float32, in "
            "which values travel; use fewer steps"
        )
    negative = code + 2 ** (bits - 1)
    return _mirrored(f"log{bits}s{steps}", values, code, negative)


def _power(part: int, steps: int) -> decimal.Decimal:
    """2^(part / steps) to 50 digits."""
    with decimal.localcontext(decimal.Context(prec=50)) as context:
        return context.power(2, context.divide(part, steps))


def _float32(significand: decimal.Decimal, exponent: int) -> float:
    """significand * 2^exponent rounded to float32.

    The 50 digits are rounded once more: an irrational power is no tie, and a rational one is exact.
    """
    places = 23 - max(0, -126 - exponent)
    with decimal.localcontext(decimal.Context(prec=60)) as context:
        units = context.multiply(significand, 2**places)
    return math.ldexp(int(units.to_integral_value(decimal.ROUND_HALF_EVEN)), exponent - places)


def _mirrored(
    name: str,
    positive: NDArray[np.float64],
    codes: NDArray[np.int64],
    negative_codes: NDArray[np.int64],
    boundaries: NDArray[np.float64] | None = None,
    infinity: str | None = None,
    nan_code: int | None = None,
) -> TableFormat:
    """The table of 0, positive values and their negatives; boundaries from 0 upwards."""
    values = np.concatenate([-positive[::-1], [0.0], positive])
    numbers = np.concatenate([negative_codes[::-1], [0], codes])
    between = None if boundaries is None else np.concatenate([-boundaries[::-1], boundaries])
    return NamedTable(
        values, name, infinity=infinity, boundaries=between, codes=numbers, nan_code=nan_code
    )


_FORMS: tuple[tuple[str, Callable[..., TableFormat]], ...] = (
    (r"posit(\d+)es(\d+)", posit),
    (r"supernormal_e(\d+)m(\d+)_(\d+)_(\d+)", supernormal),
    (r"log(\d+)s(\d+)", logarithmic),
    ("nf4", nf4),
    ("linear4", linear4),
)


def parse(name: str) -> TableFormat | None:
    """The table of a name of these forms; None: another form.

    Raises:  ValueError: there is no such table of these numbers.
    """
    for form, make in _FORMS:
        if match := re.fullmatch(form, name):
            table = make(*map(int, match.groups()))
            if table.name != name:
                raise ValueError(f"parse_format: {name!r} is written {table.name!r}")
            return table
    return None
