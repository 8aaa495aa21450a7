"""Tables and rounding to them in rational numbers, written from the words of docs/formats.md and
of the Posit Standard (2022); no code of the package."""

from __future__ import annotations

import decimal
import itertools
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

MODES = (
    "nearest_even", "nearest_away", "toward_zero", "toward_positive", "toward_negative", "to_odd",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """values ascending; a boundary for each pair of neighbours; a code for each value."""

    values: Sequence[Fraction]
    boundaries: Sequence[Fraction]
    codes: Sequence[int]

    @staticmethod
    def of(
        values: Sequence[float],
        codes: Sequence[int] | None = None,
        boundaries: Sequence[float] | None = None,
    ) -> Table:
        exact = [Fraction(v) for v in values]
        middles = [(a + b) / 2 for a, b in itertools.pairwise(exact)]
        between = middles if boundaries is None else [Fraction(b) for b in boundaries]
        return Table(exact, between, codes or range(len(exact)))

    def rounded(self, x: Fraction, mode: str, draw: int = 0, random_bits: int = 32) -> Fraction:
        """x in a mode; stochastic with these draws, x a number of float64."""
        if x <= self.values[0] or x >= self.values[-1]:
            return self.values[0] if x <= self.values[0] else self.values[-1]
        i = bisect_left(self.values, x)
        if self.values[i] == x:
            return x
        low, high, boundary = self.values[i - 1], self.values[i], self.boundaries[i - 1]
        near, far = sorted((low, high), key=abs)
        if mode == "toward_zero":
            return near
        if mode in ("toward_positive", "toward_negative"):
            return high if mode == "toward_positive" else low
        parities = self.codes[i - 1] % 2, self.codes[i] % 2
        odd = far if parities[0] == parities[1] else low if parities[0] else high
        if mode == "to_odd":
            return odd
        if mode == "stochastic":
            return far if self._moves(x, near, far, draw, random_bits) else near
        if x != boundary:
            return low if x < boundary else high
        even = low if odd == high else high
        return far if mode == "nearest_away" else even

    @staticmethod
    def _moves(x: Fraction, near: Fraction, far: Fraction, draw: int, random_bits: int) -> bool:
        a, b = abs(float(near)), abs(float(far))
        f = Fraction((abs(float(x)) - a) / (b - a))
        one = 2 ** (random_bits + 1)
        return (f * one).__floor__() + 2 * draw + 1 >= one


def posit_value(code: int, n: int, es: int) -> Fraction | None:
    """The value of a posit's code by the formula of the standard's section 3.3, for any es:
    ((1 - 3 s) + f) 2^((1 - 2 s) (2^es r + e + s)); None is NaR."""
    if code == 0 or code == 1 << (n - 1):
        return Fraction(0) if code == 0 else None
    bits = f"{code:0{n}b}"
    s, regime = int(bits[0]), bits[1:]
    k = len(regime) - len(regime.lstrip(regime[0]))
    r = k - 1 if regime[0] == "1" else -k
    rest = regime[k + 1 :]
    exponent, fraction = rest[:es].ljust(es, "0"), rest[es:]
    e = int(exponent, 2) if es else 0
    f = Fraction(int(fraction, 2), 2 ** len(fraction)) if fraction else Fraction(0)
    return (1 - 3 * s + f) * Fraction(2) ** ((1 - 2 * s) * (2**es * r + e + s))


@cache
def _posits(n: int, es: int) -> tuple[list[Fraction], list[int]]:
    """All values, ascending, and their codes."""
    found = ((posit_value(code, n, es), code) for code in range(2**n))
    both = sorted((value, code) for value, code in found if value is not None)
    return [value for value, _ in both], [code for _, code in both]


@cache
def posit_table(n: int, es: int) -> Table:
    """The posits; between two neighbours lies one posit of n + 1 bits, and 0 is apart."""
    values, codes = _posits(n, es)
    finer, _ = _posits(n + 1, es)
    assert finer[1::2] == values
    pairs = zip(itertools.pairwise(values), finer[2:-1:2], strict=True)
    return Table(values, [Fraction(0) if 0 in pair else v for pair, v in pairs], codes)


def _with_signs(magnitudes: Sequence[Fraction]) -> Table:
    """Zero, positive values in the order of codes 1, 2, ..., and as many negative ones behind the
    code of -0, which has no value."""
    count = len(magnitudes)
    values = [*(-v for v in magnitudes[::-1]), Fraction(0), *magnitudes]
    codes = [*range(2 * count + 1, count + 1, -1), *range(count + 1)]
    return Table(values, [(a + b) / 2 for a, b in itertools.pairwise(values)], codes)


def supernormal_table(e: int, m: int, low: int, high: int) -> Table:
    """Powers of two below the normal numbers and above them, as many as the codes there count."""
    bias, two = 2 ** (e - 1), Fraction(2)
    normal = [
        two ** (k - bias) * (1 + Fraction(i, 2**m)) for k in range(low, 2**e - high)
        for i in range(2**m)
    ]  # fmt: skip
    below = [two ** (low - bias - 1 - i) for i in range(low * 2**m - 1)][::-1]
    above = [two ** (2**e - high - bias + i) for i in range(high * 2**m)]
    return _with_signs([*below, *(normal if low else normal[1:]), *above])


def logarithmic_table(bits: int, steps: int) -> Table:
    """Powers of 2^(1 / steps), each as the float32 number nearest to its 60 digits."""
    magnitudes = []
    for c in range(1, 2 ** (bits - 1)):
        with decimal.localcontext(decimal.Context(prec=60)):
            whole, part = divmod(c - 2 ** (bits - 2), steps)
            power = Fraction(decimal.Decimal(2) ** (decimal.Decimal(part) / steps))
        unit = Fraction(2) ** (max(whole, -126) - 23)
        magnitudes.append(round(power * Fraction(2) ** whole / unit) * unit)
    return _with_signs(magnitudes)


def nf4_table() -> Table:
    """The values that bitsandbytes and the appendix of arXiv 2305.14314 print."""
    printed = """
        -1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635
        -0.18477343022823334 -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725
        0.24611230194568634 0.33791524171829224 0.44070982933044434 0.5626170039176941
        0.7229568362236023 1.0
    """
    return Table.of([float(np.float32(v)) for v in printed.split()])


@cache
def table_named(name: str) -> Table:
    """The table of a name with its numbers in it, as posit8es1."""
    numbers = map(int, re.findall(r"\d+", name))
    if name.startswith("posit"):
        return posit_table(*numbers)
    if name.startswith("supernormal"):
        return supernormal_table(*numbers)
    return logarithmic_table(*numbers) if name.startswith("log") else nf4_table()
