"""Histograms of exponents against numbers counted one by one."""

import math

import numpy as np
import pytest

from lpkernels.techniques.loss_scaling.diagnosis.histograms import BINS, Histogram
from tests.loops import each

TINY = np.float32(2.0**-149)
SPECIAL = (np.inf, -np.inf, np.nan)
VALUES = np.array(
    [0, -0.0, 1, -1.5, 1.9999999, 2, -(2.0**-24), 3e-5, TINY, -(2.0**-126), 3e38, *SPECIAL],
    dtype=np.float32,
)  # fmt: skip


def numbers(values: np.ndarray) -> np.ndarray:
    """The magnitudes of the finite values that are not zero."""
    found = np.abs(values[np.isfinite(values)].astype(np.float64))
    return found[found > 0]


@each("exponent", [-130, -126, -125, -24, -23, 0, 1, 2, 127, 128, 200])
def test_below_and_above_count_magnitudes(exponent: int) -> None:
    of = Histogram.of(VALUES)
    expected = int((numbers(VALUES) < math.ldexp(1, exponent)).sum())
    # The histogram does not know where float32's subnormals lie below 2**-126.
    assert of.below(exponent) == (0 if exponent < -126 else expected)
    assert of.below(exponent) + of.above(exponent) == of.numbers == 9


def test_parts_of_a_histogram() -> None:
    of = Histogram.of(VALUES)
    assert (of.elements, of.zeros, of.nonfinite) == (14, 2, 3)
    assert of.exponents == (-127, 127)
    assert of.largest == np.finfo(np.float32).max
    assert Histogram.of([0.0, math.inf]).exponents is None
    assert Histogram.of([]).largest == 0
    # The largest is the top of the largest bin.
    assert Histogram.of([0.3, -5.0]).largest == np.nextafter(np.float32(8), np.float32(0))


def test_magnitude_takes_the_middle_of_each_bin() -> None:
    of = Histogram.of([1, 1.9, -4, 0, 2.0**-140])
    assert of.magnitude() == 1.5 * (1 + 1 + 4)
    assert of.magnitude(None, 2) == 3
    assert of.magnitude(2, None) == of.magnitude(2, 3) == 6
    assert of.magnitude(3, None) == of.magnitude(None, -200) == of.magnitude(200) == 0


def test_shifted_multiplies_by_a_power_of_two() -> None:
    values = VALUES[np.abs(VALUES) != TINY]
    moved = Histogram.of(values).shifted(-7)
    expected = Histogram.of(values * np.float32(2.0**-7)).counts.copy()
    # 2**-126 becomes subnormal, but the shifted histogram keeps it in the first bin of normal
    # numbers.
    expected[0] -= 1
    expected[1] += 1
    assert np.array_equal(moved.counts, expected)
    assert moved.zeros == 2
    assert Histogram.of([3e38]).shifted(5).exponents == (127, 127)


def test_sum_adds_all_counts_and_pairs_hold_everything() -> None:
    both = Histogram.sum([Histogram.of(VALUES), Histogram.of([0.0, 7.0])])
    assert np.array_equal(both.counts, Histogram.of([*VALUES, 0.0, 7.0]).counts)
    assert both.zeros == 3
    assert Histogram.sum([]).elements == 0
    of = Histogram.of(VALUES)
    again = Histogram.from_pairs(of.to_pairs(), of.zeros, of.nonfinite)
    assert np.array_equal(again.counts, of.counts)
    assert [-127, 1] in of.to_pairs()


def test_wrong_counts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected 256 counts by float32's .* got \(255,\)"):
        Histogram(np.zeros(255), 0)
    with pytest.raises(ValueError, match=r"at most counts.0.=0 zeros, got 1 zeros"):
        Histogram(np.zeros(BINS), 1)
    with pytest.raises(ValueError, match="a least count of -1"):
        Histogram(np.full(BINS, -1), -1)
