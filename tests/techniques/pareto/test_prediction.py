"""Predictions from a few measurements, and how often the truth is in their bands."""

from itertools import combinations

import numpy as np
import pytest

from lpkernels.techniques.pareto import embed, frontier_band, held_out_residuals, predict, select
from tests.loops import each
from tests.support.refusals import refused
from tests.techniques.pareto.matrices import BASIS, NEW, TRAINED, low_rank, some_of

Y = embed(TRAINED, 2)


@each("pair", combinations(range(6), 2))
def test_any_two_independent_columns_recover_a_task_of_rank_two(pair: tuple[int, int]):
    chosen = list(pair)
    assert predict(Y, chosen, NEW[chosen]) == pytest.approx(NEW, abs=1e-12)
    assert predict(Y, chosen, NEW[chosen], keep_measured=False) == pytest.approx(NEW, abs=1e-12)


def test_predictions_do_not_depend_on_the_basis():
    x = low_rank(12, 20, 4, noise=0.1)
    y, new, chosen = embed(x[1:], 3), x[0], [1, 5, 9, 17]
    turned = np.random.default_rng(0).standard_normal((3, 3)) @ y
    assert predict(turned, chosen, new[chosen]) == pytest.approx(predict(y, chosen, new[chosen]))


def test_measured_entries_are_kept_and_seeds_averaged_unless_the_fit_is_wanted():
    errors = [0.9, 0.1, 0.5]
    kept = predict(BASIS, [0, 2, 5], errors)
    assert kept[[0, 2, 5]].tolist() == errors
    fitted = predict(BASIS, [0, 2, 5], errors, keep_measured=False)
    assert np.abs(fitted[[0, 2, 5]] - errors).max() > 0.01
    others = [1, 3, 4]
    assert (kept[others] == fitted[others]).all()
    several = predict(BASIS, [0, 5, 5], [0.4, 0.2, 0.4])
    assert several[5] == pytest.approx(0.3)
    assert several == pytest.approx(predict(BASIS, [0, 5], [0.4, 0.3]))


def test_ridge_makes_the_embedding_of_the_task_shorter():
    found = [np.linalg.norm(predict(Y, [0, 5], NEW[[0, 5]], keep_measured=False, ridge=r))
             for r in (0, 1e-9, 0.1, 1)]  # fmt: skip
    assert found[1] == pytest.approx(found[0])
    assert found[0] > found[2] > found[3] > 0
    assert np.isfinite(predict(Y, [0], NEW[:1], ridge=0.1)).all()


def test_a_measured_nan_counts_as_missing_with_a_warning():
    errors = NEW[[0, 1, 5]].copy()
    errors[1] = np.nan
    with pytest.warns(UserWarning, match="predict: 1 of 3 measured errors are NaN"):
        assert predict(Y, [0, 1, 5], errors) == pytest.approx(NEW)


MEMORY = np.repeat(np.arange(1.0, 11), 3)
X = low_rank(40, 30, 2, noise=0.03)
OTHERS = embed(X[1:], 2)
CHOSEN = select(OTHERS, n=6)
RESIDUALS = held_out_residuals(X[1:], 2)


def band_of(memory: np.ndarray = MEMORY, **options):
    return frontier_band(
        OTHERS, CHOSEN, X[0, CHOSEN], memory, **{"residuals": RESIDUALS, **options}
    )


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
    found = frontier_band(OTHERS, CHOSEN, X[0, CHOSEN], MEMORY, residuals=left)
    assert np.isfinite(found.low).all()


def test_the_band_is_of_the_frontier_and_what_was_measured_has_none():
    found = band_of()
    assert found.memory.tolist() == list(range(1, 11))
    predicted = predict(OTHERS, CHOSEN, X[0, CHOSEN])
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
        found = frontier_band(OTHERS, CHOSEN, errors, MEMORY, residuals=RESIDUALS)
    assert found.error_low[CHOSEN[0]] < found.error_high[CHOSEN[0]]
    assert found.error_low[CHOSEN[1]] == found.error_high[CHOSEN[1]]


WRONG = [
    (lambda: predict(Y, [0], [1]), "1 measurements of rank 1 cannot fix an embedding of rank 2"),
    (lambda: predict(Y, [0, 1], [0.1]), r"errors: expected shape \(2,\), got \(1,\)"),
    (lambda: predict(Y, [0, 1], [np.nan, np.nan]), "every measured error is NaN"),
    (lambda: band_of(level=1), "level: expected a finite number above 0 and below 1, got 1"),
    (lambda: band_of(residuals=RESIDUALS[:, :9]), r"residuals: expected shape \(39, 30\)"),
    (lambda: band_of(residuals=RESIDUALS * np.nan), "residuals must be finite, or NaN where"),
    (lambda: held_out_residuals(X[:1], 1), "at least 2 rows, got 1"),
    (lambda: held_out_residuals(X[:3], 3), "has rank 2, got rank=3"),
    (lambda: held_out_residuals(X[:9, :2], 2), "rank: expected 1 to 1, got 2"),
]
ignoring_nan = pytest.mark.filterwarnings("ignore:predict.*NaN")
test_wrong_predictions_are_refused = ignoring_nan(refused(WRONG, (TypeError, ValueError)))
