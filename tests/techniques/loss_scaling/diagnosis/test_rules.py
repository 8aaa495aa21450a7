"""Histograms of exponents, and the rules on them: lost values, the scale and format that fit."""

import math
from fractions import Fraction

import numpy as np
import pytest

from lpkernels.formats import FloatFormat, parse_format
from lpkernels.techniques.loss_scaling.diagnosis import histograms
from lpkernels.techniques.loss_scaling.diagnosis.histograms import BINS, Histogram, Lost
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


def fmt(name: str) -> FloatFormat:
    found = parse_format(name)
    assert isinstance(found, FloatFormat)
    return found


def powers(**counts: int) -> Histogram:
    """A histogram by exponents: e_24=3 means three elements 2**-24, and e3=1 means one of 2**3."""
    exponents = {int(name[1:].replace("_", "-")): count for name, count in counts.items()}
    return Histogram.of([2.0**e for e, count in exponents.items() for _ in range(count)])


def test_lost_counts_what_lies_outside_of_the_format() -> None:
    of = Histogram.of([2.0**-25, 2.0**-24, 1.0, 65504.0, 65536.0, 0.0, 0.0, math.inf])
    found = histograms.lost(of, fmt("fp16"))
    assert (found.underflow, found.overflow) == (1 / 5, 1 / 5)
    assert found.magnitude == pytest.approx(65536 / (65536 + 32768 + 1))
    of = powers(e_15=1, e_14=1)
    assert histograms.lost(of, fmt("e5m10_nosub")).underflow == 0.5
    assert histograms.lost(of, fmt("e5m10")).underflow == 0
    assert histograms.lost(Histogram.of([0.0, math.nan]), fmt("fp16")) == Lost(0, 0, 0)


def test_lost_moves_with_the_scale() -> None:
    of = powers(e_30=1, e_20=1, e10=2)
    underflow = [histograms.lost(of, fmt("fp16"), k).underflow for k in (-10, 0, 5, 6)]
    assert underflow == [0.5, 0.25, 0.25, 0]
    assert [histograms.lost(of, fmt("fp16"), k).overflow for k in (5, 6)] == [0, 0.5]


LARGEST = [1.0, 65504.0, 65505.0, 3.0, 0.1, 2.0**-24, 448.0, 449.0, np.nextafter(448, 0)]


@each("largest, name", LARGEST, ["fp16", "e4m3fn", "e5m2", "fp4_e2m1"])
def test_static_exponent_is_the_largest_that_stays_below_max(largest: float, name: str) -> None:
    """The scale is 2**floor(log2(max / largest)), in exact arithmetic."""
    exponent = histograms.static_exponent(largest, fmt(name))
    top, most = Fraction(largest), Fraction(fmt(name).max)
    assert top * Fraction(2) ** exponent <= most < top * Fraction(2) ** (exponent + 1)


def test_static_exponent_of_the_paper() -> None:
    """The smallest fp16 number may be multiplied by 2**39; a margin takes two binades off."""
    assert histograms.static_exponent(2.0**-24, fmt("fp16")) == 39
    assert histograms.static_exponent(2.0**-24, fmt("fp16"), margin=2) == 37
    assert histograms.static_exponent(1.0, fmt("fp16")) == 15
    # It stays a scale.
    assert histograms.static_exponent(2.0**-149, fmt("fp32")) == 126
    assert histograms.static_exponent(2.0**127, fmt("e4m3fn_b100")) == -126


@each("largest", [0.0, -1.0, math.inf, math.nan])
def test_static_exponent_refuses_no_magnitude(largest: float) -> None:
    with pytest.raises(ValueError, match="expected a positive finite magnitude, got"):
        histograms.static_exponent(largest, fmt("fp16"))


@each("largest", [1.0, 1.5, 1.999])
def test_fitting_exponent_leaves_one_or_two_binades(largest: float) -> None:
    """The histogram knows only the binade of the largest gradient."""
    found = histograms.fitting_exponent([(Histogram.of([largest, 1e-3]), fmt("fp16"))])
    assert found == 13
    assert histograms.static_exponent(largest, fmt("fp16")) - found in (1, 2)


def test_fitting_exponent_is_that_of_the_tensor_with_least_room() -> None:
    held = [(powers(e0=1), fmt("fp16")), (powers(e0=1), fmt("e4m3fn")), (powers(), fmt("e2m1"))]
    assert histograms.fitting_exponent(held, margin=0) == 7
    assert histograms.fitting_exponent([]) == 0


def test_enough_is_the_smallest_scale_that_loses_little() -> None:
    of = powers(e_30=600, e_20=1)
    held = [(of, fmt("fp16"))]
    lost = [histograms.lost(of, fmt("fp16"), k).magnitude for k in (5, 6)]
    assert lost[0] > 0.3 and lost[1] == 0
    assert histograms.enough(held, 20) == 6
    assert histograms.enough(held, 5) is None
    assert histograms.enough(held, 20, threshold=0.5) == 0
    assert histograms.enough([(powers(e20=1), fmt("fp16"))], -6) == -6


def test_together_weighs_every_number_alike() -> None:
    held = [(powers(e_30=3), fmt("fp16")), (powers(e0=8, e20=1), fmt("fp16"))]
    assert histograms.together(held) == pytest.approx((3 / 12, 1 / 12))
    assert histograms.together([]) == (0, 0)
    assert histograms.worst(held).magnitude == 1


def test_narrowest_is_the_format_of_fewest_bits_that_holds_everything() -> None:
    candidates = [fmt(name) for name in ("fp32", "fp16", "bf16", "e5m2", "e4m3fn")]

    def of(histogram: Histogram, *, scaled: bool) -> tuple[str, int] | None:
        found = histograms.narrowest([histogram], candidates, scaled=scaled)
        return None if found is None else (str(found[0]), found[1])

    assert of(powers(e_5=1, e0=1), scaled=False) == ("e4m3fn", 0)
    assert of(powers(e_12=100, e0=1), scaled=False) == ("e5m2", 0)
    assert of(powers(e_20=99999, e0=1), scaled=False) == ("e5m10", 0)
    assert of(powers(e_20=9, e_22=1), scaled=False) == ("e5m10", 0)
    assert of(powers(e_20=9, e_22=1), scaled=True) == ("e4m3fn", 13)
    assert of(powers(e20=1), scaled=False) == ("e8m7", 0)
    assert histograms.narrowest([powers(e20=1)], [fmt("fp16")], scaled=False) is None


def test_narrowest_may_saturate_but_not_overflow() -> None:
    """One of a million elements is beyond the range."""
    histogram = Histogram.sum([Histogram.of(np.ones(1_000_000)), powers(e9=1)])
    fn, sat = fmt("e4m3fn"), fmt("e4m3fn_sat")
    assert histograms.narrowest([histogram], [fn], scaled=False) is None
    found = histograms.narrowest([histogram], [fn, sat], scaled=False)
    assert found is not None and found[0] == sat and found[2].overflow == pytest.approx(1e-6)
