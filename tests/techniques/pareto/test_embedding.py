"""Embeddings and predictions from a few measurements."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from lpkernels.techniques.pareto import embed, predict
from tests.loops import each
from tests.techniques.pareto.matrices import BASIS, NEW, TRAINED, low_rank

Y = embed(TRAINED, 2)


def test_embeddings_are_orthonormal_and_span_the_tasks():
    assert Y.shape == (2, 6)
    assert Y @ Y.T == pytest.approx(np.eye(2), abs=1e-12)
    assert pytest.approx(TRAINED) == TRAINED @ Y.T @ Y


def test_embeddings_have_one_sign():
    largest = np.take_along_axis(Y, np.abs(Y).argmax(axis=1)[:, None], axis=1)
    assert (largest > 0).all()
    assert embed(TRAINED[[1, 2, 0]], 2) == pytest.approx(Y)


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


def test_measured_entries_are_kept_unless_the_fit_is_wanted():
    errors = [0.9, 0.1, 0.5]
    kept = predict(BASIS, [0, 2, 5], errors)
    assert kept[[0, 2, 5]].tolist() == errors
    fitted = predict(BASIS, [0, 2, 5], errors, keep_measured=False)
    assert np.abs(fitted[[0, 2, 5]] - errors).max() > 0.01
    others = [1, 3, 4]
    assert (kept[others] == fitted[others]).all()


def test_seeds_of_one_configuration_are_averaged():
    several = predict(BASIS, [0, 5, 5], [0.4, 0.2, 0.4])
    assert several[5] == pytest.approx(0.3)
    assert several == pytest.approx(predict(BASIS, [0, 5], [0.4, 0.3]))


def test_ridge_makes_the_embedding_of_the_task_shorter():
    found = [np.linalg.norm(predict(Y, [0, 5], NEW[[0, 5]], keep_measured=False, ridge=r))
             for r in (0, 1e-9, 0.1, 1)]  # fmt: skip
    assert found[1] == pytest.approx(found[0])
    assert found[0] > found[2] > found[3] > 0
    # With one measurement for two dimensions, only a ridge says which embedding is meant.
    assert np.isfinite(predict(Y, [0], NEW[:1], ridge=0.1)).all()


def test_a_nan_error_counts_as_missing_with_a_warning():
    errors = NEW[[0, 1, 5]].copy()
    errors[1] = np.nan
    with pytest.warns(UserWarning, match="predict: 1 of 3 measured errors are NaN"):
        assert predict(Y, [0, 1, 5], errors) == pytest.approx(NEW)


NOT_EMBEDDED = [
    (TRAINED, 3, "x, 3 x 6, has rank 2, got rank=3"),
    (TRAINED, 0, "rank must be at least 1"),
    (np.where(TRAINED > 0.5, np.nan, TRAINED), 1, r"got nan .* complete\(...\) fills"),
    (np.zeros((3, 6)), 1, "has rank 0"),
    (TRAINED[0], 1, "must have 2 dimension"),
]


@each("x, rank, match", NOT_EMBEDDED)
def test_what_cannot_be_embedded_is_refused(x, rank, match):
    with pytest.raises(ValueError, match=match):
        embed(x, rank)


WRONG = [
    ([0], [0.1], {}, ValueError, "1 measurements of rank 1 cannot fix an embedding of rank 2"),
    ([0, 0], [0.1, 0.2], {}, ValueError, "2 measurements of rank 1 cannot fix"),
    ([0, 6], [0.1, 0.2], {}, ValueError, r"indices must be configurations in 0\.\.5, got 6"),
    ([0, 1], [0.1], {}, ValueError, "got 2 indices and 1 errors"),
    ([0, 1], [np.nan, np.nan], {}, ValueError, "every measured error is NaN"),
    ([0, 1], [np.inf, 0.1], {}, ValueError, "finite or NaN"),
    ([0.0, 1.0], [0.1, 0.2], {}, TypeError, "indices must be a sequence of ints"),
    ([0, 1], [0.1, 0.2], {"ridge": -1}, ValueError, "ridge must be finite and at least 0"),
]


@pytest.mark.filterwarnings("ignore:predict.*NaN")
@each("indices, errors, options, error, match", WRONG)
def test_measurements_that_do_not_fit_are_refused(indices, errors, options, error, match):
    with pytest.raises(error, match=match):
        predict(Y, indices, errors, **options)
