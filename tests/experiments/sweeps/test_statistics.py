"""Summaries of results: the figures that count, the pairs that are compared; intervals and tests of
few numbers, against scipy, definitions and simulations."""

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from lpkernels.experiments.sweeps import statistics
from lpkernels.experiments.sweeps.results import Result, figure_of, grouped, place_of
from lpkernels.experiments.sweeps.statistics import ArmSummary, Difference, summarise, varied_axes
from tests.loops import each
from tests.support.refusals import rejects

FIELD = "test_accuracy"


def result(
    arm: str,
    seed: int,
    figure: float | None = 0.5,
    status: str = "finished",
    axes: tuple[tuple[str, Any], ...] = (),
) -> Result:
    values = {} if status == "failed" else {FIELD: figure, "loss": 1.0, "name": "text"}
    return Result(arm, axes, seed, status, values, cell=f"{arm}-{seed}")


def runs(arm: str, figures: list[float], axes: tuple[tuple[str, Any], ...] = ()) -> list[Result]:
    return [result(arm, seed, figure, axes=axes) for seed, figure in enumerate(figures)]


def test_an_arm_has_mean_error_and_interval() -> None:
    (summary,) = summarise(runs("a", [0.1, 0.2, 0.3]), FIELD)
    assert summary.mean == pytest.approx(0.2)
    assert summary.error == pytest.approx(0.1 / math.sqrt(3))
    assert summary.interval == statistics.t_interval([0.1, 0.2, 0.3], 0.95)
    assert (summary.seeds, summary.figures, summary.difference) == (3, 3, None)


def against_base(results: list[Result], arm: str = "a") -> tuple[ArmSummary, Difference]:
    """The summary of an arm, and its difference from arm "base"."""
    found = {summary.arm: summary for summary in summarise(results, FIELD, reference="base")}
    assert found["base"].difference is None
    summary = found[arm]
    assert summary.difference is not None
    return summary, summary.difference


def test_a_difference_is_paired_by_seed() -> None:
    reference = [0.50, 0.61, 0.72, 0.80]
    shifts = [0.10, 0.13, 0.08, 0.12]
    # These runs have another order than the reference's: places in a list are no pairs.
    other = runs("a", [r + s for r, s in zip(reference, shifts, strict=True)])[::-1]
    _, difference = against_base([*runs("base", reference), *other])
    assert (difference.reference, difference.pairs) == ("base", 4)
    assert difference.mean == pytest.approx(0.1075)
    assert difference.interval == pytest.approx(statistics.t_interval(shifts, 0.95))
    assert difference.bootstrap == pytest.approx(statistics.bootstrap_interval(shifts, 0.95))
    # There is only one comparison, and so nothing to correct for.
    assert difference.p_holm == pytest.approx(statistics.paired_p(shifts))


def test_an_arm_that_only_failed_is_there_and_only_common_seeds_are_pairs() -> None:
    results = [*runs("base", [0.5, 0.6]), *(result("a", s, 0.7 + s / 10) for s in (1, 2, 3))]
    summary, difference = against_base(results)
    assert summary.mean == pytest.approx(0.9)
    assert (difference.pairs, difference.interval) == (1, None)
    assert difference.mean == pytest.approx(0.2)
    assert (difference.bootstrap, difference.p_holm) == (None, None)
    _, difference = against_base([*runs("base", [0.5]), result("a", 7, 0.7)])
    assert (difference.reference, difference.pairs, difference.mean) == ("base", 0, None)
    failed = result("a", 0, status="failed")
    summary, difference = against_base([*runs("base", [0.5, 0.6]), failed])
    assert (summary.failed, summary.mean, summary.diverged_share) == (1, None, None)
    assert difference.pairs == 0


def test_a_diverged_run_counts_with_its_figure_and_is_left_out_without() -> None:
    results = [
        *runs("base", [0.9, 0.9, 0.8, 0.9]), result("a", 0, 0.9), result("a", 1, 0.1, "diverged"),
        result("a", 2, None, "diverged"), result("a", 3, status="failed"),
    ]  # fmt: skip
    summary, difference = against_base(results)
    assert (summary.finished, summary.diverged, summary.failed) == (1, 2, 1)
    assert (summary.seeds, summary.ended, summary.figures) == (4, 3, 2)
    assert summary.diverged_share == pytest.approx(2 / 3)
    assert summary.mean == pytest.approx(0.5)
    assert (difference.pairs, difference.mean) == (2, pytest.approx(-0.4))


