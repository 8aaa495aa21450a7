"""The exact sums of every order against the contract, and against independent arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.reference import exact
from lpkernels.rng import SITE_BIAS, SITE_OUTER, SITE_PRODUCT, SITE_SUM, draw
from lpkernels.rounding import round_scalar
from tests.compare import assert_bit_equal
from tests.support.products import operand

INF, NAN = math.inf, math.nan
TINY, ULP, HUGE = Fraction(1, 2**200), Fraction(1, 2**11), Fraction(2**300)
# The key of the draws.
KEY = {"row": 3, "col": 4, "seed": 5}


def assert_sum(acc: str, products: list, want: float, **options: float) -> None:
    """The sum of the products has the bits of `want`; a product that is None is an absent tap."""
    got = exact.accumulate(products, accumulator(acc), **KEY, **options)
    assert repr(got) == repr(float(want)), acc


@pytest.mark.parametrize("acc, products, want", [
    # Every step rounds once.
    ("fp16", [], 0.0), ("fp16", [None, None], 0.0), ("fp16", [1.0, ULP], 1.0),
    ("fp16", [1.0, 3 * ULP], 1 + 2**-9),
    # The sticky bit lies 189 places below the tie.
    ("fp16", [1.0, ULP + TINY], 1 + 2**-10), ("fp16", [ULP + TINY, 1.0], 1.0),
    ("fp16", [1.0, ULP, ULP], 1.0), ("fp16", [65504.0, 15.0], 65504.0),
    ("fp16", [65504.0, 16.0], INF), ("fp16", [65504.0, 16.0, -65504.0], INF),
    ("fp16", [INF, -INF], NAN), ("fp16", [INF, INF, -HUGE], INF), ("fp16", [NAN, 1.0], NAN),
    ("fp16", [HUGE, -INF], NAN),
    # A finite sum stops where the direction says, an infinite one does not.
    ("fp16:toward_zero", [HUGE], 65504.0), ("fp16:toward_zero", [-HUGE], -65504.0),
    ("fp16:toward_zero", [INF], INF), ("fp16:toward_positive", [HUGE], INF),
    ("fp16:toward_positive", [-HUGE], -65504.0), ("fp16:toward_positive", [INF], INF),
    ("fp16:toward_negative", [HUGE], 65504.0), ("fp16:toward_negative", [-HUGE], -INF),
    ("fp16:toward_negative", [INF], INF),
    # Every step overflows as the format says.
    ("e5m10_sat", [INF, -INF], -65504.0), ("e5m10_sat", [INF, -1.0], 65504.0),
    ("e4m3fn", [464.0], 448.0), ("e4m3fn", [464.5], NAN), ("e4m3fn", [INF], NAN),
    ("fixed8_f0", [INF, -1.0], 126.0), ("fixed8_f0_wrap", [INF], NAN),
    ("fixed8_f0_wrap", [Fraction(2**90 + 2**7)], -128.0),
    ("fixed8_f0_wrap", [Fraction(2**90 + 2**7), -1.0], 127.0),
    # Zero has the sign of the contract.
    ("fp16", [-0.0], 0.0), ("fp16", [1.0, -1.0], 0.0), ("fp16", [-TINY], -0.0),
    ("fp16", [-TINY, -0.0], -0.0), ("fp16", [-TINY, 0.0], 0.0), ("fp16", [-TINY, None], -0.0),
    ("fp16:toward_negative", [0.0], 0.0), ("fp16:toward_negative", [-0.0], -0.0),
    ("fp16:toward_negative", [1.0, -1.0], -0.0), ("fixed8_f0:toward_negative", [1.0, -1.0], 0.0),
    ("fixed8_f0", [-TINY], 0.0),
    # Products are rounded, and overflow, first.
    ("fp32:product=e4m3fn_sat", [Fraction(2**20)] * 2, 896.0),
    ("fp32:product=e4m3fn", [1 + Fraction(1, 16)], 1.0),
    ("fp32:product=e4m3fn:product_rounding=toward_positive", [1 + Fraction(1, 16)], 1.125),
    # 1 swallows half ulps one by one, but not the sum of a chunk of them.
    ("fp16", [1.0, ULP, ULP, ULP], 1.0), ("fp16_chunk2", [1.0, ULP, ULP, ULP], 1 + 2**-10),
    # Absent taps count for the boundary: with them, 1 and one ulp share the first chunk.
    ("fp16_chunk2", [1.0, None, ULP, ULP], 1 + 2**-10),
    ("fp16_chunk2", [1.0, None, ULP, None, ULP], 1.0),
    # The short last chunk is added as well, and each chunk is rounded to outer.
    ("fp16_chunk2", [1.0, 1.0, 1.0], 3.0), ("fp16_chunk2:outer=e5m2", [1.0, Fraction(1, 8)], 1.0),
    # The outer accumulator holds -0, by underflow; a chunk that sums to +0 is added to it.
    ("fp32_chunk1:outer=e5m2", [-Fraction(1, 2**30)], -0.0),
    ("fp32_chunk1:outer=e5m2", [-Fraction(1, 2**30), None], 0.0),
])  # fmt: skip
def test_accumulate_follows_the_contract(acc: str, products: list, want: float) -> None:
    assert_sum(acc, products, want)


def test_accumulate_adds_the_bias_in_the_outermost_accumulator() -> None:
    bias = 2.0**-11 + 2.0**-20
    assert_sum("fp16", [1.0], 1 + 2**-10, bias=bias)
    assert_sum("fp16", [], np.float16(bias), bias=bias)
    assert_sum("e5m2_chunk4:outer=fp32", [1.0], 1 + bias, bias=bias)
    assert_sum("fp16", [], 0.0, bias=-0.0)


def test_accumulate_keys_its_draws_by_site_row_col_and_k() -> None:
    name = "e5m4_chunk2:stochastic:product=e5m5:product_rounding=stochastic:outer=e5m3:bits=5"
    third = Fraction(1, 3)

    def rounded(value: Fraction, spec: str, site: int, k: int) -> Fraction:
        bits = draw(5, site, 3, 4, k, 5, "fast")
        fmt = Accumulator(spec).fmt
        return Fraction(round_scalar(value, fmt, "stochastic", draw=bits, random_bits=5))

    total = Fraction(0)
    for index, chunk in enumerate(([0, 1], [3])):
        inner = Fraction(0)
        for k in chunk:
            inner = rounded(inner + rounded(third, "e5m5", SITE_PRODUCT, k), "e5m4", SITE_SUM, k)
        total = rounded(total + inner, "e5m3", SITE_OUTER, index)
    total = rounded(total + Fraction(float(third)), "e5m3", SITE_BIAS, 0)
    assert_sum(name, [third, third, None, third], total, bias=float(third))


@pytest.mark.parametrize("kind", ["plain", "wide", "cancelling"])
def test_matmul_in_fp32_equals_float32_additions_of_exact_products(kind, rng):
    # bfloat16 operands: the product has 16 bits, so float32 holds it and rounds the sum once.
    a, b = (operand(kind, shape, rng) for shape in ((3, 40), (40, 2)))
    a, b = ((x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for x in (a, b))
    total = np.zeros((3, 2), dtype=np.float32)
    for k in range(40):
        total = total + a[:, k, None] * b[k]
    assert_bit_equal(exact.matmul(a, b, None, Accumulator("fp32")), total)


E25 = Fraction(1, 2**25)


@pytest.mark.parametrize("acc, products, want", [
    ("e6m9", [], 0.0), ("e6m9", [None, None, None], 0.0),
    # In sequence 1024 + 1 stays 1024 each time; in pairs the ones add up first.
    ("e6m9", [1024.0, 0.0, 1.0, 1.0], 1026.0), ("e6m9", [1024.0, 1.0, 1.0, 1.0], 1026.0),
    # A last odd node passes up unchanged: (((a b) (c d)) e).
    ("e6m9", [1024.0, 0.0, 0.0, 0.0, 3.0], 1028.0),
    # Three pairs leave the last one over, which passes up: the sum is ((a b) (c d)) (e f), and
    # not (a b) ((c d) (e f)).
    ("e6m9", [1024.0, 0.0, 1.0, 0.0, 1.0, 0.0], 1024.0),
    # Absent taps keep their place: 1024 is paired with an absent one, then meets 1 + 1.
    ("e6m9", [1024.0, None, 1.0, 1.0], 1026.0),
    ("e6m9", [None, None, 1024.0, 1.0, None, 1.0], 1024.0),
    # A product alone is rounded, and two products meet before either is.
    ("e6m9", [Fraction(2049)], 2048.0), ("e6m9", [Fraction(2049), Fraction(-2048)], 1.0),
    # Nodes overflow.
    ("e6m9", [INF, 1.0, -INF], NAN), ("fp16", [65504.0, -65504.0] * 2, 0.0),
    ("fp16", [65504.0] * 2 + [-65504.0] * 2, NAN), ("e5m10_sat", [65504.0] * 2 + [-65504.0], 0.0),
    # Every chunk is a tree.
    ("e6m9_chunk3:outer=fp32", [1.0, 1.0, 1024.0, 1.0, 1.0, 1024.0], 2052.0),
    # Zero has the sign of the contract.
    ("e6m9", [-0.0, -0.0], -0.0), ("e6m9", [-0.0], 0.0),
    ("e6m9:toward_negative", [-0.0, None], -0.0), ("e6m9", [-0.0, -0.0, None, None], -0.0),
    ("e6m9:toward_negative", [1.0, -1.0], -0.0), ("e6m9", [1.0, -1.0], 0.0),
])  # fmt: skip
def test_pairwise_is_a_tree_over_the_positions(acc: str, products: list, want: float) -> None:
    assert_sum(f"{acc}:order=pairwise", products, want)


def test_pairwise_draws_where_the_right_half_begins() -> None:
    acc = Accumulator("e5m2", "stochastic", order="pairwise", chunk=8, outer="fp32")
    products = [Fraction(9, 8)] * 7

    def rounded(value: float | Fraction, k: int) -> float:
        return round_scalar(
            value, acc.fmt, "stochastic", draw=draw(5, SITE_SUM, 3, 4, k, 8), random_bits=8
        )

    # The second chunk, positions 8 .. 14.
    pairs = [rounded(2 * Fraction(9, 8), 8 + k) for k in (1, 3, 5)]
    pairs.append(rounded(Fraction(9, 8), 8 + 7))
    left, right = rounded(pairs[0] + pairs[1], 8 + 2), rounded(pairs[2] + pairs[3], 8 + 6)
    want = rounded(left + right, 8 + 4)
    assert exact.accumulate([None] * 8 + products, acc, **KEY) == want


def test_compensated_follows_kahan() -> None:
    # numpy.float16 does every operation in fp16, rounded to nearest even.
    rng = np.random.default_rng(1)
    values = rng.standard_normal(300).astype(np.float16)
    total = correction = np.float16(0)
    for p in values:
        y = p - correction
        following = total + y
        correction = (following - total) - y
        total = following
    products = [exact.product(float(p), 1.0) for p in values]
    assert_sum("fp16:order=compensated", products, total)
    true = float(sum(Fraction(float(p)) for p in values))
    plain = exact.accumulate(products, Accumulator("fp16"))
    assert abs(float(total) - true) < abs(plain - true)


@pytest.mark.parametrize("acc, products, want", [
    ("fp16", [1024.0] + [0.25] * 8, 1026.0), ("fp16", [], 0.0), ("fp16", [None, -0.0], 0.0),
    # The sum overflows, its error is infinite, and so the next addition is inf - inf.
    ("fp16", [65504.0, 65504.0], INF), ("fp16", [65504.0, 65504.0, 1.0], NAN), ("fp16", [INF], INF),
    ("fp16", [INF, 1.0], NAN), ("fp16", [NAN, 1.0], NAN),
    # Each chunk starts without an error.
    ("fp16_chunk5:outer=fp32", [2048.0, 0.75, 0.75, 0.75, 0.5] * 2, 4100.0),
])  # fmt: skip
def test_compensated_is_literal(acc: str, products: list, want: float) -> None:
    assert_sum(f"{acc}:order=compensated", products, want)


FOUR, DOWN = (f"fp32{mode}:block=4:aligned_bits=3" for mode in ("", ":toward_negative"))


@pytest.mark.parametrize("acc, products, want", [
    (FOUR, [], 0.0), (FOUR, [None] * 5, 0.0),
    # Each addend is cut by itself at 2^-3 of the leading bit, toward zero: beside 1, 15/16
    # becomes 7/8.
    (FOUR, [8.0, Fraction(15, 8)], 9.0), (FOUR, [-8.0, -Fraction(15, 8)], -9.0),
    (FOUR, [8.0, Fraction(7, 8), Fraction(7, 8)], 8.0),
    # The block of four ends; from then on the sum's own leading bit decides.
    (FOUR, [1.0, 0.0, 0.0, 0.0, 0.125, 0.0625], 1.125),
    # A tap that is absent counts as a place, not as an addend.
    (FOUR, [1.0, None, None, None, 0.125], 1.125), (FOUR, [8.0, None, None, 0.5, 0.5], 8.0),
    # The leading bits cancel, but what was cut stays lost.
    (FOUR, [8.0, -8.0, 0.75], 0.0), (FOUR, [8.0, -8.0, 1.25], 1.0),
    (FOUR, [INF, 1.0], INF), (FOUR, [INF, -INF], NAN), (FOUR, [NAN], NAN),
    (FOUR, [-0.0, -0.0], 0.0), (DOWN, [0.0, 0.0], 0.0), (DOWN, [0.0, -0.0], -0.0),
    (DOWN, [1.0, -1.0], -0.0), (DOWN, [None, None], 0.0),
    # A block without taps does not cut the sum: 1.125 has three places below its leading bit,
    # of which a block would keep one.
    ("fp32:block=1:aligned_bits=3", [1.125, None, None, None], 1.125),
    ("fp32:block=1:aligned_bits=1", [1.125, None], 1.0),
    # Of 1 + 3 * 2^-11 each small addend alone would be lost to e5m9; together they are a tie
    # and a half. The exact sum of a block is rounded once.
    ("e5m9:block=4:aligned_bits=12", [1.0, ULP, ULP, ULP], 1 + 2.0**-9),
    ("e5m9:block=2:aligned_bits=12", [1.0, ULP, ULP, ULP], 1.0),
    ("e5m9:toward_zero:block=4:aligned_bits=12", [1.0, ULP, ULP, ULP], 1.0),
    # Every chunk is exact; their sum in fp32 rounds as the outer sum does.
    ("e8m13_chunk1:toward_zero:outer=fp32:block=1:aligned_bits=13", [1.0, 3 * E25], 1.0),
    ("e8m13_chunk1:toward_zero:outer=fp32:outer_rounding=nearest_even:block=1:aligned_bits=13",
     [1.0, 3 * E25], 1 + 2.0**-23),
])  # fmt: skip
def test_aligned_blocks_cut_every_addend(acc: str, products: list, want: float) -> None:
    assert_sum(acc, products, want)
