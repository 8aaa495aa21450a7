"""Rounding one value: the contract by example, the two definitions of it, and what always holds.

`round_scalar` computes in exact rationals and says what every rounding of the package means;
`round_array` computes the same bits in float64. The kernels are compared with these two, and these
two with libraries of others in tests/oracles.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpkernels.formats import E4M3, FixedFormat, FloatFormat, parse_format
from lpkernels.rounding import ROUNDINGS, overflows_array, round_array, round_scalar
from tests.cases import DETERMINISTIC, EVERY_FORMAT, hard_values
from tests.compare import assert_bit_equal

INF, NAN = math.inf, math.nan


def assert_rounds(value, fmt, rounding, want, *, draw=0, random_bits=32):
    """Both definitions make the bits of `want`."""
    bits, name = {"random_bits": random_bits}, f"{value} in {fmt}, {rounding}, draw {draw}"
    one = round_scalar(value, fmt, rounding, draw=draw, **bits)
    many = round_array(np.array([value]), fmt, rounding, draws=np.array([draw]), **bits)
    assert_bit_equal(np.array([one]), np.array([want]), f"round_scalar of {name}")
    assert_bit_equal(many, np.array([want]), f"round_array of {name}")


#: The value after 1 in e6m9.
NEXT = 1 + 2.0**-9


@pytest.mark.parametrize(
    "fmt, value, results",
    [
        # nearest_even, nearest_away, toward_zero, toward_positive, toward_negative, to_odd
        # Ties, values near a tie, and values below the smallest one.
        ("e4m3", 1.0625, (1.0, 1.125, 1.0, 1.125, 1.0, 1.125)),
        ("e4m3", -1.0625, (-1.0, -1.125, -1.0, -1.0, -1.125, -1.125)),
        ("e4m3", 2.0**-10, (0.0, 2.0**-9, 0.0, 2.0**-9, 0.0, 2.0**-9)),
        # Beyond max, and infinite.
        ("e4m3", 248.0, (INF, INF, 240.0, INF, 240.0, 240.0)),
        ("e4m3", -300.0, (-INF, -INF, -240.0, -240.0, -INF, -240.0)),
        ("e4m3", INF, (INF,) * 6),
        ("e4m3_sat", -INF, (-240.0,) * 6),
        ("e4m3_nan", 248.0, (NAN, NAN, 240.0, NAN, 240.0, 240.0)),
        ("e4m3fn", 464.0, (448.0, NAN, 448.0, NAN, 448.0, 448.0)),
        ("e4m3fn_sat", 465.0, (448.0,) * 6),
        # A format without special values.
        ("fp4_e2m1", 5.0, (4.0, 6.0, 4.0, 6.0, 4.0, 6.0)),
        ("fp4_e2m1", 0.25, (0.0, 0.5, 0.0, 0.5, 0.0, 0.5)),
        # Codes of e4m0 are exponents: 1 has the biased exponent 7, 2 has 8.
        ("e4m0", 1.5, (2.0, 2.0, 1.0, 2.0, 1.0, 1.0)),
        ("e4m0", 2.0**-7, (0.0, 2.0**-6, 0.0, 2.0**-6, 0.0, 2.0**-6)),
        # Without subnormals the neighbours below min_normal are 0 and min_normal.
        ("e4m3_nosub", 2.0**-7 * 1.01, (2.0**-6, 2.0**-6, 0.0, 2.0**-6, 0.0, 2.0**-6)),
        ("e4m3_nosub", -(2.0**-20), (-0.0, -0.0, -0.0, -0.0, -(2.0**-6), -(2.0**-6))),
        # Wide formats.
        ("fp16", 65520.0, (INF, INF, 65504.0, INF, 65504.0, 65504.0)),
        ("fp16", 2.0**-25 * (1 + 2**-10), (2.0**-24, 2.0**-24, 0.0, 2.0**-24, 0.0, 2.0**-24)),
        ("fp32", 2.0**-1074, (0.0, 0.0, 0.0, 2.0**-149, 0.0, 2.0**-149)),
        ("e6m9", 1 + 2.0**-10 + 2.0**-26, (NEXT, NEXT, 1.0, NEXT, 1.0, NEXT)),
        # Zeros of both signs, and NaN.
        ("e4m3", -0.0, (-0.0,) * 6),
        ("e4m3", 0.0, (0.0,) * 6),
        ("fp4_e2m1", NAN, (NAN,) * 6),
        # Fixed point has one zero; a word saturates, or wraps around.
        ("fixed8_f4", 0.09375, (0.125, 0.125, 0.0625, 0.125, 0.0625, 0.0625)),
        ("fixed8_f4", -0.09375, (-0.125, -0.125, -0.0625, -0.0625, -0.125, -0.0625)),
        ("fixed8_f4", -0.0, (0.0,) * 6),
        ("fixed8_f4", 8.0, (7.9375,) * 6),
        ("fixed8_f4", INF, (7.9375,) * 6),
        ("fixed8_f4", NAN, (NAN,) * 6),
        ("fixed8_f4_wrap", 8.0, (-8.0,) * 6),
        ("fixed8_f4_wrap", -8.0625, (7.9375,) * 6),
        ("fixed8_f4_wrap", 1e300, (0.0,) * 6),
        ("fixed8_f4_wrap", INF, (NAN,) * 6),
        ("fixed24_f0_wrap", 2.0**52 + 2.0**23 + 5, (5 - 2.0**23,) * 6),
        ("ufixed8_f0_wrap", -0.75, (255.0, 255.0, 0.0, 0.0, 255.0, 255.0)),
        ("ufixed5_f-3", 100.0, (96.0, 104.0, 96.0, 104.0, 96.0, 104.0)),
        ("fixed8_f12", 0.5, (127 * 2.0**-12,) * 6),
    ],
)
def test_contract(fmt, value, results):
    for rounding, want in zip(DETERMINISTIC, results, strict=True):
        assert_rounds(value, parse_format(fmt), rounding, want)


@pytest.mark.parametrize("value, draw, want", [
    # One random bit over steps of 0.125: f = 1/4 moves away for draw 1 alone.
    (1.0, 1, 1.0), (1.0 + 0.125 * 0.25, 0, 1.0), (1.0 + 0.125 * 0.25, 1, 1.125),
    (1.0 + 0.125 * 0.2499, 1, 1.0), (1.0 + 0.125 * 0.75, 0, 1.125), (1.0 + 0.125 * 0.7499, 0, 1.0),
    (-1.0 - 0.125 * 0.25, 1, -1.125), (-1.0 - 0.125 * 0.25, 0, -1.0), (248.0, 1, INF),
    (248.0, 0, 240.0), (-INF, 0, -INF), (2.0**-11, 1, 2.0**-9), (-(2.0**-11), 0, -0.0),
    (NAN, 0, NAN),
])  # fmt: skip
def test_contract_of_draws(value, draw, want):
    assert_rounds(value, E4M3, "stochastic", want, draw=draw, random_bits=1)


@pytest.mark.parametrize("name, tie, leaves", [
    # "fn" gives its last code to NaN, so that its largest value has an even code and keeps a tie.
    ("e4m3fn", 464.0, False), ("e4m3fn_sat", -464.0, False), ("e4m3", 248.0, True),
    ("e2m3", -3.875, True), ("fixed8_f0", 127.5, True), ("fixed8_f0", -128.5, False),
])  # fmt: skip
def test_a_tie_behind_the_largest_value_overflows_to_an_even_code(name, tie, leaves):
    x = np.array([tie, np.nextafter(tie, 2 * tie), INF, NAN])
    overflows = overflows_array(x, parse_format(name), "nearest_even")
    assert overflows.tolist() == [leaves, True, False, False]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", EVERY_FORMAT)
def test_array_equals_scalar(fmt, rounding, rng):
    x = rng.choice(hard_values(fmt, count=50), 100)
    for random_bits in (1, 7, 32) if rounding == "stochastic" else (32,):
        draws = rng.integers(0, 2**random_bits, x.shape, dtype=np.uint32)
        got = round_array(x, fmt, rounding, draws=draws, random_bits=random_bits)
        want = [
            round_scalar(value, fmt, rounding, draw=draw, random_bits=random_bits)
            for value, draw in zip(x.tolist(), draws.tolist(), strict=True)
        ]
        assert_bit_equal(got, np.array(want))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3, 4)])
def test_array_keeps_the_shape_and_takes_any_strides(shape):
    x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape).T * 0.3
    for rounding in ROUNDINGS:
        rounded = round_array(x, E4M3, rounding, draws=np.zeros((), np.uint32))
        assert (rounded.shape, rounded.dtype) == (x.shape, np.float64)
        want = [round_scalar(value, E4M3, rounding) for value in x.ravel().tolist()]
        assert_bit_equal(rounded, np.array(want).reshape(x.shape))


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.floats(-1e3, 1e3),
    st.floats(width=16, allow_nan=False), st.floats(width=32, allow_nan=False),
    st.fractions(-500, 500),
)  # fmt: skip
FORMATS = st.sampled_from(EVERY_FORMAT)
MODES = st.sampled_from(ROUNDINGS)
DRAWS = st.integers(0, 255)


def rounded(value, fmt, rounding, draw):
    return np.array(round_scalar(value, fmt, rounding, draw=draw, random_bits=8))


@given(NUMBERS, st.sampled_from([f for f in EVERY_FORMAT if f.bits <= 8]), MODES, DRAWS)
def test_the_result_is_a_neighbour(value, fmt, rounding, draw):
    result, values = float(rounded(value, fmt, rounding, draw)), fmt.values()
    if not math.isfinite(result):
        assert abs(value) > abs(fmt.max) or value < values[0]
        return
    assert result in values
    if values[0] <= value <= values[-1]:
        below = values[np.searchsorted(values, float(value), side="right") - 1]
        above = values[np.searchsorted(values, float(value), side="left") % len(values)]
        assert result in (below, above) or Fraction(float(value)) != Fraction(value)


@pytest.mark.parametrize("fmt", [E4M3, FloatFormat(6, 9), FloatFormat(4, 0), FixedFormat(8, 4)])
@pytest.mark.parametrize("random_bits", [1, 2, 3, 8])
def test_the_frequency_over_all_draws_is_the_rule(fmt, random_bits):
    draws = np.arange(2**random_bits)
    # 1 and 1 + step are neighbours in all four formats.
    step = Fraction(fmt.epsilon)
    for fraction in [*(Fraction(i, 37) for i in range(37)), Fraction(1, 512), Fraction(511, 512)]:
        value = float(1 + fraction * step)
        x = np.full(draws.shape, value)
        got = round_array(x, fmt, "stochastic", draws=draws, random_bits=random_bits)
        assert set(got.tolist()) <= {1.0, float(1 + step)}
        exact = (Fraction(value) - 1) / step
        assert (got > 1).sum() == math.floor(exact * 2**random_bits + Fraction(1, 2))