def test_each_value_of_an_axis_is_compared_by_itself() -> None:
    results = []
    for width, shift in ((4, 0.25), (8, 0.5)):
        axes = (("width", width), ("rate", [0.1]))
        results += runs("base", [0.125 * width / 8, 0.25], axes)
        # Axes in another order are the same axes.
        results += runs("a", [0.125 * width / 8 + shift, 0.25 + shift], axes[::-1])
    results.append(result("a", 0, 0.5, axes=(("width", 16), ("rate", [0.1]))))
    found = summarise(results, FIELD, reference="base")
    order = [(dict(summary.axes)["width"], summary.arm) for summary in found]
    assert order == [(4, "base"), (4, "a"), (8, "base"), (8, "a"), (16, "a")]
    differences = [summary.difference for summary in found if summary.difference]
    assert [difference.mean for difference in differences] == [0.25, 0.5, None]
    assert varied_axes(found) == ["width"]
    # Two equal differences give each p value, 2^-1; the two p values make one family.
    assert [difference.p_holm for difference in differences] == [1.0, 1.0, None]


CASES = st.lists(
    st.tuples(
        st.sampled_from(["base", "a", "b"]), st.sampled_from([(), (("width", 8),)]),
        st.integers(0, 5), st.sampled_from(["finished", "diverged", "failed"]),
        st.one_of(st.none(), st.integers(0, 360).map(lambda right: right / 360)),
    ),
    max_size=30,
    unique_by=lambda case: case[:3],
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(CASES, st.randoms(use_true_random=False))
def test_summaries_do_not_depend_on_the_order_of_the_results(cases, shuffle: random.Random) -> None:
    results = [result(arm, seed, figure, status, axes) for arm, axes, seed, status, figure in cases]
    results.append(result("base", 6, 0.5))
    shuffled = shuffle.sample(results, len(results))
    first, second = (
        {
            (place_of(summary.axes), summary.arm): summary
            for summary in summarise(found, FIELD, reference="base", resamples=20)
        }
        for found in (results, shuffled)
    )
    assert first == second
    assert sum(summary.seeds for summary in first.values()) == len(results)


def test_p_values_are_corrected_over_arms_and_axes_and_bootstraps_do_not_change() -> None:
    base = [0.50, 0.61, 0.72, 0.80]
    shifts = {"a": [0.10, 0.13, 0.08, 0.12], "b": [0.01, 0.03, -0.02, 0.03], "c": [0.2] * 3 + [0.3]}
    raw = [statistics.paired_p(shift) or 0.0 for shift in shifts.values()]
    results = runs("base", base)
    for arm, shift in shifts.items():
        results += runs(arm, [r + s for r, s in zip(base, shift, strict=True)])
    corrected = dict(zip(shifts, statistics.holm(raw), strict=True))
    _, alone = against_base([r for r in results if r.arm in ("base", "b")], "b")
    found = {arm: against_base(results, arm)[1] for arm in shifts}
    for arm in shifts:
        assert found[arm].p_holm == pytest.approx(corrected[arm])
    assert found["b"].bootstrap == alone.bootstrap


def test_figures_that_are_not_finite_are_none_and_groups_are_sorted_by_seed() -> None:
    for figure, found in ((math.nan, None), (math.inf, None), (1, 1.0)):
        assert figure_of(result("a", 0, figure), FIELD) == found
    groups = grouped([result("b", 3), result("a", 1), result("b", 2)])
    seeds = [(arm, [r.seed for r in group]) for (_, arm), group in groups.items()]
    assert seeds == [("b", [2, 3]), ("a", [1])]


test_summarise_refuses = rejects(
    lambda given: summarise(given[0], **{"field": FIELD, **given[1]}),
    [
        (([], {}), "at least one cell, got none; run the sweep first"),
        ((runs("a", [0.5]), {"reference": "base"}), "one of the arms 'a', got 'base'"),
        ((runs("a", [0.5]), {"field": "f1"}), "one of test_accuracy, loss, name, got 'f1'"),
        ((runs("a", [0.5]), {"field": "name"}), "numbers in field 'name', got 'text' in 'a'"),
        ((runs("a", [0.5]) * 2, {}), "got two of arm 'a' at {}, seed 0: a-0 and a-0; keep one"),
        (([replace(result("a", 0), status="running")], {}),
         "finished, diverged, failed, got 'runn"),
        ((runs("a", [0.5]), {"level": 95.0}),
         "0 < level < 1 and resamples >= 1, got 95.0 and 10000"),
        ((runs("a", [0.5]), {"resamples": 0}), "got 0.95 and 0"),
    ],
)  # fmt: skip


# These are accuracies of a test set of 360 examples: ties and equal differences are common.
ACCURACIES = st.integers(0, 360).map(lambda right: right / 360)
FIGURES = st.one_of(ACCURACIES, st.floats(-1e6, 1e6, allow_subnormal=False))
PAIRS = st.lists(st.tuples(FIGURES, FIGURES), min_size=2, max_size=12)
QUICK = settings(max_examples=50, deadline=None)


@QUICK
@given(PAIRS)
def test_the_paired_t_test_and_its_interval_are_those_of_scipy(pairs) -> None:
    values, reference = zip(*pairs, strict=True)
    found = statistics.differences(values, reference)
    # Where the differences hardly spread, scipy warns of lost digits and is right to do so.
    assume(np.ptp(found) > 1e-6 * max(map(abs, [*values, *reference])))
    expected = stats.ttest_rel(values, reference)
    assert statistics.paired_p(found) == pytest.approx(expected.pvalue, rel=1e-6)
    interval = statistics.t_interval(found, 0.95)
    low, high = expected.confidence_interval(0.95)
    slack = 1e-9 * (abs(low) + abs(high))
    assert interval == pytest.approx((low, high), rel=1e-6, abs=slack)


@QUICK
@given(PAIRS)
def test_both_intervals_contain_the_mean_or_are_none_without_spread(pairs) -> None:
    found = statistics.differences(*zip(*pairs, strict=True))
    intervals = statistics.t_interval(found, 0.95), statistics.bootstrap_interval(found, 0.95)
    if max(found) == min(found):
        assert intervals == (None, None)
        return
    slack = 1e-12 * max(map(abs, found))
    for interval in intervals:
        assert interval is not None
        assert interval.low - slack <= statistics.mean(found) <= interval.high + slack


@QUICK
@given(st.lists(st.floats(0.0, 1.0), max_size=7))
def test_holm_is_bonferroni_over_all_families_that_hold_a_hypothesis(raw: list[float]) -> None:
    indices = range(len(raw))
    sizes = range(1, len(raw) + 1)
    families = [f for size in sizes for f in itertools.combinations(indices, size)]
    closed = [max(len(f) * min(raw[j] for j in f) for f in families if i in f) for i in indices]
    corrected = statistics.holm(raw)
    assert corrected == [min(1.0, p) for p in closed]
    assert all(p <= c for p, c in zip(raw, corrected, strict=True))
    assert [c for _, c in sorted(zip(raw, corrected, strict=True))] == sorted(corrected)


@QUICK
@given(st.lists(FIGURES, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_means_and_errors_do_not_depend_on_the_order(values, shuffle: random.Random) -> None:
    shuffled = shuffle.sample(values, len(values))
    assert statistics.mean(shuffled) == statistics.mean(values)
    assert statistics.standard_error(shuffled) == statistics.standard_error(values)


def test_equal_differences_and_one_value_have_no_spread_and_a_seed_one_bootstrap() -> None:
    reference = [k / 360 for k in (301, 317, 322, 330)]
    values = [k / 360 for k in (304, 320, 325, 333)]
    assert len({a - b for a, b in zip(values, reference, strict=True)}) > 1
    found = statistics.differences(values, reference)
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(3 / 360)
    assert statistics.differences([0.1 + 0.2, 0.5], [0.3, 0.5]) == [0.0, 0.0]
    assert statistics.standard_error([0.5]) is statistics.paired_p([0.5]) is None
    assert statistics.t_interval([0.5], 0.95) is statistics.bootstrap_interval([0.5], 0.95) is None
    drawn = [0.1, 0.4, -0.2, 0.3, 0.25]
    one, again, other = (statistics.bootstrap_interval(drawn, 0.95, seed=s) for s in (1, 1, 2))
    assert one == again != other


@each("found, p", [([0.0, 0.0], 1.0), ([0.1, 0.1], 0.5), ([-0.1] * 5, 2.0**-4)])
def test_without_spread_p_is_that_of_flipped_signs(found: list[float], p: float) -> None:
    flips = itertools.product((-1, 1), repeat=len(found))
    sums = [abs(math.fsum(s * d for s, d in zip(signs, found, strict=True))) for signs in flips]
    assert statistics.paired_p(found) == p == np.mean([s >= abs(math.fsum(found)) for s in sums])


@pytest.mark.parametrize(("count", "bootstrap"), [(5, 0.84), (20, 0.92)])
def test_intervals_cover_the_mean_as_often_as_they_say(count: int, bootstrap: float) -> None:
    cases = 500
    drawn = np.random.default_rng(count).normal(size=(cases, count)).tolist()
    covered = {"t": 0, "bootstrap": 0}
    for values in drawn:
        t_interval = statistics.t_interval(values, 0.95)
        resampled = statistics.bootstrap_interval(values, 0.95, resamples=300)
        assert t_interval is not None and resampled is not None
        covered["t"] += t_interval.low <= 0.0 <= t_interval.high
        covered["bootstrap"] += resampled.low <= 0.0 <= resampled.high
    for name, share in (("t", 0.95), ("bootstrap", bootstrap)):
        deviation = math.sqrt(share * (1 - share) / cases)
        assert covered[name] / cases == pytest.approx(share, abs=3 * deviation), name
