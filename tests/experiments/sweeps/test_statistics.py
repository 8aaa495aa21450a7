"""Summaries of results: the figures that count, the pairs that are compared; intervals and tests of
few numbers, against scipy, definitions and simulations."""

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lpkernels.experiments.records import Run, table_of
from lpkernels.experiments.sweeps.statistics import (
    figures_of,
    holm,
    summarise,
    varied_axes,
)
from tests.support.refusals import rejects

FIELD = "test_accuracy"


def result(
    arm: str, seed: int, figure: float | None = 0.5, status: str = "finished", **axes: Any
) -> Run:
    values = {FIELD: figure, "loss": 1.0, "name": "text"}
    epochs = [] if status == "failed" else [values]
    return Run(arm, axes, seed, status, epochs, cell=f"{arm}-{seed}")


def runs(arm: str, figures: Sequence[float], **axes: Any) -> list[Run]:
    return [result(arm, seed, figure, **axes) for seed, figure in enumerate(figures)]


def rows(results: list[Run]) -> dict[str, dict[str, Any]]:
    """The rows of the summary by arm, compared with "base"."""
    summary = summarise(table_of(results), FIELD, reference="base")
    return {row["arm"]: row for row in summary.to_dict("records")}


def compared(values: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """The row of an arm with these figures, compared with those of another by seed."""
    return rows([*runs("base", reference), *runs("a", values)])["a"]


def interval(row: dict[str, Any], name: str = "difference") -> tuple[float, float]:
    return row[f"{name}_low"], row[f"{name}_high"]


def test_an_arm_has_mean_error_and_interval() -> None:
    (row,) = summarise(table_of(runs("a", [0.1, 0.2, 0.3])), FIELD).to_dict("records")
    error = 0.1 / math.sqrt(3)
    low, high = stats.t.interval(0.95, 2, 0.2, error)
    expected = {"arm": "a", "seeds": 3, "finished": 3, "diverged": 0, "failed": 0, "figures": 3}
    assert {name: row[name] for name in expected} == expected
    figures = [row[name] for name in ("mean", "standard_error", "low", "high")]
    assert figures == pytest.approx([0.2, error, low, high])


def test_a_difference_is_paired_by_seed_and_of_common_seeds_alone() -> None:
    reference, shifts = [0.50, 0.61, 0.72, 0.80], [0.10, 0.13, 0.08, 0.12]
    values = [r + s for r, s in zip(reference, shifts, strict=True)]
    # These runs have another order than the reference's: places in a list are no pairs.
    row = rows([*runs("base", reference), *runs("a", values)[::-1]])["a"]
    assert (row["reference"], row["pairs"]) == ("base", 4)
    assert row["difference"] == pytest.approx(0.1075)
    test = stats.ttest_rel(values, reference)
    assert row["p_holm"] == pytest.approx(test.pvalue)
    assert interval(row) == pytest.approx(tuple(test.confidence_interval(0.95)))
    means = np.random.default_rng(0).choice(shifts, (10_000, 4)).mean(axis=1)
    expected = np.quantile(means, [0.025, 0.975]).tolist()
    assert interval(row, "bootstrap") == pytest.approx(expected)
    summary = rows([*runs("base", [0.5, 0.6]), *(result("a", s, 0.7 + s / 10) for s in (1, 2, 3))])
    row = summary["a"]
    assert (row["mean"], row["pairs"], row["difference"]) == pytest.approx((0.9, 1, 0.2))
    assert all(map(math.isnan, (*interval(row), *interval(row, "bootstrap"), row["p_holm"])))
    assert math.isnan(summary["base"]["pairs"])
    row = rows([*runs("base", [0.5]), result("a", 7, 0.7)])["a"]
    assert row["pairs"] == 0 and math.isnan(row["difference"])


def test_a_diverged_run_counts_with_its_figure_and_is_left_out_without() -> None:
    results = [
        *runs("base", [0.9, 0.9, 0.8, 0.9]), result("a", 0, 0.9), result("a", 1, 0.1, "diverged"),
        result("a", 2, None, "diverged"), result("a", 3, status="failed"),
        result("b", 0, status="failed"),
    ]  # fmt: skip
    summary = rows(results)
    counts = ("seeds", "finished", "diverged", "failed", "figures", "pairs")
    assert [summary["a"][name] for name in counts] == [4, 1, 2, 1, 2, 2]
    assert (summary["a"]["mean"], summary["a"]["difference"]) == pytest.approx((0.5, -0.4))
    assert [summary["b"][name] for name in counts] == [1, 0, 0, 1, 0, 0]
    assert math.isnan(summary["b"]["mean"])


def test_each_value_of_an_axis_is_compared_by_itself() -> None:
    results = []
    for width, shift in ((4, 0.25), (8, 0.5)):
        results += runs("base", [0.125 * width / 8, 0.25], width=width, rate=[0.1])
        # Axes in another order are the same axes.
        results += runs("a", [0.125 * width / 8 + shift, 0.25 + shift], rate=[0.1], width=width)
    results.append(result("a", 0, 0.5, width=16, rate=[0.1]))
    summary = summarise(table_of(results), FIELD, reference="base")
    order = list(zip(summary["width"], summary["arm"], strict=True))
    assert order == [(4, "base"), (4, "a"), (8, "base"), (8, "a"), (16, "a")]
    differences = summary.loc[summary["arm"] == "a", "difference"]
    assert differences.tolist() == pytest.approx([0.25, 0.5, math.nan], nan_ok=True)
    assert varied_axes(summary) == ["width"]
    # Two equal differences give each p value, 2^-1; the two p values make one family.
    p = summary.loc[summary["arm"] == "a", "p_holm"].tolist()
    assert p == pytest.approx([1.0, 1.0, math.nan], nan_ok=True)


CASES = st.lists(
    st.tuples(
        st.sampled_from(["base", "a", "b"]), st.sampled_from([4, 8]),
        st.integers(0, 5), st.sampled_from(["finished", "diverged", "failed"]),
        st.one_of(st.none(), st.integers(0, 360).map(lambda right: right / 360)),
    ),
    max_size=30,
    unique_by=lambda case: case[:3],
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(CASES, st.randoms(use_true_random=False))
def test_summaries_do_not_depend_on_the_order_of_the_results(cases, shuffle: random.Random) -> None:
    results = [result(a, s, figure, status, width=w) for a, w, s, status, figure in cases]
    results.append(result("base", 6, 0.5, width=4))
    first, second = (
        summarise(table_of(order), FIELD, reference="base")
        .sort_values(["arm", "width"], ignore_index=True)
        for order in (results, shuffle.sample(results, len(results)))
    )  # fmt: skip
    pandas.testing.assert_frame_equal(first, second)
    assert first["seeds"].sum() == len(results)


def test_p_values_are_corrected_over_arms_and_bootstraps_do_not_change() -> None:
    base = [0.50, 0.61, 0.72, 0.80]
    shifts = {"a": [0.10, 0.13, 0.08, 0.12], "b": [0.01, 0.03, -0.02, 0.03], "c": [0.2] * 3 + [0.3]}
    results = runs("base", base)
    for arm, shift in shifts.items():
        results += runs(arm, [r + s for r, s in zip(base, shift, strict=True)])
    alone = {arm: rows([r for r in results if r.arm in ("base", arm)])[arm] for arm in shifts}
    together, raw = rows(results), pandas.Series([row["p_holm"] for row in alone.values()])
    assert [together[arm]["p_holm"] for arm in shifts] == pytest.approx(holm(raw).tolist())
    for arm in shifts:
        assert interval(together[arm], "bootstrap") == interval(alone[arm], "bootstrap")


def test_figures_that_are_not_finite_or_too_large_are_missing() -> None:
    values = [math.nan, math.inf, 1e160, None, 1]
    figures = figures_of(table_of(runs("a", values)), FIELD)  # type: ignore[arg-type]
    assert figures.tolist() == pytest.approx([math.nan] * 4 + [1.0], nan_ok=True)


test_summarise_refuses = rejects(
    lambda case: summarise(table_of(case[0]), **{"field": FIELD, **case[1]}),
    [
        (([], {}), "at least one cell, got none; run the sweep first"),
        ((runs("a", [0.5]), {"reference": "base"}), "one of the arms 'a', got 'base'"),
        ((runs("a", [0.5]), {"field": "f1"}), "one of test_accuracy, loss, name, got 'f1'"),
        ((runs("a", [0.5]), {"field": "name"}), "numbers in field 'name', got 'text' in 'a'"),
        ((runs("a", [0.5]) * 2, {}), "got two of arm 'a', seed 0: a-0 and a-0; keep one"),
    ],
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), max_size=7))
def test_holm_is_bonferroni_over_all_families_that_hold_a_hypothesis(raw: list[float]) -> None:
    indices, sizes = range(len(raw)), range(1, len(raw) + 1)
    families = [f for size in sizes for f in itertools.combinations(indices, size)]
    closed = [max(len(f) * min(raw[j] for j in f) for f in families if i in f) for i in indices]
    corrected = holm(pandas.Series(raw, dtype="float64")).tolist()
    assert corrected == [min(1.0, p) for p in closed]


def test_equal_differences_have_no_spread_and_the_p_value_of_flipped_signs() -> None:
    reference, values = (
        [k / 360 for k in right] for right in ((301, 317, 322, 330), (304, 320, 325, 333))
    )
    assert len({a - b for a, b in zip(values, reference, strict=True)}) > 1
    row = compared(values, reference)
    assert row["difference"] == pytest.approx(3 / 360)
    assert all(map(math.isnan, (*interval(row), *interval(row, "bootstrap"))))
    assert compared([0.1 + 0.2, 0.5], [0.3, 0.5])["difference"] == 0.0
    for shift, seeds, p in ((0.0, 2, 1.0), (0.25, 2, 0.5), (-0.25, 5, 2.0**-4)):
        # Of the 2^n ways to flip the signs of n equal differences, two are as far from zero.
        assert compared([0.5 + shift] * seeds, [0.5] * seeds)["p_holm"] == p
