"""Trees, Kahan's sums and aligned blocks against the contract, case by case."""

import math
from fractions import Fraction

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.reference import exact, twin
from lpkernels.rng import SITE_SUM, draw
from lpkernels.rounding import round_scalar
from tests.compare import assert_bit_equal
from tests.loops import each

INF, NAN = math.inf, math.nan


def same(got: float, want: float) -> bool:
    return repr(got) == repr(want)


def accumulate(products: list, fmt: str, rounding: str = "nearest_even", **options) -> float:
    return exact.accumulate(products, Accumulator(fmt, rounding, **options), row=3, col=4, seed=5)


# --- pairwise ---


@each(
    "products, want",
    [
        ([], 0.0),
        ([None, None, None], 0.0),
        # In sequence 1024 + 1 stays 1024 each time; in pairs the ones add up first.
        ([1024.0, 0.0, 1.0, 1.0], 1026.0),
        ([1024.0, 1.0, 1.0, 1.0], 1026.0),
        # A last odd node passes up unchanged: (((a b) (c d)) e).
        ([1024.0, 0.0, 0.0, 0.0, 3.0], 1028.0),
        # Three pairs leave the last one over, which passes up: the sum is ((a b) (c d)) (e f), and
        # not (a b) ((c d) (e f)).
        ([1024.0, 0.0, 1.0, 0.0, 1.0, 0.0], 1024.0),
        # Absent taps keep their place: 1024 is paired with an absent one, then meets 1 + 1.
        ([1024.0, None, 1.0, 1.0], 1026.0),
        ([None, None, 1024.0, 1.0, None, 1.0], 1024.0),
        # A product alone is rounded.
        ([Fraction(2049)], 2048.0),
        # Two products meet before either is rounded.
        ([Fraction(2049), Fraction(-2048)], 1.0),
        ([INF, 1.0, -INF], NAN),
    ],
)
def test_pairwise_is_a_tree_over_the_positions(products: list, want: float) -> None:
    assert same(accumulate(products, "e6m9", order="pairwise"), want)


def test_pairwise_nodes_overflow() -> None:
    assert accumulate([65504.0, -65504.0] * 2, "fp16", order="pairwise") == 0.0
    assert math.isnan(accumulate([65504.0] * 2 + [-65504.0] * 2, "fp16", order="pairwise"))
    assert accumulate([65504.0] * 2 + [-65504.0], "e5m10_sat", order="pairwise") == 0.0


def test_pairwise_starts_again_in_every_chunk() -> None:
    options = {"order": "pairwise", "chunk": 3, "outer": "fp32"}
    assert accumulate([1.0, 1.0, 1024.0, 1.0, 1.0, 1024.0], "e6m9", **options) == 2052.0


@each(
    "products, rounding, want",
    [
        ([-0.0, -0.0], "nearest_even", -0.0),
        ([-0.0], "nearest_even", 0.0),
        ([-0.0, None], "toward_negative", -0.0),
        ([-0.0, -0.0, None, None], "nearest_even", -0.0),
        ([1.0, -1.0], "toward_negative", -0.0),
        ([1.0, -1.0], "nearest_even", 0.0),
    ],
)
def test_pairwise_gives_zero_its_sign(products: list, rounding: str, want: float) -> None:
    assert same(accumulate(products, "e6m9", rounding, order="pairwise"), want)


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
    assert exact.accumulate([None] * 8 + products, acc, row=3, col=4, seed=5) == want


# --- compensated ---


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
    assert accumulate(products, "fp16", order="compensated") == float(total)
    true = float(sum(Fraction(float(p)) for p in values))
    assert abs(float(total) - true) < abs(accumulate(products, "fp16") - true)


@each(
    "products, want",
    [
        ([1024.0] + [0.25] * 8, 1026.0),
        ([], 0.0),
        ([None, -0.0], 0.0),
        # The sum overflows, its error is infinite, and so the next addition is inf - inf.
        ([65504.0, 65504.0], INF),
        ([65504.0, 65504.0, 1.0], NAN),
        ([INF], INF),
        ([INF, 1.0], NAN),
        ([NAN, 1.0], NAN),
    ],
)
def test_compensated_is_literal(products: list, want: float) -> None:
    assert same(accumulate(products, "fp16", order="compensated"), want)


