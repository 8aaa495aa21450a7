"""Counts of the effects of rounding: of exact roundings one by one, and rules by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import FixedFormat, TableFormat
from lpkernels.reference import twin
from lpkernels.reference.counting import quantize_counting
from lpkernels.rng import SITE_QUANTIZE, draws
from lpkernels.rounding import round_scalar
from tests.cases import EVERY_FORMAT, ROUNDINGS, hard_values
from tests.compare import assert_bit_equal

SEED = 5


def counts_of(x, fmt, rounding: str = "nearest_even", **rest) -> list[int]:
    """The four counts of float32 or float64 values."""
    return quantize_counting(np.asarray(x), Quantizer(fmt, rounding), **rest)[1][:4].tolist()


def is_beyond(value: float, fmt, rounding: str, draw: int) -> bool:
    """Whether a finite value lies beyond its format once rounded as if the format had no end."""
    if isinstance(fmt, TableFormat) or not math.isfinite(value):
        return math.isfinite(value) and not fmt.min <= value <= fmt.max
    if isinstance(fmt, FixedFormat):
        wide = FixedFormat(24, fmt.frac_bits)
        return not fmt.min <= round_scalar(value, wide, rounding, draw=draw) <= fmt.max
    marked = replace(fmt, overflow="nan")
    return math.isnan(round_scalar(value, marked, rounding, draw=draw, always_overflows=True))


def exact_counts(x: np.ndarray, fmt, rounding: str) -> list[int]:
    drawn = draws(SEED, SITE_QUANTIZE, 0, 0, np.arange(x.size), 32, "fast")
    pairs = list(zip(x.tolist(), drawn.tolist(), strict=True))
    over = np.array([is_beyond(value, fmt, rounding, draw) for value, draw in pairs])
    zero = np.array([round_scalar(value, fmt, rounding, draw=draw) == 0 for value, draw in pairs])
    under = zero & (x != 0) & np.isfinite(x) & ~over
    return [int(each.sum()) for each in (over, under, x == 0, ~np.isfinite(x))]


# These have no wider word that they could be compared with.
WIDEST = {"fixed24_f10", "fixed24_f140_wrap", "fixed24_f149", "fixed2_f-126"}


@pytest.mark.parametrize("fmt", [fmt for fmt in EVERY_FORMAT if str(fmt) not in WIDEST])
def test_counts_equal_exact_ones(fmt):
    x = hard_values(fmt, count=8)
    x = x[:: max(1, len(x) // 100)]
    for rounding in ROUNDINGS:
        assert counts_of(x, fmt, rounding, seed=SEED) == exact_counts(x, fmt, rounding), rounding


@pytest.mark.parametrize("fmt", ["e5m2", "fixed8_f4_wrap", "affine4_axis0", "block4_e2m1"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_values_are_those_of_quantize(fmt, rounding, rng):
    x = (rng.standard_normal((6, 9)) * 2.0 ** rng.integers(-9, 9, (6, 9))).astype(np.float32)
    quantizer = Quantizer(fmt, rounding)
    got, counts = quantize_counting(x, quantizer, seed=SEED)
    assert_bit_equal(got, twin.quantize(x, quantizer, seed=SEED))
    assert counts.dtype == np.int64
    assert counts[4:].sum() == x.size


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, -(2.0**-60), 2.0**-16]
AROUND_3 = [-1.0, -0.0, 0.2, 3.0, 3.1, 9.0, math.inf, math.nan]


@pytest.mark.parametrize(
    "fmt, x, options, want",
    [
        ("e5m2", SPECIAL, {}, [0, 2, 2, 3]),
        ("e5m2", SPECIAL, {"rounding": "toward_positive"}, [0, 1, 2, 3]),
        ("fixed8_f4_wrap", SPECIAL, {"rounding": "to_odd"}, [0, 0, 2, 3]),
        # A value that wraps to zero, or saturates at an end that is zero, counts as overflow alone.
        ("fixed8_f4_wrap", [16.0, 256.0], {}, [2, 0, 0, 0]),
        ("ufixed5_f0", [-5.0, -0.25], {}, [1, 1, 0, 0]),
        # The scale of 7 is 2^0: 7 saturates at 6, and 0.1 is less than half of 0.5. A block of NaN
        # counts its zeros.
        ("block4_e2m1", [7.0, 0.1, 0.0, 1.0], {}, [1, 1, 1, 0]),
        ("block4_e2m1", [7.0, 0.1, 0.0, math.nan], {}, [0, 0, 1, 1]),
        # An affine format overflows outside of its range.
        ("affine2", AROUND_3, {}, [0, 0, 1, 2]),
        ("affine2", AROUND_3, {"limits": np.array([[0.0], [3.0]])}, [3, 1, 1, 2]),
        ("affine2", AROUND_3, {"limits": np.array([[np.nan], [np.nan]])}, [0, 0, 1, 2]),
    ],
)
def test_an_element_is_counted_once(fmt, x, options, want):
    assert counts_of(x, fmt, **options) == want


def test_a_symmetric_range_reaches_as_far_as_its_further_end():
    x = np.array([-4.0, -3.0, 1.0, 3.5])
    got, counts = quantize_counting(x, Quantizer("affine3_sym"), limits=np.array([[-3.0], [1.0]]))
    assert got.tolist() == [-3.0, -3.0, 1.0, 3.0]
    assert counts[:4].tolist() == [2, 0, 0, 0]


@pytest.mark.parametrize("value, bin_", [
    (0.0, 0), (-0.0, 0), (2.0**-149, 0), (2.0**-126, 1), (-1.0, 127), (1.999, 127),
    (3.4e38, 254), (math.inf, 255), (math.nan, 255), (1e-300, 0), (-5e-324, 0), (1e300, 254),
])  # fmt: skip
def test_the_bin_of_a_value(value, bin_):
    counts = quantize_counting(np.array([value]), Quantizer("bf16"))[1]
    assert np.flatnonzero(counts[4:]).tolist() == [bin_]
