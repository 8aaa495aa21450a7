"""The exact sums against the contract, case by case, and against independent arithmetic."""

import math
from fractions import Fraction

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.reference import exact
from lpkernels.rng import SITE_BIAS, SITE_OUTER, SITE_PRODUCT, SITE_SUM, draw
from lpkernels.rounding import round_scalar
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.operands import operand

INF, NAN = math.inf, math.nan
TINY = Fraction(1, 2**200)
DIRECTED = ("toward_zero", "toward_positive", "toward_negative")


def same(got: float, want: float) -> bool:
    return repr(got) == repr(want)


def accumulate(products: list, spec: str, rounding: str = "nearest_even", **options) -> float:
    bias = options.pop("bias", None)
    return exact.accumulate(products, Accumulator(spec, rounding, **options), bias=bias)


@each(
    "products, want",
    [
        ([], 0.0),
        ([None, None], 0.0),
        ([1.0, Fraction(1, 2**11)], 1.0),
        ([1.0, Fraction(3, 2**11)], 1 + 2**-9),
        # The sticky bit lies 189 places below the tie.
        ([1.0, Fraction(1, 2**11) + TINY], 1 + 2**-10),
        ([Fraction(1, 2**11) + TINY, 1.0], 1.0),
        ([1.0, Fraction(1, 2**11), Fraction(1, 2**11)], 1.0),
        ([65504.0, 15.0], 65504.0),
        ([65504.0, 16.0], INF),
        ([65504.0, 16.0, -65504.0], INF),
        ([INF, -INF], NAN),
        ([INF, INF, Fraction(-(2**200))], INF),
        ([NAN, 1.0], NAN),
        ([Fraction(2**300), -INF], NAN),
    ],
)
def test_accumulate_rounds_once_at_each_step(products: list, want: float) -> None:
    assert same(accumulate(products, "fp16"), want)


@each("rounding", DIRECTED)
def test_accumulate_stops_a_finite_sum_where_the_direction_says(rounding: str) -> None:
    got = [accumulate([Fraction(sign * 2**300)], "fp16", rounding) for sign in (1, -1)]
    away = {"toward_zero": (0, 0), "toward_positive": (1, 0), "toward_negative": (0, 1)}[rounding]
    assert got == [INF if away[0] else 65504.0, -INF if away[1] else -65504.0]
    assert accumulate([INF], "fp16", rounding) == INF


@each(
    "spec, products, want",
    [
        ("e5m10_sat", [INF, -INF], -65504.0),
        ("e5m10_sat", [INF, -1.0], 65504.0),
        ("e4m3fn", [464.0], 448.0),
        ("e4m3fn", [464.5], NAN),
        ("e4m3fn", [INF], NAN),
        ("fixed8_f0", [INF, -1.0], 126.0),
        ("fixed8_f0_wrap", [INF], NAN),
        ("fixed8_f0_wrap", [Fraction(2**90 + 2**7)], -128.0),
        ("fixed8_f0_wrap", [Fraction(2**90 + 2**7), -1.0], 127.0),
    ],
)
def test_accumulate_applies_the_overflow_rule_at_every_step(
    spec: str, products: list, want: float
) -> None:
    assert same(accumulate(products, spec), want)


@each(
    "spec, rounding, products, want",
    [
        ("fp16", "nearest_even", [-0.0], 0.0),
        ("fp16", "nearest_even", [1.0, -1.0], 0.0),
        ("fp16", "nearest_even", [-TINY], -0.0),
        ("fp16", "nearest_even", [-TINY, -0.0], -0.0),
        ("fp16", "nearest_even", [-TINY, 0.0], 0.0),
        ("fp16", "nearest_even", [-TINY, None], -0.0),
        ("fp16", "toward_negative", [0.0], 0.0),
        ("fp16", "toward_negative", [-0.0], -0.0),
        ("fp16", "toward_negative", [1.0, -1.0], -0.0),
        ("fixed8_f0", "toward_negative", [1.0, -1.0], 0.0),
        ("fixed8_f0", "nearest_even", [-TINY], 0.0),
    ],
)
def test_accumulate_gives_zero_the_sign_of_the_contract(
    spec: str, rounding: str, products: list, want: float
) -> None:
    assert same(accumulate(products, spec, rounding), want)


