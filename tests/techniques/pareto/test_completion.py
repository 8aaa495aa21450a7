"""Completion and embeddings: the spec's vectors, propensities, invariances, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpkernels.techniques.pareto import complete, embed
from tests.loops import each
from tests.support.refusals import refused, refuses
from tests.techniques.pareto.matrices import (
    HIDDEN,
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
    found = complete(RANK_ONE, MASK, rank=1, lam=0, **TO_THE_END)
    assert found.converged
    assert np.abs(found.values - RANK_ONE).max() < 1e-12
    found = complete(RANK_ONE, MASK, rank=1, lam=1e-3, **TO_THE_END).values
    assert np.abs(found - RANK_ONE)[~MASK].max() == pytest.approx(5.5e-4, abs=1e-6)
    found = complete(RANK_ONE, MASK, rank=1, lam=0.1, **TO_THE_END).values
    want = [0.0480, 0.3656, 0.0457, 0.3985, 0.3320, 0.3601]
    assert found[~MASK] == pytest.approx(want, abs=5e-5)
    # A full matrix is shrunk along its singular values.
    for rank in (1, 4):
        found = complete(RANK_ONE, np.ones_like(MASK), rank=rank, lam=0.1, **TO_THE_END).values
        assert found == pytest.approx(0.9395602 * RANK_ONE, abs=1e-6)


def proximal(x: np.ndarray, w: np.ndarray, lam: float, steps: int) -> np.ndarray:
    """The slow way: plain proximal gradient steps on the convex problem."""
    z, length = np.zeros_like(x), 1 / w.max()
    for _ in range(steps):
        u, s, vt = np.linalg.svd(z - length * w * (z - x), full_matrices=False)
        z = (u * np.maximum(s - lam * length, 0)) @ vt
    return z


@each("weighted", [False, True])
def test_with_full_rank_it_is_the_minimum_of_the_convex_problem(weighted: bool):
    x = low_rank(7, 9, 2, noise=0.05)
    mask = some_of(x.shape, 0.6)
    w = np.where(mask, np.random.default_rng(1).uniform(1, 6, x.shape) if weighted else 1.0, 0.0)
    # A cell that was not observed may have had no chance at all.
    options = {"propensities": np.where(mask, 1 / np.maximum(w, 1), 0)} if weighted else {}
    found = complete(x, mask, rank=7, lam=0.2, **TO_THE_END, **options).values
    assert found == pytest.approx(proximal(np.where(mask, x, 0), w, 0.2, 1500), abs=1e-6)


def test_noise_is_not_fitted_where_the_rank_is_right():
    x = low_rank(40, 50, 2, noise=0.01)
    mask = some_of(x.shape, 0.4)
    found = complete(x, mask, rank=2, lam=0.02)
    assert found.converged
    assert np.sqrt(((found.values - x)[~mask] ** 2).mean()) < 0.015
    assert np.linalg.matrix_rank(complete(x, mask, rank=2, lam=0.02, clip=None).values) == 2


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**31))
def test_the_order_of_rows_and_columns_does_not_matter(seed: int):
    rng = np.random.default_rng(seed)
    x, mask = low_rank(8, 11, 2, noise=0.02, seed=seed), some_of((8, 11), 0.6, seed)
    rows, columns = rng.permutation(8), rng.permutation(11)
    options = {"rank": 2, "lam": 0.1, "tolerance": 1e-12}
    found = complete(x, mask, **options).values
    moved = complete(x[rows][:, columns], mask[rows][:, columns], **options).values
    assert moved == pytest.approx(found[rows][:, columns], abs=1e-6)
    assert complete(x.T, mask.T, **options).values.T == pytest.approx(found, abs=1e-5)


def test_what_was_not_observed_is_never_read():
    want = complete(RANK_ONE, MASK, **OPTIONS).values
    assert (complete(np.where(MASK, RANK_ONE, np.nan), MASK, **OPTIONS).values == want).all()
    chances = np.where(MASK, 1.0, np.nan)
    assert (complete(RANK_ONE, MASK, propensities=chances, **OPTIONS).values == want).all()


def test_a_warm_start_takes_fewer_steps_to_the_same_values():
    x, mask = low_rank(20, 30, 2, noise=0.02), some_of((20, 30), 0.5)
    options = {"rank": 2, "lam": 0.1, "tolerance": 1e-9}
    first = complete(x, mask, **options)
    more = mask | some_of(x.shape, 0.1, seed=5)
    cold = complete(x, more, **options)
    warm = complete(x, more, start=first.values, **options)
    assert warm.steps < cold.steps
    assert warm.values == pytest.approx(cold.values, abs=1e-6)
    assert complete(x, mask, start=first.values, **options).steps <= 2


def test_clip_bounds_the_estimates_and_convergence_is_told():
    x = np.array([[0.5, 0.8], [1.0, 0.0]])
    mask = mask_of(x.shape, ((1, 1),))
    free = complete(x, mask, rank=1, lam=0, clip=None).values
    assert free[1, 1] == pytest.approx(1.6, abs=1e-3)
    assert (complete(x, mask, rank=1, lam=0).values == np.clip(free, 0, 1)).all()
    x, mask = low_rank(10, 12, 3, noise=0.05), some_of((10, 12), 0.5)
    short = complete(x, mask, rank=3, lam=0.01, steps=3)
    assert not short.converged and short.steps == 3 and short.change > 1e-4
    assert "NOT converged after 3 steps" in str(short)
    long = complete(x, mask, rank=3, lam=0.01)
    assert long.converged and long.change <= 1e-4


def test_a_nan_error_counts_as_missing_with_a_warning():
    x, mask = RANK_ONE.copy(), np.ones_like(MASK)
    x[~MASK] = np.nan
    with pytest.warns(UserWarning, match="6 of 24 measured errors are NaN and count as missing"):
        found = complete(x, mask, **OPTIONS)
    assert (found.values == complete(RANK_ONE, MASK, **OPTIONS).values).all()
    assert (found.observed == MASK).all()
    x[1] = np.nan
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="row 1 has no observed entry"):
        complete(x, MASK, **OPTIONS)


NO_ROW, NO_COLUMN = MASK.copy(), MASK.copy()
NO_ROW[2], NO_COLUMN[:, 3] = False, False
ZEROS, LARGE = 0 * RANK_ONE, 2 + RANK_ONE
test_wrong_input_is_refused = refuses(
    complete,
    [
        ((RANK_ONE, NO_ROW), {}, ValueError, "row 2 has no observed entry"),
        ((RANK_ONE, MASK), {"rank": 5}, ValueError, "rank: expected 1 to 4, got 5"),
        ((RANK_ONE, MASK), {"lam": -1}, ValueError, "lam: expected a finite number of at least 0"),
        ((RANK_ONE * 100, MASK), {}, ValueError, r"errors must be in clip=\(0.0, 1.0\)"),
        ((RANK_ONE, MASK), {"clip": (1, 0)}, ValueError, "low < high"),
        ((RANK_ONE, MASK[:3]), {}, ValueError, r"mask has shape \(3, 6\), x has \(4, 6\)"),
        ((RANK_ONE, MASK * 1), {}, TypeError, "mask must hold bools"),
        ((np.where(MASK, np.inf, 0), MASK), {}, ValueError, "got inf at row 0, column 0"),
        ((RANK_ONE, MASK), {"propensities": ZEROS}, ValueError, "above 0 .* got 0"),
        ((RANK_ONE, MASK), {"propensities": LARGE}, ValueError, "expected probabilities .* got 2"),
        ((RANK_ONE, MASK), {"start": RANK_ONE.T}, ValueError, r"start: expected shape \(4, 6\)"),
    ],
    **OPTIONS,
)  # fmt: skip
Y = embed(TRAINED, 2)


def test_embeddings_are_orthonormal_span_the_tasks_and_have_one_sign():
    assert Y.shape == (2, 6)
    assert Y @ Y.T == pytest.approx(np.eye(2), abs=1e-12)
    assert pytest.approx(TRAINED) == TRAINED @ Y.T @ Y
    largest = np.take_along_axis(Y, np.abs(Y).argmax(axis=1)[:, None], axis=1)
    assert (largest > 0).all()
    assert embed(TRAINED[[1, 2, 0]], 2) == pytest.approx(Y)


HOLED = np.where(TRAINED > 0.5, np.nan, TRAINED)
WRONG = [
    (lambda: embed(TRAINED, 3), "x, 3 x 6, has rank 2, got rank=3"),
    (lambda: embed(HOLED, 1), r"got nan .* complete\(...\) fills"),
    (lambda: embed(np.zeros((3, 6)), 1), "has rank 0"),
]
test_what_cannot_be_embedded_is_refused = refused(WRONG, ValueError)
