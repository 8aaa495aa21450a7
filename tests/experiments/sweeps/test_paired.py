"""Intervals and tests of few numbers, against scipy, definitions and simulations."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from lpkernels.experiments.sweeps import paired
from lpkernels.experiments.sweeps.student import critical_t, two_sided_p
from tests.loops import each

# These are accuracies of a test set of 360 examples: ties and equal differences are common.
ACCURACIES = st.integers(0, 360).map(lambda right: right / 360)
FIGURES = st.one_of(ACCURACIES, st.floats(-1e6, 1e6, allow_subnormal=False))
PAIRS = st.lists(st.tuples(FIGURES, FIGURES), min_size=2, max_size=12)
P_VALUES = st.lists(st.floats(0.0, 1.0), max_size=7)
QUICK = settings(max_examples=50, deadline=None)


@QUICK
@given(PAIRS)
def test_the_paired_t_test_and_its_interval_are_those_of_scipy(pairs) -> None:
    values, reference = zip(*pairs, strict=True)
    found = paired.differences(values, reference)
    # Where the differences hardly spread, scipy warns of lost digits and is right to do so.
    assume(np.ptp(found) > 1e-6 * max(map(abs, [*values, *reference])))
    expected = stats.ttest_rel(values, reference)
    assert paired.paired_p(found) == pytest.approx(expected.pvalue, rel=1e-6)
    interval = paired.t_interval(found, 0.95)
    low, high = expected.confidence_interval(0.95)
    slack = 1e-9 * (abs(low) + abs(high))
    assert interval == pytest.approx((low, high), rel=1e-6, abs=slack)


@QUICK
@given(PAIRS)
def test_both_intervals_contain_the_mean_or_are_none_without_spread(pairs) -> None:
    found = paired.differences(*zip(*pairs, strict=True))
    intervals = paired.t_interval(found, 0.95), paired.bootstrap_interval(found, 0.95)
    if max(found) == min(found):
        assert intervals == (None, None)
        return
    slack = 1e-12 * max(map(abs, found))
    for interval in intervals:
        assert interval is not None
        assert interval.low - slack <= paired.mean(found) <= interval.high + slack


@QUICK
@given(P_VALUES)
def test_holm_is_bonferroni_over_all_families_that_hold_a_hypothesis(raw: list[float]) -> None:
    indices = range(len(raw))
    sizes = range(1, len(raw) + 1)
    families = [f for size in sizes for f in itertools.combinations(indices, size)]
    closed = [max(len(f) * min(raw[j] for j in f) for f in families if i in f) for i in indices]
    corrected = paired.holm(raw)
    assert corrected == [min(1.0, p) for p in closed]
    assert all(p <= c for p, c in zip(raw, corrected, strict=True))
    assert [c for _, c in sorted(zip(raw, corrected, strict=True))] == sorted(corrected)


@QUICK
@given(st.lists(FIGURES, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_means_and_errors_do_not_depend_on_the_order(values, shuffle: random.Random) -> None:
    shuffled = shuffle.sample(values, len(values))
    assert paired.mean(shuffled) == paired.mean(values)
    assert paired.standard_error(shuffled) == paired.standard_error(values)


def test_equal_differences_and_one_value_have_no_spread_and_a_seed_one_bootstrap() -> None:
    reference = [k / 360 for k in (301, 317, 322, 330)]
    values = [k / 360 for k in (304, 320, 325, 333)]
    assert len({a - b for a, b in zip(values, reference, strict=True)}) > 1
    found = paired.differences(values, reference)
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(3 / 360)
    assert paired.differences([0.1 + 0.2, 0.5], [0.3, 0.5]) == [0.0, 0.0]
    assert paired.standard_error([0.5]) is paired.paired_p([0.5]) is None
    assert paired.t_interval([0.5], 0.95) is paired.bootstrap_interval([0.5], 0.95) is None
    drawn = [0.1, 0.4, -0.2, 0.3, 0.25]
    one, again, other = (paired.bootstrap_interval(drawn, 0.95, seed=s) for s in (1, 1, 2))
    assert one == again != other


@each("found, p", [([0.0, 0.0], 1.0), ([0.1, 0.1], 0.5), ([-0.1] * 5, 2.0**-4)])
def test_without_spread_p_is_that_of_flipped_signs(found: list[float], p: float) -> None:
    flips = itertools.product((-1, 1), repeat=len(found))
    sums = [abs(math.fsum(s * d for s, d in zip(signs, found, strict=True))) for signs in flips]
    assert paired.paired_p(found) == p == np.mean([s >= abs(math.fsum(found)) for s in sums])


@pytest.mark.parametrize(("count", "bootstrap"), [(5, 0.84), (20, 0.92)])
def test_intervals_cover_the_mean_as_often_as_they_say(count: int, bootstrap: float) -> None:
    cases = 500
    drawn = np.random.default_rng(count).normal(size=(cases, count)).tolist()
    covered = {"t": 0, "bootstrap": 0}
    for values in drawn:
        t_interval = paired.t_interval(values, 0.95)
        resampled = paired.bootstrap_interval(values, 0.95, resamples=300)
        assert t_interval is not None and resampled is not None
        covered["t"] += t_interval.low <= 0.0 <= t_interval.high
        covered["bootstrap"] += resampled.low <= 0.0 <= resampled.high
    for name, share in (("t", 0.95), ("bootstrap", bootstrap)):
        deviation = math.sqrt(share * (1 - share) / cases)
        assert covered[name] / cases == pytest.approx(share, abs=3 * deviation), name


DEGREES = (1, 2, 3, 4, 5, 9, 30, 99, 1000)


@each("dof", DEGREES)
def test_two_sided_p_is_that_of_scipy_far_into_the_tails(dof: int) -> None:
    for t in (0.0, 0.01, 0.5, 1.0, 2.0, 3.0, 10.0, 40.0, 1e6):
        expected = 2 * stats.t.sf(t, dof)
        assert two_sided_p(t, dof) == pytest.approx(expected, rel=1e-10, abs=1e-290)
        assert two_sided_p(-t, dof) == two_sided_p(t, dof)


@each("t", [1e-12, 1e-8, 0.3, 7.0])
def test_two_sided_p_is_the_closed_form_of_one_and_two_degrees_and_zero_far_out(t: float) -> None:
    # This holds near zero too, where scipy loses digits.
    assert two_sided_p(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-13)
    assert two_sided_p(t, 2) == pytest.approx(1 - t / math.hypot(t, math.sqrt(2)), rel=1e-13)
    assert two_sided_p(math.inf, 4) == two_sided_p(1e200, 4) == 0.0


@each("dof", DEGREES)
def test_critical_t_is_the_quantile_of_scipy(dof: int) -> None:
    for level in (0.01, 0.5, 0.8, 0.95, 0.99, 0.9999):
        assert critical_t(level, dof) == pytest.approx(stats.t.ppf((1 + level) / 2, dof), rel=1e-10)
