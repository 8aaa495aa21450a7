"""How a block of products joins the running sum c where nothing is cut, and in the matrix cores of
AMD (`Accumulator.adder`): docs/contract.md, "Blocks of AMD's matrix cores".

Every function takes one output and gives an exact number, which the accumulator then rounds once.
Sources: MMA-Sim 2.1.1 for CDNA, AMD's emulator rocjitsu for RDNA (docs/tensor-cores.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FP16, FP32, FloatFormat
from lpkernels.rounding import floor_log2, round_scalar

Real = Fraction | float


@dataclass(frozen=True)
class Factored:
    """A product and the sum of its factors' exponents; None: it is zero or not finite."""

    value: Real
    exponent: int | None = None


def without_rounding(values: Sequence[Real]) -> Real:
    """The exact sum; a float, infinite or NaN, where a value is not finite."""
    special = [v for v in values if isinstance(v, float) and not math.isfinite(v)]
    return sum(special[1:], special[0]) if special else _added(Fraction(v) for v in values)


def _added(values: Iterable[Fraction]) -> Fraction:
    return sum(values, Fraction(0))


def zero_of(values: Iterable[Real], rounding: str) -> float:
    """The zero that is the sum of these values: -0 if all are -0, toward_negative if any is below
    zero or -0."""
    negative = [math.copysign(1.0, v) < 0 for v in values]
    return -0.0 if all(negative) or (rounding == "toward_negative" and any(negative)) else 0.0


def flushed(x: Any, fmt: FloatFormat, acc: Accumulator) -> Any:
    """A factor, or an array of factors, as the core reads it: in CDNA2, and of bf16 in RDNA3, a
    subnormal number is the zero of its sign."""
    flushes = acc.adder == "tree" or (acc.adder == "opposed" and fmt != FP16)
    return x * (abs(x) >= fmt.min_normal) if flushes else x


def block_of_core(c: float, block: Sequence[Factored | None], acc: Accumulator) -> Real:
    """The sum of c and the products of a block, in the order of their positions.

    An adder takes +0 in the place of an absent tap (None) and behind a short block.
    """
    if acc.adder == "aligned":
        present = [c, *(p.value for p in block if p is not None)]
        return without_rounding(present) or zero_of(present, acc.rounding)
    assert acc.block is not None
    products = [Factored(0.0) if p is None else p for p in block]
    products += [Factored(0.0) for _ in range(acc.block - len(block))]
    values = [p.value for p in products]
    if acc.adder == "tree":
        return _tree(c, values)
    if acc.adder in ("floored", "floored_halves"):
        values = [math.copysign(math.inf, v) if abs(float(v)) >= 2.0**128 else v for v in values]
    exact = without_rounding((c, *values))
    if not isinstance(exact, Fraction):
        return exact
    bits = acc.aligned_bits or 0
    if acc.adder == "floored":
        return _floored(c, [products], bits)
    if acc.adder == "floored_halves":
        return _floored(c, [products[::2], products[1::2]], bits)
    if acc.adder == "opposed":
        return _opposed(c, products, bits)
    return _pairs(c, [products[i : i + 2] for i in range(0, len(products), 2)], bits)


def _tree(c: float, values: Sequence[Real]) -> float:
    """CDNA2: every product and sum is rounded to float32, and 0 below its normal numbers."""

    def rounded(x: Real) -> float:
        y = round_scalar(x, FP32, "nearest_even")
        return 0.0 if abs(y) < FP32.min_normal else y

    nodes = [rounded(v) for v in values]
    while len(nodes) > 1:
        nodes = [rounded(without_rounding(nodes[i : i + 2])) for i in range(0, len(nodes), 2)]
    return rounded(without_rounding((rounded(c), *nodes)))


def _floored(c: float, parts: Sequence[Sequence[Factored]], bits: int) -> Fraction:
    """CDNA3: products are cut toward zero, then their sum, c and the total toward minus infinity.

    Of two parts, of fp8, each is cut at a place of its own, and a c far below is lost.
    """
    sums = []
    for part in parts:
        if tops := _exponents(part):
            place = max(tops) - bits
            sums.append((max(tops), _added(_cut(p.value, place) for p in part)))
    if not sums:
        return Fraction(c)
    top = max(e for e, _ in sums)
    total = _added(_floor(s, top - bits) for _, s in sums)
    of_c = _exponent(c)
    first = max(top, of_c)
    if len(parts) == 1 or of_c >= first - bits - 1:
        total += _floor(Fraction(c), first - bits)
    return _floor(total, max(floor_log2(abs(total)), FP32.emin) - bits - 7) if total else total


def _opposed(c: float, products: Sequence[Factored], bits: int) -> Fraction:
    """RDNA3: a magnitude whose sign is not c's enters as its complement without the carry."""
    c = math.copysign(0.0, c) if abs(c) < FP32.min_normal else c
    values = [Fraction(c), *(Fraction(p.value) for p in products)]
    if not any(values):
        return Fraction(0)
    largest = floor_log2(max(map(abs, values))) - bits - 2
    place = max(largest, *(e - bits for e in _exponents(products)), largest)
    unit = Fraction(2) ** place
    negative = [math.copysign(1.0, v) < 0 for v in (c, *(p.value for p in products))]
    total = 0
    for value, below in zip(values, negative, strict=True):
        count = abs(value) // unit
        total += count if below == negative[0] else -count - 1
    result = (-total if negative[0] else total) * unit
    # Where 24 bits of an unbounded exponent end below 2^-126, the result is 0.
    least = Fraction(FP32.min_normal) * (1 - Fraction(1, 2**25))
    return result if abs(result) >= least else Fraction(0)


def _pairs(c: float, pairs: Sequence[Sequence[Factored]], bits: int) -> Fraction:
    """RDNA4: each pair is floored at a place of its own, then all at the largest of the places."""
    sums, places = [], [_exponent(c) - bits - 2]
    for pair in pairs:
        if tops := _exponents(pair):
            places.append(max(tops) - bits)
            sums.append(_added(_floor(Fraction(p.value), places[-1]) for p in pair))
    place = max(places)
    total = _added(_floor(s, place) for s in sums)
    lost = abs(c) < Fraction(2) ** place and place > FP32.emin
    return total if lost else total + _floor(Fraction(c), place)


def _exponents(products: Sequence[Factored]) -> list[int]:
    return [p.exponent for p in products if p.exponent is not None]


def _exponent(c: float) -> int:
    """floor(log2 |c|), at least that of float32's least normal number, which stands for 0 too."""
    return max(floor_log2(abs(Fraction(c))), FP32.emin) if c else FP32.emin


def _floor(x: Fraction, place: int) -> Fraction:
    """x cut toward minus infinity to a multiple of 2^place."""
    unit = Fraction(2) ** place
    return x // unit * unit


def _cut(x: Real, place: int) -> Fraction:
    """x cut toward zero to a multiple of 2^place."""
    size = _floor(abs(Fraction(x)), place)
    return size if x > 0 else -size
