"""Bands: how often the truth is in them; and configurations that they rule out."""

import numpy as np
import pytest

from lpkernels.techniques.pareto import (
    embed,
    frontier_band,
    held_out_residuals,
    hopeful,
    predict,
    select,
)
from tests.loops import each
from tests.support.refusals import refused
from tests.techniques.pareto.matrices import BASIS, TRAINED, low_rank, some_of

MEMORY = np.repeat(np.arange(1.0, 11), 3)
X = low_rank(40, 30, 2, noise=0.03)
Y = embed(X[1:], 2)
CHOSEN = select(Y, n=6)
RESIDUALS = held_out_residuals(X[1:], 2)


def band_of(memory: np.ndarray = MEMORY, **options):
    return frontier_band(Y, CHOSEN, X[0, CHOSEN], memory, **{"residuals": RESIDUALS, **options})


def test_held_out_residuals_are_of_the_fit_to_a_row_by_the_others():
    tasks = low_rank(6, 8, 3)
    left, y = held_out_residuals(tasks, 2)[0], embed(tasks[1:], 2)
    assert left == pytest.approx((tasks[0] - tasks[0] @ y.T @ y) * np.sqrt(8 / 6))
    # They are zero where the rank is exact.
    tasks = np.vstack([TRAINED, [0.3, 0.7] @ BASIS])
    assert np.abs(held_out_residuals(tasks, 2)).max() < 1e-12


def test_held_out_residuals_are_as_large_as_the_noise_also_with_gaps():
    x = low_rank(40, 30, 2, noise=0.03, seed=1)
    assert held_out_residuals(x, 2).std() == pytest.approx(0.03, rel=0.1)
    holed = np.where(some_of(x.shape, 0.5), x, np.nan)
    holed[7, 2:] = np.nan
    holed[7, :2] = x[7, :2]
    left = held_out_residuals(holed, 2)
    assert np.isnan(left[7]).all()
    others = np.arange(40) != 7
    assert (np.isnan(left) == np.isnan(holed))[others].all()
    assert np.nanstd(left) == pytest.approx(0.03, rel=0.15)
    found = frontier_band(Y, CHOSEN, X[0, CHOSEN], MEMORY, residuals=left)
    assert np.isfinite(found.low).all()


def test_the_band_is_of_the_frontier_and_what_was_measured_has_none():
    found = band_of()
    assert found.memory.tolist() == list(range(1, 11))
    predicted = predict(Y, CHOSEN, X[0, CHOSEN])
    least = [predicted[MEMORY <= m].min() for m in found.memory]
    assert found.error == pytest.approx(least)
    assert (found.low <= found.high).all()
    for line in (found.error, found.low, found.high):
        assert (np.diff(line) <= 0).all()
    for end in (found.error_low, found.error_high):
        assert (end[CHOSEN] == X[0, CHOSEN]).all()
    others = np.setdiff1d(np.arange(30), CHOSEN)
    assert (found.error_low[others] < found.error_high[others]).all()


@each("level", [0.5, 0.9])
def test_the_truth_is_in_the_bands_as_often_as_they_say(level: float):
    x = low_rank(110, 30, 2, noise=0.03, seed=3)
    known, new = x[:40], x[40:]
    y, residuals = embed(known, 2), held_out_residuals(known, 2)
    chosen = select(y, n=6)
    others = np.setdiff1d(np.arange(30), chosen)
    options = {"residuals": residuals, "level": level, "draws": 100}
    bands = [frontier_band(y, chosen, task[chosen], MEMORY, **options) for task in new]
    low, high = (np.array([getattr(b, f"error_{end}")[others] for b in bands])
                 for end in ("low", "high"))  # fmt: skip
    inside = (low <= new[:, others]) & (new[:, others] <= high)
    assert inside.mean() == pytest.approx(level, abs=0.05)


def test_bands_are_drawn_from_the_seed_wider_at_a_larger_level_and_within_clip():
    assert (band_of(seed=1).low == band_of(seed=1).low).all()
    assert (band_of(seed=1).low != band_of(seed=2).low).any()
    narrow, wide = band_of(level=0.5), band_of(level=0.95)
    assert (wide.low <= narrow.low).all() and (wide.high >= narrow.high).all()
    loud = band_of(residuals=20 * RESIDUALS)
    assert loud.error_low.min() == 0 and loud.error_high.max() == 1
    assert band_of(residuals=20 * RESIDUALS, clip=None).error_low.min() < 0


def test_a_list_of_residuals_is_drawn_value_by_value():
    none = band_of(residuals=[0.0, 0.0])
    assert none.low == pytest.approx(none.error)
    assert none.high == pytest.approx(none.error)
    assert (band_of(residuals=RESIDUALS.ravel()).low <= none.low + 1e-12).all()


def test_nan_measurements_are_left_out():
    errors = X[0, CHOSEN].copy()
    errors[0] = np.nan
    with pytest.warns(UserWarning, match="predict: 1 of 6"):
        found = frontier_band(Y, CHOSEN, errors, MEMORY, residuals=RESIDUALS)
    assert found.error_low[CHOSEN[0]] < found.error_high[CHOSEN[0]]
    assert found.error_low[CHOSEN[1]] == found.error_high[CHOSEN[1]]


def test_hopeful_is_what_may_lie_below_the_known_frontier():
    known = [2, 4], [0.5, 0.3]
    memory, low = [1, 2, 3, 3, 4, 9], [0.9, 0.5, 0.5, 0.4, 0.29, 0.3]
    want = [True, False, False, True, True, False]
    assert hopeful(memory, low, *known).tolist() == want
    assert hopeful(memory, low, [], []).all()


WRONG = [
    (lambda: band_of(level=1), "level: expected a finite number above 0 and below 1, got 1"),
    (lambda: band_of(level=0), "level: expected a finite number above 0"),
    (lambda: band_of(draws=1), "draws: expected at least 2"),
    (lambda: band_of(residuals=RESIDUALS[:, :9]), "residuals have 9 configurations, expected"),
    (lambda: band_of(residuals=RESIDUALS * np.nan), "residuals must be finite, or NaN where"),
    (lambda: band_of(residuals=RESIDUALS + np.inf), "residuals must be finite, or NaN where"),
    (lambda: band_of(memory=MEMORY[:9]), "memory has 9 configurations, y has 30"),
    (lambda: held_out_residuals(X[:1], 1), "at least 2 rows, got 1"),
    (lambda: held_out_residuals(X[:3], 3), "has rank 2, got rank=3"),
    (lambda: held_out_residuals(X[:9, :2], 2), "no row has more than rank=2 errors, at most 2"),
    (lambda: hopeful([1, 2], [0.1], [1], [0.1]), "got 2 values of memory and 1 of low"),
    (lambda: hopeful([1], [0.1], [1, 2], [0.1]), "got 2 of known_memory and 1 of known_error"),
    (lambda: hopeful([1], [np.nan], [1], [0.1]), "low: expected finite numbers"),
]
test_wrong_bands_are_refused = refused(WRONG, ValueError)