def test_accumulate_rounds_and_overflows_products_first() -> None:
    assert accumulate([Fraction(2**20)] * 2, "fp32", product="e4m3fn_sat") == 896.0
    assert accumulate([1 + Fraction(1, 16)], "fp32", product="e4m3fn") == 1.0
    assert (
        accumulate(
            [1 + Fraction(1, 16)], "fp32", product="e4m3fn", product_rounding="toward_positive"
        )
        == 1.125
    )


def test_accumulate_starts_a_chunk_at_every_multiple_of_its_length() -> None:
    ulp = Fraction(1, 2**11)
    # 1 swallows half ulps one by one, but not the sum of a chunk of them.
    assert accumulate([1.0, ulp, ulp, ulp], "fp16") == 1.0
    assert accumulate([1.0, ulp, ulp, ulp], "fp16", chunk=2) == 1 + 2**-10
    # Absent taps count for the boundary: with them, 1 and one ulp share the first chunk.
    assert accumulate([1.0, None, ulp, ulp], "fp16", chunk=2) == 1 + 2**-10
    assert accumulate([1.0, None, ulp, None, ulp], "fp16", chunk=2) == 1.0
    # The short last chunk is added as well, and each chunk is rounded to outer.
    assert accumulate([1.0, 1.0, 1.0], "fp16", chunk=2) == 3.0
    assert accumulate([1.0, Fraction(1, 8)], "fp16", chunk=2, outer="e5m2") == 1.0


def test_accumulate_adds_every_chunk_of_absent_taps_as_plus_zero() -> None:
    # The outer accumulator holds -0, by underflow; a chunk that sums to +0 is added to it.
    options = {"chunk": 1, "outer": "e5m2"}
    assert same(accumulate([-Fraction(1, 2**30)], "fp32", **options), -0.0)
    assert same(accumulate([-Fraction(1, 2**30), None], "fp32", **options), 0.0)


def test_accumulate_adds_the_bias_in_the_outermost_accumulator() -> None:
    bias = 2.0**-11 + 2.0**-20
    assert accumulate([1.0], "fp16", bias=bias) == 1 + 2**-10
    assert accumulate([], "fp16", bias=bias) == float(np.float16(bias))
    assert accumulate([1.0], "e5m2", chunk=4, outer="fp32", bias=bias) == 1 + bias
    assert same(accumulate([], "fp16", bias=-0.0), 0.0)


def test_accumulate_keys_its_draws_by_site_row_col_and_k() -> None:
    acc = Accumulator(
        "e5m4",
        "stochastic",
        product="e5m5",
        product_rounding="stochastic",
        chunk=2,
        outer="e5m3",
        random_bits=5,
    )
    third = Fraction(1, 3)

    def rounded(value: Fraction, spec: str, site: int, k: int) -> Fraction:
        bits = draw(7, site, 3, 4, k, 5, "fast")
        fmt = Accumulator(spec).fmt
        return Fraction(round_scalar(value, fmt, "stochastic", draw=bits, random_bits=5))

    total = Fraction(0)
    for index, chunk in enumerate(([0, 1], [3])):
        inner = Fraction(0)
        for k in chunk:
            inner = rounded(inner + rounded(third, "e5m5", SITE_PRODUCT, k), "e5m4", SITE_SUM, k)
        total = rounded(total + inner, "e5m3", SITE_OUTER, index)
    total = rounded(total + third, "e5m3", SITE_BIAS, 0)
    got = exact.accumulate(
        [third, third, None, third], acc, seed=7, row=3, col=4, bias=float(third)
    )
    assert got == total


def test_product_is_exact() -> None:
    assert exact.product(2.0**-149, 2.0**-149) == Fraction(1, 2**298)
    assert same(exact.product(-0.0, 3.0), -0.0)
    assert same(exact.product(INF, 0.0), NAN)
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
