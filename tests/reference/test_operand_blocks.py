"""Blocks aligned by their operands: recordings, worked cases, the twin against the exact way."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.reference import exact, twin
from lpkernels.reference.sums import Product, factor_exponents
from lpkernels.rng import SITE_BIAS, SITE_SUM, draw
from lpkernels.rounding import ROUNDINGS, round_scalar
from tests.compare import assert_bit_equal
from tests.oracles.recordings import Group, groups

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("way, step", [(exact, 4), (twin, 1)])
@pytest.mark.parametrize("group", list(groups()))
def test_recorded_cases_come_out_to_the_bit(group: Group, way, step: int) -> None:
    a, b, c, d = (x[::step] for x in (group.a, group.b, group.c, group.d))
    start = c[:, None, None]
    got = way.matmul(a[:, None, :], b[:, :, None], None, group.accumulator, initial=start)
    assert_bit_equal(got[:, 0, 0], d, group.name)


ONE = accumulator("e8m13:toward_zero:block=4:aligned_bits=6:operands=e4m3fn")
LEAST = replace(ONE, least_exponent=-5)
SIDES = replace(ONE, operands=("e5m2", "e4m3fn"))
TURNS = accumulator("fp32_chunk8:block=4:aligned_bits=4:operands=fp16:interleaved=2")


def summed(acc, products, **options):
    """Products (a, b), or None for an absent tap, by the exact way, which the twin equals."""
    terms = [None if p is None else exact.summand(*map(float, p), acc) for p in products]
    want = exact.accumulate(terms, acc, row=3, col=4, seed=5, **options)
    key = {"row": np.array([3]), "col": np.array([4]), "seed": 5}
    initial = options.get("initial")
    start = None if initial is None else np.array([initial])
    pushed = [of_twin(p, acc) for p in products]
    got = twin.accumulate(pushed, (1,), acc, **key, initial=start)
    assert_bit_equal(got, np.array([want]))
    return want


def of_twin(pair, acc):
    """The product of a pair, whether it is there, and the exponents of its factors."""
    factors = [np.array([x], np.float64) for x in pair or (7.0, 7.0)]
    exponents = sum(factor_exponents(*factors, acc))
    return Product(factors[0] * factors[1], np.array([pair is not None]), exponents)


@pytest.mark.parametrize("acc, products, initial, want", [
    # The cut is toward zero, of each by itself: it leaves 2^-6 of 1.75 * 2^-6.
    (ONE, [(1, 1), (1.75, 2**-6)], None, 1 + 2**-6),
    (ONE, [(-1, 1), (-1.75, 2**-6)], None, -1 - 2**-6),
    (ONE, [(1, 1), (1, 2**-7), (1, 2**-7)], None, 1),
    # Zero products have no say.
    (ONE, [(64, 0), (2**-6, 1), (2**-6, 2**-6)], None, 2**-6 + 2**-12),
    # A block of absent taps leaves the running sum whole; a zero that is there cuts it.
    (ONE, [None] * 8, 1 + 2**-13, 1 + 2**-13), (ONE, [None] * 4 + [(0, 1)], 1 + 2**-13, 1),
    (ONE, [None], -0.0, -0.0), (ONE, [(0, 1)], -0.0, 0.0),
    # Outer sums overflow as any sum does.
    (accumulator("fp32_chunk2:toward_zero:outer=fp16:block=2:aligned_bits=24:operands=fp16"),
     [(32768, 1)] * 4, None, 65504),
    # The least exponent bounds the place.
    (LEAST, [(2**-6, 2**-5)], None, 2**-11), (LEAST, [(2**-6, 2**-6)], None, 0),
    # 2^-8 is subnormal in e4m3fn alone: its exponent is -6 there, and the cut lies at 2^-12.
    (SIDES, [(2**-8, 1), (2**-7, 2**-6)], None, 2**-8 + 2**-13),
    (SIDES, [(1, 2**-8), (2**-7, 2**-6)], None, 2**-8),
    # The first block has positions 0, 1, 4 and 5. The second block has 2, 3, 6 and 7, and
    # starts with the sum of the first.
    (TURNS, [(8, 1), (-8, 1), (2**-3, 1)] + [None] * 5, None, 2**-3),
    (TURNS, [(8, 1), None, None, None, (-8, 1), (2**-3, 1)], None, 0),
    (TURNS, [(8, 1), None, (2**-3, 1), None, (-8, 1), None], None, 2**-3),
    # In this short run of three positions the second block has one.
    (TURNS, [(8, 1), (-8, 1), (2**-3, 1)], None, 2**-3),
])  # fmt: skip
def test_the_rule_piece_by_piece(acc, products: list, initial: float | None, want: float) -> None:
    assert repr(float(summed(acc, products, initial=initial))) == repr(float(want))


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_zero_is_positive(rounding: str) -> None:
    acc = replace(ONE, rounding=rounding)
    assert math.copysign(1, summed(acc, [(-0.0, 1), (-1, 0.0)])) == 1
    assert math.copysign(1, summed(acc, [(-1, 1), (1, 1)])) == 1
    # Most modes leave nothing of -2^-8 in steps of 2^-4.
    coarse = Accumulator("e3m2", rounding, block=4, aligned_bits=9, operands="fp16")
    got = summed(coarse, [(-(2.0**-8), 1)])
    assert math.copysign(1, got) == (1 if got == 0 else -1)


@pytest.mark.parametrize("rounding", [r for r in ROUNDINGS if r != "stochastic"])
@pytest.mark.parametrize("fmt, want", [("fp16", INF), ("e5m10_sat", 65504.0), ("e5m10_nan", NAN)])
def test_sums_beyond_max_overflow_in_every_mode(rounding: str, fmt: str, want: float) -> None:
    acc = Accumulator(fmt, rounding, block=2, aligned_bits=24, operands="fp16")
    for sign in (1, -1):
        got = summed(acc, [(sign * 32768, 1)] * 2)
        assert math.isnan(got) if math.isnan(want) else got == sign * want


def test_draws_have_the_first_position_of_their_block() -> None:
    acc = accumulator(
        "e5m2_chunk8:stochastic:outer=fp32:outer_rounding=nearest_even:block=4:aligned_bits=20"
        ":operands=fp16:interleaved=2"
    )

    def rounded(value: Fraction, k: int) -> Fraction:
        bits = draw(5, SITE_SUM, 3, 4, k, 8)
        return Fraction(round_scalar(value, acc.fmt, "stochastic", draw=bits, random_bits=8))

    for chunks, i in itertools.product((1, 2), range(1, 16, 2)):
        x, total = 1 + Fraction(i, 16), Fraction(0)
        for first in range(0, 8 * chunks, 8):
            total += rounded(rounded(4 * x, first) + 4 * x, first + 2)
        assert summed(acc, [(float(x), 1)] * 8 * chunks) == total


@pytest.mark.parametrize("order", [{}, {"order": "compensated"}, {"block": 2, "aligned_bits": 3}])
def test_the_outermost_sum_starts_at_initial(order: dict) -> None:
    options = {"chunk": 2, "outer": "fp32"}
    assert exact.accumulate([Fraction(1)] * 2, Accumulator("e6m9", **order), initial=5.0) == 7
    # 1024 + 1 is lost in e6m9, but chunks start at zero.
    acc = Accumulator("e6m9", **order, **options)
    assert exact.accumulate([Fraction(1)] * 3, acc, initial=2048.0) == 2051


def test_initial_is_rounded_to_the_format_first() -> None:
    assert exact.accumulate([], Accumulator("e6m9"), initial=1 + 2**-11) == 1
    assert exact.accumulate([], Accumulator("e6m9", "toward_positive"), initial=1 + 2**-11) > 1
    assert exact.accumulate([], Accumulator("fp16", "toward_zero"), initial=1e30) == 65504
    acc = accumulator("e6m9_chunk4:stochastic:outer=e5m2:block=4:aligned_bits=9:operands=fp16")
    bits = draw(5, SITE_BIAS, 3, 4, 1, 8)
    for x in (1 + i / 64 for i in range(16)):
        want = round_scalar(x, acc.outermost, "stochastic", draw=bits, random_bits=8)
        assert summed(acc, [], initial=x) == want
