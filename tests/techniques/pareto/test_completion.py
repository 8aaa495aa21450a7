"""Completion and embeddings by the spec's vectors; predictions."""

from itertools import combinations

import numpy as np
import pytest

from lpkernels.techniques.pareto import (
    complete,
    embed,
    predict,
)
from tests.techniques.pareto.matrices import (
    BASIS,
    HIDDEN,
    NEW,
    RANK_ONE,
    TRAINED,
    low_rank,
    mask_of,
    some_of,
)

MASK = mask_of(RANK_ONE.shape, HIDDEN)
TO_THE_END = {"clip": None, "tolerance": 1e-15, "steps": 10_000}
OPTIONS = {"rank": 1, "lam": 0.1}


def test_rank_one_is_recovered_and_shrunk_by_lam_as_worked_out():
    completion = complete(RANK_ONE, MASK, rank=1, lam=0, **TO_THE_END)
    assert completion.converged
    assert np.abs(completion.values - RANK_ONE).max() < 1e-12
    values = complete(RANK_ONE, MASK, rank=1, lam=1e-3, **TO_THE_END).values
    assert np.abs(values - RANK_ONE)[~MASK].max() == pytest.approx(5.5e-4, abs=1e-6)
    values = complete(RANK_ONE, MASK, rank=1, lam=0.1, **TO_THE_END).values
    want = [0.0480, 0.3656, 0.0457, 0.3985, 0.3320, 0.3601]
    assert values[~MASK] == pytest.approx(want, abs=5e-5)
    # A full matrix is shrunk along its singular values.
    for rank in (1, 4):
        values = complete(RANK_ONE, np.ones_like(MASK), rank=rank, lam=0.1, **TO_THE_END).values
        assert values == pytest.approx(0.9395602 * RANK_ONE, abs=1e-6)


def test_an_error_that_was_not_observed_is_never_read():
    want = complete(RANK_ONE, MASK, **OPTIONS).values
    assert (complete(np.where(MASK, RANK_ONE, np.nan), MASK, **OPTIONS).values == want).all()


def test_clip_bounds_the_estimates_and_convergence_is_told():
    x = np.array([[0.5, 0.8], [1.0, 0.0]])
    mask = mask_of(x.shape, ((1, 1),))
    free = complete(x, mask, rank=1, lam=0, clip=None).values
    assert free[1, 1] == pytest.approx(1.6, abs=1e-3)
    assert (complete(x, mask, rank=1, lam=0).values == np.clip(free, 0, 1)).all()
    x, mask = low_rank(10, 12, 3, noise=0.05), some_of((10, 12), 0.5)
    short = complete(x, mask, rank=3, lam=0.01, steps=3)
    assert not short.converged and short.steps == 3 and short.change > 1e-4
    long = complete(x, mask, rank=3, lam=0.01)
    assert long.converged and long.change <= 1e-4
    assert complete(x, mask, rank=3, lam=0.01, tolerance=1e9).steps == 1


def test_a_nan_error_counts_as_missing_with_a_warning():
    x, mask = RANK_ONE.copy(), np.ones_like(MASK)
    x[~MASK] = np.nan
    with pytest.warns(UserWarning, match="6 of 24 measured errors are NaN and count as missing"):
        completion = complete(x, mask, **OPTIONS)
    assert (completion.values == complete(RANK_ONE, MASK, **OPTIONS).values).all()
    x[1] = np.nan
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="row 1 has no observed entry"):
        complete(x, MASK, **OPTIONS)


Y = embed(TRAINED, 2)


def test_embeddings_are_orthonormal_span_the_tasks_and_have_one_sign():
    assert Y.shape == (2, 6)
    assert Y @ Y.T == pytest.approx(np.eye(2), abs=1e-12)
    assert pytest.approx(TRAINED) == TRAINED @ Y.T @ Y
    largest = np.take_along_axis(Y, np.abs(Y).argmax(axis=1)[:, None], axis=1)
    assert (largest > 0).all()
    assert embed(TRAINED[[1, 2, 0]], 2) == pytest.approx(Y)


@pytest.mark.parametrize("pair", list(combinations(range(6), 2)))
def test_any_two_independent_columns_recover_a_task_of_rank_two(pair: tuple[int, int]):
    chosen = list(pair)
    assert predict(Y, chosen, NEW[chosen]) == pytest.approx(NEW, abs=1e-12)
    assert predict(Y, chosen, NEW[chosen], keep_measured=False) == pytest.approx(NEW, abs=1e-12)


def test_measured_entries_are_kept_and_seeds_averaged_unless_the_fit_is_wanted():
    errors = [0.9, 0.1, 0.5]
    with_measured = predict(BASIS, [0, 2, 5], errors)
    assert with_measured[[0, 2, 5]].tolist() == errors
    fitted = predict(BASIS, [0, 2, 5], errors, keep_measured=False)
    assert np.abs(fitted[[0, 2, 5]] - errors).max() > 0.01
    others = [1, 3, 4]
    assert (with_measured[others] == fitted[others]).all()
    several = predict(BASIS, [0, 5, 5], [0.4, 0.2, 0.4])
    assert several[5] == pytest.approx(0.3)
    assert several == pytest.approx(predict(BASIS, [0, 5], [0.4, 0.3]))


def test_a_measured_nan_counts_as_missing_with_a_warning():
    errors = NEW[[0, 1, 5]].copy()
    errors[1] = np.nan
    with pytest.warns(UserWarning, match="predict: 1 of 3 measured errors are NaN"):
        assert predict(Y, [0, 1, 5], errors) == pytest.approx(NEW)
