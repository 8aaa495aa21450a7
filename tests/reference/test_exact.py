"""The exact sums against the contract, case by case, and against independent arithmetic."""

import math
from fractions import Fraction

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.reference import exact
from lpkernels.rng import SITE_BIAS, SITE_OUTER, SITE_PRODUCT, SITE_SUM, draw
from lpkernels.rounding import round_scalar
from tests.compare import assert_bit_equal
from tests.loops import each, rows
from tests.support.operands import operand
from tests.support.worked_sums import assert_sum

INF, NAN = math.inf, math.nan
TINY, ULP, HUGE = Fraction(1, 2**200), Fraction(1, 2**11), Fraction(2**300)


@rows(
    "acc, products, want",
    # Every step rounds once.
    ("fp16", [], 0.0),
    ("fp16", [None, None], 0.0),
    ("fp16", [1.0, ULP], 1.0),
    ("fp16", [1.0, 3 * ULP], 1 + 2**-9),
    # The sticky bit lies 189 places below the tie.
    ("fp16", [1.0, ULP + TINY], 1 + 2**-10),
    ("fp16", [ULP + TINY, 1.0], 1.0),
    ("fp16", [1.0, ULP, ULP], 1.0),
    ("fp16", [65504.0, 15.0], 65504.0),
    ("fp16", [65504.0, 16.0], INF),
    ("fp16", [65504.0, 16.0, -65504.0], INF),
    ("fp16", [INF, -INF], NAN),
    ("fp16", [INF, INF, -HUGE], INF),
    ("fp16", [NAN, 1.0], NAN),
    ("fp16", [HUGE, -INF], NAN),
    # A finite sum stops where the direction says, an infinite one does not.
    ("fp16:toward_zero", [HUGE], 65504.0),
    ("fp16:toward_zero", [-HUGE], -65504.0),
    ("fp16:toward_zero", [INF], INF),
    ("fp16:toward_positive", [HUGE], INF),
    ("fp16:toward_positive", [-HUGE], -65504.0),
    ("fp16:toward_positive", [INF], INF),
    ("fp16:toward_negative", [HUGE], 65504.0),
    ("fp16:toward_negative", [-HUGE], -INF),
    ("fp16:toward_negative", [INF], INF),
    # Every step overflows as the format says.
    ("e5m10_sat", [INF, -INF], -65504.0),
    ("e5m10_sat", [INF, -1.0], 65504.0),
    ("e4m3fn", [464.0], 448.0),
    ("e4m3fn", [464.5], NAN),
    ("e4m3fn", [INF], NAN),
    ("fixed8_f0", [INF, -1.0], 126.0),
    ("fixed8_f0_wrap", [INF], NAN),
    ("fixed8_f0_wrap", [Fraction(2**90 + 2**7)], -128.0),
    ("fixed8_f0_wrap", [Fraction(2**90 + 2**7), -1.0], 127.0),
    # Zero has the sign of the contract.
    ("fp16", [-0.0], 0.0),
    ("fp16", [1.0, -1.0], 0.0),
    ("fp16", [-TINY], -0.0),
    ("fp16", [-TINY, -0.0], -0.0),
    ("fp16", [-TINY, 0.0], 0.0),
    ("fp16", [-TINY, None], -0.0),
    ("fp16:toward_negative", [0.0], 0.0),
    ("fp16:toward_negative", [-0.0], -0.0),
    ("fp16:toward_negative", [1.0, -1.0], -0.0),
    ("fixed8_f0:toward_negative", [1.0, -1.0], 0.0),
    ("fixed8_f0", [-TINY], 0.0),
    # Products are rounded, and overflow, first.
    ("fp32:product=e4m3fn_sat", [Fraction(2**20)] * 2, 896.0),
    ("fp32:product=e4m3fn", [1 + Fraction(1, 16)], 1.0),
    ("fp32:product=e4m3fn:product_rounding=toward_positive", [1 + Fraction(1, 16)], 1.125),
    # 1 swallows half ulps one by one, but not the sum of a chunk of them.
    ("fp16", [1.0, ULP, ULP, ULP], 1.0),
    ("fp16_chunk2", [1.0, ULP, ULP, ULP], 1 + 2**-10),
    # Absent taps count for the boundary: with them, 1 and one ulp share the first chunk.
    ("fp16_chunk2", [1.0, None, ULP, ULP], 1 + 2**-10),
    ("fp16_chunk2", [1.0, None, ULP, None, ULP], 1.0),
    # The short last chunk is added as well, and each chunk is rounded to outer.
    ("fp16_chunk2", [1.0, 1.0, 1.0], 3.0),
    ("fp16_chunk2:outer=e5m2", [1.0, Fraction(1, 8)], 1.0),
    # The outer accumulator holds -0, by underflow; a chunk that sums to +0 is added to it.
    ("fp32_chunk1:outer=e5m2", [-Fraction(1, 2**30)], -0.0),
    ("fp32_chunk1:outer=e5m2", [-Fraction(1, 2**30), None], 0.0),
)
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


def test_product_is_exact() -> None:
    assert exact.product(2.0**-149, 2.0**-149) == Fraction(1, 2**298)
    assert math.copysign(1, exact.product(-0.0, 3.0)) == -1
    assert math.isnan(exact.product(INF, 0.0))
    assert exact.product(-INF, 2.0) == -INF


@each("kind", ["plain", "wide", "cancelling"])
def test_matmul_in_fp32_equals_float32_additions_of_exact_products(
    kind: str, rng: np.random.Generator
) -> None:
    # bfloat16 operands: the product has 16 bits, so float32 holds it and rounds the sum once.
    a, b = (operand(kind, shape, rng) for shape in ((3, 40), (40, 2)))
    a, b = ((x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for x in (a, b))
    total = np.zeros((3, 2), dtype=np.float32)
    for k in range(40):
        total = total + a[:, k, None] * b[k]
    assert_bit_equal(exact.matmul(a, b, None, Accumulator("fp32")), total)


def test_matmul_in_fp16_equals_float16_arithmetic(rng: np.random.Generator) -> None:
    a, b = (operand("plain", shape, rng).astype(np.float16) for shape in ((3, 40), (40, 2)))
    total = np.zeros((3, 2), dtype=np.float16)
    for k in range(40):
        total = total + a[:, k, None] * b[k]
    got = exact.matmul(
        a.astype(np.float32), b.astype(np.float32), None, Accumulator("fp16", product="fp16")
    )
    assert_bit_equal(got, total.astype(np.float32))