def test_compensated_starts_each_chunk_without_an_error() -> None:
    options = {"order": "compensated", "chunk": 5, "outer": "fp32"}
    assert accumulate([2048.0, 0.75, 0.75, 0.75, 0.5] * 2, "fp16", **options) == 4100.0


# --- aligned blocks ---


@each(
    "products, want",
    [
        ([], 0.0),
        ([None] * 5, 0.0),
        # Each addend is cut by itself at 2^-3 of the leading bit, toward zero: beside 1, 15/16
        # becomes 7/8.
        ([8.0, Fraction(15, 8)], 9.0),
        ([-8.0, -Fraction(15, 8)], -9.0),
        ([8.0, Fraction(7, 8), Fraction(7, 8)], 8.0),
        # The block of four ends; from then on the sum's own leading bit decides.
        ([1.0, 0.0, 0.0, 0.0, Fraction(1, 8), Fraction(1, 16)], 1.125),
        # A tap that is absent counts as a place, not as an addend.
        ([1.0, None, None, None, Fraction(1, 8)], 1.125),
        ([8.0, None, None, Fraction(1, 2), Fraction(1, 2)], 8.0),
        # The leading bits cancel, but what was cut stays lost.
        ([8.0, -8.0, Fraction(3, 4)], 0.0),
        ([8.0, -8.0, Fraction(5, 4)], 1.0),
        ([INF, 1.0], INF),
        ([INF, -INF], NAN),
        ([NAN], NAN),
        ([-0.0, -0.0], 0.0),
    ],
)
def test_aligned_blocks_cut_every_addend(products: list, want: float) -> None:
    assert same(accumulate(products, "fp32", block=4, aligned_bits=3), want)


@each(
    "products, want",
    [([0.0, 0.0], 0.0), ([0.0, -0.0], -0.0), ([1.0, -1.0], -0.0), ([None, None], 0.0)],
)
def test_aligned_zero_sums_toward_negative(products: list, want: float) -> None:
    assert same(accumulate(products, "fp32", "toward_negative", block=4, aligned_bits=3), want)


def test_a_block_without_taps_does_not_cut_the_sum() -> None:
    # 1.125 has three places below its leading bit, of which a block would keep one.
    products = [Fraction(9, 8), None, None, None]
    acc = {"block": 1, "aligned_bits": 3}
    assert accumulate(products, "fp32", **acc) == 1.125
    assert accumulate([Fraction(9, 8), None], "fp32", block=1, aligned_bits=1) == 1.0


def test_aligned_block_rounds_its_exact_sum_once() -> None:
    # Of 1 + 3 * 2^-11 each small addend alone would be lost to e5m9; together they are a tie and a
    # half.
    products = [1.0, *[Fraction(1, 2**11)] * 3]
    assert accumulate(products, "e5m9", block=4, aligned_bits=12) == 1 + 2.0**-9
    assert accumulate(products, "e5m9", block=2, aligned_bits=12) == 1.0
    assert accumulate(products, "e5m9", "toward_zero", block=4, aligned_bits=12) == 1.0


def test_promotion_rounds_as_the_outer_sum_does() -> None:
    # Every chunk is exact; their sum in fp32 rounds to nearest even.
    products = [1.0, Fraction(3, 2**25)]
    how = {"chunk": 1, "outer": "fp32", "block": 1, "aligned_bits": 13}
    assert accumulate(products, "e8m13", "toward_zero", **how) == 1.0
    near = accumulate(products, "e8m13", "toward_zero", outer_rounding="nearest_even", **how)
    assert near == 1 + 2.0**-23


def test_hopper_preset_loses_small_products() -> None:
    """1 + n 2^-14 stays 1 inside a promotion of 128, and every later one counts."""
    a = np.full((1, 512), 2.0**-7, np.float32)
    a[0, 0] = 1.0
    b = np.full((512, 1), 2.0**-7, np.float32)
    b[0, 0] = 1.0
    acc = Accumulator("e8m13", "toward_zero", chunk=128, outer="fp32", block=32, aligned_bits=13)
    assert twin.matmul(a, b, None, acc)[0, 0] == 1 + 384 * 2.0**-14


@each("order", ["pairwise", "compensated"])
def test_whole_numbers_are_summed_exactly_in_any_order(order: str) -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(-8, 9, (5, 77)).astype(np.float32)
    b = rng.integers(-8, 9, (77, 4)).astype(np.float32)
    assert_bit_equal(twin.matmul(a, b, None, Accumulator("fp32", order=order)) + 0, a @ b + 0)
