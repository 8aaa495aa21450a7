"""Rounding: the contract's examples, the twins against each other, and properties of every mode."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpkernels.formats import (
    BF16,
    DLFLOAT16,
    E4M3,
    E5M2,
    FP4_E2M1,
    FP16,
    FP32,
    AffineFormat,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    parse_format,
)
from lpkernels.rounding import ROUNDINGS, check_rounding, round_array, round_scalar
from tests.cases import DETERMINISTIC, ROUND_FORMATS, hard_values, ids
from tests.compare import assert_bit_equal

INF, NAN = math.inf, math.nan


def round_one(value, fmt, rounding, *, draw=0, random_bits=32):
    """round_scalar, after checking that round_array makes the same bits of it."""
    one = round_scalar(value, fmt, rounding, draw=draw, random_bits=random_bits)
    draws = np.array(draw, dtype=np.uint32)
    many = round_array(np.array(float(value)), fmt, rounding, draws=draws, random_bits=random_bits)
    assert_bit_equal(many, np.array(one), f"round_array({value}, {fmt}, {rounding})")
    return one


# --- the contract, by example ---


@pytest.mark.parametrize(
    ("fmt", "value", "expected"),
    [
        # nearest_even, nearest_away, toward_zero, toward_positive, toward_negative, to_odd
        ("e4m3", 1.0625, (1.0, 1.125, 1.0, 1.125, 1.0, 1.125)),
        ("e4m3", -1.0625, (-1.0, -1.125, -1.0, -1.0, -1.125, -1.125)),
        ("e4m3", 1.1875, (1.25, 1.25, 1.125, 1.25, 1.125, 1.125)),
        ("e4m3", 1.05, (1.0, 1.0, 1.0, 1.125, 1.0, 1.125)),
        ("e4m3", 1.95, (2.0, 2.0, 1.875, 2.0, 1.875, 1.875)),
        ("e4m3", 2.0**-10, (0.0, 2.0**-9, 0.0, 2.0**-9, 0.0, 2.0**-9)),
        ("e4m3", -(2.0**-11), (-0.0, -0.0, -0.0, -0.0, -(2.0**-9), -(2.0**-9))),
        ("e4m3", 248.0, (INF, INF, 240.0, INF, 240.0, 240.0)),
        ("e4m3", 247.0, (240.0, 240.0, 240.0, INF, 240.0, 240.0)),
        ("e4m3", -300.0, (-INF, -INF, -240.0, -240.0, -INF, -240.0)),
        ("e4m3", 1e300, (INF, INF, 240.0, INF, 240.0, 240.0)),
        ("e4m3", INF, (INF,) * 6),
        ("e4m3_sat", 248.0, (240.0,) * 6),
        ("e4m3_sat", -INF, (-240.0,) * 6),
        ("e4m3_nan", 248.0, (NAN, NAN, 240.0, NAN, 240.0, 240.0)),
        ("e4m3_nan", -INF, (NAN,) * 6),
        ("e4m3fn", 464.0, (448.0, NAN, 448.0, NAN, 448.0, 448.0)),
        ("e4m3fn", 465.0, (NAN, NAN, 448.0, NAN, 448.0, 448.0)),
        ("e4m3fn_sat", 465.0, (448.0,) * 6),
        ("fp4_e2m1", 5.0, (4.0, 6.0, 4.0, 6.0, 4.0, 6.0)),
        ("fp4_e2m1", 7.0, (6.0,) * 6),
        ("fp4_e2m1", 0.25, (0.0, 0.5, 0.0, 0.5, 0.0, 0.5)),
        # Codes of e4m0 are exponents: 1 has the biased exponent 7, 2 has 8.
        ("e4m0", 1.5, (2.0, 2.0, 1.0, 2.0, 1.0, 1.0)),
        ("e4m0", 3.0, (2.0, 4.0, 2.0, 4.0, 2.0, 4.0)),
        ("e4m0", 2.0**-7, (0.0, 2.0**-6, 0.0, 2.0**-6, 0.0, 2.0**-6)),
        # Without subnormals the neighbours below min_normal are 0 and min_normal.
        ("e4m3_nosub", 2.0**-7, (0.0, 2.0**-6, 0.0, 2.0**-6, 0.0, 2.0**-6)),
        ("e4m3_nosub", 2.0**-7 * 1.01, (2.0**-6, 2.0**-6, 0.0, 2.0**-6, 0.0, 2.0**-6)),
        ("e4m3_nosub", -(2.0**-20), (-0.0, -0.0, -0.0, -0.0, -(2.0**-6), -(2.0**-6))),
        ("fp16", 65519.0, (65504.0, 65504.0, 65504.0, INF, 65504.0, 65504.0)),
        ("fp16", 65520.0, (INF, INF, 65504.0, INF, 65504.0, 65504.0)),
        ("fp16", 2.0**-25, (0.0, 2.0**-24, 0.0, 2.0**-24, 0.0, 2.0**-24)),
        ("fp16", 2.0**-25 * (1 + 2**-10), (2.0**-24, 2.0**-24, 0.0, 2.0**-24, 0.0, 2.0**-24)),
        ("fp32", 2.0**-1074, (0.0, 0.0, 0.0, 2.0**-149, 0.0, 2.0**-149)),
        (
            "e6m9",
            1 + 2.0**-10 + 2.0**-26,
            (1 + 2.0**-9,) * 2 + (1.0, 1 + 2.0**-9, 1.0, 1 + 2.0**-9),
        ),
        ("e4m3", -0.0, (-0.0,) * 6),
        ("e4m3", 0.0, (0.0,) * 6),
        ("fp4_e2m1", NAN, (NAN,) * 6),
        ("fixed8_f4", 0.09375, (0.125, 0.125, 0.0625, 0.125, 0.0625, 0.0625)),
        ("fixed8_f4", -0.09375, (-0.125, -0.125, -0.0625, -0.0625, -0.125, -0.0625)),
        ("fixed8_f4", -0.03125, (0.0, -0.0625, 0.0, 0.0, -0.0625, -0.0625)),
        ("fixed8_f4", -0.0, (0.0,) * 6),
        ("fixed8_f4", 8.0, (7.9375,) * 6),
        ("fixed8_f4", -1e300, (-8.0,) * 6),
        ("fixed8_f4", INF, (7.9375,) * 6),
        ("fixed8_f4", NAN, (NAN,) * 6),
        ("fixed8_f4_wrap", 8.0, (-8.0,) * 6),
        ("fixed8_f4_wrap", -8.0625, (7.9375,) * 6),
        ("fixed8_f4_wrap", 16.0, (0.0,) * 6),
        ("fixed8_f4_wrap", 1e300, (0.0,) * 6),
        ("fixed8_f4_wrap", INF, (NAN,) * 6),
        ("fixed24_f0_wrap", 2.0**52 + 2.0**23 + 5, (5 - 2.0**23,) * 6),
        ("ufixed8_f0", -0.75, (0.0,) * 6),
        ("ufixed8_f0_wrap", -0.75, (255.0, 255.0, 0.0, 0.0, 255.0, 255.0)),
        ("ufixed5_f-3", 100.0, (96.0, 104.0, 96.0, 104.0, 96.0, 104.0)),
        ("fixed8_f12", 0.5, (127 * 2.0**-12,) * 6),
    ],
)
def test_contract(fmt, value, expected):
    for rounding, want in zip(DETERMINISTIC, expected, strict=True):
        got = round_one(value, parse_format(fmt), rounding)
        assert_bit_equal(np.array(got), np.array(want), f"{rounding} of {value} in {fmt}")


@pytest.mark.parametrize(
    ("value", "draw", "expected"),
    [
        # One random bit over steps of 0.125: f = 1/4 moves away for draw 1 alone.
        (1.0, 1, 1.0),
        (1.0 + 0.125 * 0.25, 0, 1.0),
        (1.0 + 0.125 * 0.25, 1, 1.125),
        (1.0 + 0.125 * 0.2499, 1, 1.0),
        (1.0 + 0.125 * 0.75, 0, 1.125),
        (1.0 + 0.125 * 0.7499, 0, 1.0),
        (-1.0 - 0.125 * 0.25, 1, -1.125),
        (-1.0 - 0.125 * 0.25, 0, -1.0),
        (248.0, 1, INF),
        (248.0, 0, 240.0),
        (-INF, 0, -INF),
        (2.0**-11, 1, 2.0**-9),
        (-(2.0**-11), 0, -0.0),
        (NAN, 0, NAN),
    ],
)
def test_stochastic_contract_with_one_bit(value, draw, expected):
    got = round_one(value, E4M3, "stochastic", draw=draw, random_bits=1)
    assert_bit_equal(np.array(got), np.array(expected))


def test_stochastic_of_a_value_just_above_a_value_moves_only_with_enough_bits():
    value = 1.0 + 2.0**-27
    assert round_one(value, E5M2, "stochastic", draw=2**8 - 1, random_bits=8) == 1.0
    assert round_one(value, E5M2, "stochastic", draw=2**24 - 1, random_bits=24) == 1.25
    assert round_one(value, E5M2, "stochastic", draw=2**24 - 2, random_bits=24) == 1.0


# --- the two implementations ---


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", ROUND_FORMATS, ids=ids)
def test_array_equals_scalar(fmt, rounding, rng):
    x = rng.choice(hard_values(fmt, count=50), 250)
    for random_bits in (1, 7, 32) if rounding == "stochastic" else (32,):
        draws = rng.integers(0, 2**random_bits, x.shape, dtype=np.uint64).astype(np.uint32)
        got = round_array(x, fmt, rounding, draws=draws, random_bits=random_bits)
        want = [
            round_scalar(float(v), fmt, rounding, draw=int(d), random_bits=random_bits)
            for v, d in zip(x, draws, strict=True)
        ]
        assert_bit_equal(got, np.array(want))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3, 4)])
def test_array_keeps_the_shape_and_takes_any_strides(shape):
    x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape).T * 0.3
    draws = np.zeros((), dtype=np.uint32)
    for rounding in ROUNDINGS:
        rounded = round_array(x, E4M3, rounding, draws=draws)
        assert rounded.shape == x.shape
        assert rounded.dtype == np.float64


# --- properties ---

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.one_of(
    FINITE,
    st.floats(-1e3, 1e3),
    st.floats(width=16),
    st.floats(width=32),
    st.fractions(-500, 500),
).filter(lambda v: not math.isnan(v))
FORMATS = st.sampled_from(ROUND_FORMATS)
MODES = st.sampled_from(ROUNDINGS)
DRAWS = st.integers(0, 255)


@given(NUMBERS, FORMATS, MODES, DRAWS)
def test_rounding_again_changes_nothing(value, fmt, rounding, draw):
    once = round_scalar(value, fmt, rounding, draw=draw, random_bits=8)
    again = round_scalar(once, fmt, rounding, draw=255 - draw, random_bits=8)
    assert_bit_equal(np.array(again), np.array(once))


@given(NUMBERS, NUMBERS, FORMATS, MODES, DRAWS)
def test_rounding_keeps_order(a, b, fmt, rounding, draw):
    if fmt.overflow == "wrap":
        return
    low, high = (round_scalar(v, fmt, rounding, draw=draw, random_bits=8) for v in sorted((a, b)))
    assert math.isnan(low) or math.isnan(high) or low <= high


@given(NUMBERS, FORMATS, MODES, DRAWS)
def test_rounding_mirrors(value, fmt, rounding, draw):
    if isinstance(fmt, FixedFormat):
        return
    mirror = {"toward_positive": "toward_negative", "toward_negative": "toward_positive"}
    plus = round_scalar(value, fmt, rounding, draw=draw, random_bits=8)
    minus = round_scalar(-value, fmt, mirror.get(rounding, rounding), draw=draw, random_bits=8)
    # A Fraction has no negative zero to mirror.
    if value != 0 or isinstance(value, float):
        assert_bit_equal(np.abs(np.array(minus)), np.abs(np.array(plus)))
        assert math.isnan(plus) or math.copysign(1, plus) == -math.copysign(1, minus)


@given(NUMBERS, st.sampled_from([f for f in ROUND_FORMATS if f.bits <= 8]), MODES, DRAWS)
def test_result_is_a_neighbour(value, fmt, rounding, draw):
    result = round_scalar(value, fmt, rounding, draw=draw, random_bits=8)
    values = fmt.values()
    if not math.isfinite(result):
        assert abs(value) > abs(fmt.max)
        return
    assert result in values
    if values[0] <= value <= values[-1]:
        below = values[np.searchsorted(values, float(value), side="right") - 1]
        above = values[np.searchsorted(values, float(value), side="left") % len(values)]
        assert result in (below, above) or Fraction(float(value)) != Fraction(value)


@given(st.fractions(-100, 100), st.sampled_from([E4M3, E5M2, FP4_E2M1]), MODES, DRAWS)
def test_rounding_to_odd_first_is_innocuous(value, fmt, rounding, draw):
    wide = FloatFormat(8, 16)
    odd = round_scalar(value, wide, "to_odd")
    # The mantissa of the wide format reaches 2 + 8 bits past the narrow one's last bit.
    assert_bit_equal(
        np.array(round_scalar(odd, fmt, rounding, draw=draw, random_bits=8)),
        np.array(round_scalar(value, fmt, rounding, draw=draw, random_bits=8)),
    )


@pytest.mark.parametrize("random_bits", [1, 2, 3, 8])
@pytest.mark.parametrize("fmt", [E4M3, DLFLOAT16, FloatFormat(4, 0), FixedFormat(8, 4)], ids=ids)
def test_stochastic_frequency_over_all_draws_is_the_rule(fmt, random_bits, rng):
    draws = np.arange(2**random_bits, dtype=np.uint32)
    for fraction in [Fraction(i, 37) for i in range(37)] + [Fraction(1, 2**9), Fraction(511, 512)]:
        # 1 and 1 + step are neighbours in all four.
        step = Fraction(fmt.epsilon)
        value = float(1 + fraction * step)
        exact = (Fraction(value) - 1) / step
        got = round_array(
            np.full(draws.shape, value), fmt, "stochastic", draws=draws, random_bits=random_bits
        )
        assert set(got.tolist()) <= {1.0, float(1 + step)}
        moved = int((got > 1).sum())
        assert moved == math.floor(exact * 2**random_bits + Fraction(1, 2))


def test_stochastic_reaches_exactly_the_two_neighbours():
    draws = np.arange(256, dtype=np.uint32)
    values = E4M3.values()
    for low, high in itertools.pairwise(values):
        x = np.full(256, low + (high - low) * 0.3)
        assert set(round_array(x, E4M3, "stochastic", draws=draws, random_bits=8)) == {low, high}


def test_stochastic_sees_32_bits_below_the_step_and_no_more():
    # The top draw rounds a value of 2^-33 steps up, and no smaller value.
    fmt, top = FloatFormat(4, 3), np.array([2**32 - 1] * 4, dtype=np.uint32)
    step = 2.0 ** (fmt.emin - fmt.man_bits)
    x = step * 2.0 ** np.array([-33.0, -34.0, -60.0, -800.0])
    rounded = round_array(x, fmt, "stochastic", draws=top)
    assert_bit_equal(rounded, np.array([step, 0.0, 0.0, 0.0]))


def test_stochastic_without_subnormals_is_random_below_min_normal():
    fmt = FloatFormat(5, 2, subnormals=False)
    draws = np.arange(256, dtype=np.uint32)
    x = np.full(256, fmt.min_normal * 0.75)
    rounded = round_array(x, fmt, "stochastic", draws=draws, random_bits=8)
    assert set(rounded) == {0.0, fmt.min_normal}
    assert (rounded > 0).sum() == 192


def test_every_value_of_a_format_stays_in_every_mode():
    for fmt in ROUND_FORMATS:
        if fmt.bits <= 16:
            values = fmt.values()
            for rounding in ROUNDINGS:
                kept = round_array(values, fmt, rounding, draws=np.uint32(2**32 - 1))
                assert_bit_equal(kept, values, f"{fmt} {rounding}")


def test_fp32_keeps_float32_and_bf16_keeps_its_own(rng):
    x = rng.integers(0, 2**32, 1000, dtype=np.uint32).view(np.float32)
    x = x[np.isfinite(x)].astype(np.float64)
    for rounding in DETERMINISTIC:
        assert_bit_equal(round_array(x, FP32, rounding), x)
    assert_bit_equal(round_array(np.array([1.0 + 2**-8]), BF16, "nearest_even"), np.array([1.0]))


# --- refusals ---


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: round_scalar(1.0, FP16, "nearest"),
            ValueError,
            "'nearest' does not say where ties go; use 'nearest_even' or 'nearest_away'",
        ),
        (lambda: round_scalar(1.0, FP16, "up"), ValueError, "one of nearest_even, .*; got 'up'"),
        (lambda: check_rounding(None), TypeError, "rounding must be a str.*got None"),
        (lambda: round_scalar(1.0, "fp16", "to_odd"), TypeError, "FloatFormat or a FixedFormat, g"),
        (lambda: round_scalar(1.0, AffineFormat(8), "to_odd"), TypeError, "use quantize"),
        (
            lambda: round_array(np.ones(2), BlockFormat("e4m3"), "to_odd"),
            TypeError,
            "round_array: fmt must be a FloatFormat or a FixedFormat",
        ),
        (
            lambda: round_scalar(1.0, FP16, "stochastic", draw=4, random_bits=2),
            ValueError,
            r"draw must be in 0\.\.3 for random_bits=2, got 4",
        ),
        (
            lambda: round_scalar(1.0, FP16, "stochastic", random_bits=33),
            ValueError,
            r"random_bits must be in 1\.\.32, got 33",
        ),
        (
            lambda: round_array(np.ones(2), FP16, "stochastic", random_bits=0),
            ValueError,
            r"round_array: random_bits must be in 1\.\.32, got 0",
        ),
        (
            lambda: round_array(np.ones(2, np.float32), FP16, "to_odd"),
            TypeError,
            r"x must be float64, got float32; use x\.astype",
        ),
        (lambda: round_array(np.ones(2), FP16, "stochastic"), TypeError, "needs draws.*got None"),
        (
            lambda: round_array(np.ones(2), FP16, "stochastic", draws=np.ones(2)),
            TypeError,
            "draws must be integers, got float64",
        ),
        (
            lambda: round_array(
                np.ones(2), FP16, "stochastic", draws=np.array([0, 9]), random_bits=3
            ),
            ValueError,
            r"draws must be in 0\.\.7 for random_bits=3, got 0\.\.9",
        ),
    ],
)
def test_refusals_say_what_and_how(call, error, message):
    with pytest.raises(error, match=message):
        call()
