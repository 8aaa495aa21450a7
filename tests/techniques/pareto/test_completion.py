"""Completion: the spec's vectors, weights, invariances, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpkernels.techniques.pareto import complete
from tests.loops import each
from tests.techniques.pareto.matrices import HIDDEN, RANK_ONE, low_rank, mask_of, some_of

MASK = mask_of(RANK_ONE.shape, HIDDEN)
TO_THE_END = {"clip": None, "tolerance": 1e-15, "steps": 10_000}


def test_rank_one_is_recovered_without_lam():
    found = complete(RANK_ONE, MASK, rank=1, lam=0, **TO_THE_END)
    assert found.converged
    assert np.abs(found.values - RANK_ONE).max() < 1e-12


def test_lam_shrinks_what_was_hidden_as_worked_out():
    found = complete(RANK_ONE, MASK, rank=1, lam=1e-3, **TO_THE_END).values
    assert np.abs(found - RANK_ONE)[~MASK].max() == pytest.approx(5.5e-4, abs=1e-6)
    found = complete(RANK_ONE, MASK, rank=1, lam=0.1, **TO_THE_END).values
    want = [0.0480, 0.3656, 0.0457, 0.3985, 0.3320, 0.3601]
    assert found[~MASK] == pytest.approx(want, abs=5e-5)


@each("rank", [1, 4])
def test_a_full_matrix_is_shrunk_along_its_singular_values(rank: int):
    found = complete(RANK_ONE, np.ones_like(MASK), rank=rank, lam=0.1, **TO_THE_END).values
    assert found == pytest.approx(0.9395602 * RANK_ONE, abs=1e-6)


def objective(z: np.ndarray, x: np.ndarray, w: np.ndarray, lam: float) -> float:
    return 0.5 * float((w * (z - x) ** 2).sum()) + lam * float(np.linalg.norm(z, "nuc"))


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
    given_weights = np.random.default_rng(1).uniform(0.5, 3, x.shape)
    w = np.where(mask, given_weights if weighted else 1.0, 0.0)
    options = {"weights": given_weights} if weighted else {}
    found = complete(x, mask, rank=7, lam=0.2, **TO_THE_END, **options).values
    slow = proximal(np.where(mask, x, 0), w, 0.2, 1500)
    assert found == pytest.approx(slow, abs=1e-6)
    assert objective(found, x, w, 0.2) <= objective(slow, x, w, 0.2) + 1e-9


def test_propensities_weigh_by_their_inverse():
    x = low_rank(6, 8, 2, noise=0.1)
    mask = some_of(x.shape, 0.7)
    p = np.random.default_rng(2).uniform(0.2, 1, x.shape)
    by_weight = complete(x, mask, rank=2, lam=0.1, weights=1 / p).values
    # A cell that was not observed may have had no chance at all.
    by_propensity = complete(x, mask, rank=2, lam=0.1, propensities=np.where(mask, p, 0)).values
    assert by_propensity == pytest.approx(by_weight, abs=1e-12)
    assert np.abs(by_weight - complete(x, mask, rank=2, lam=0.1).values).max() > 1e-3


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
    hidden = np.where(MASK, RANK_ONE, np.nan)
    options = {"rank": 1, "lam": 0.1}
    want = complete(RANK_ONE, MASK, **options).values
    assert (complete(hidden, MASK, **options).values == want).all()
    weights = np.where(MASK, 1.0, np.nan)
    assert (complete(hidden, MASK, weights=weights, **options).values == want).all()


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


def test_clip_bounds_the_estimates():
    x = np.array([[0.5, 0.8], [1.0, 0.0]])
    mask = mask_of(x.shape, ((1, 1),))
    free = complete(x, mask, rank=1, lam=0, clip=None).values
    assert free[1, 1] == pytest.approx(1.6, abs=1e-3)
    clipped = complete(x, mask, rank=1, lam=0).values
    assert (clipped == np.clip(free, 0, 1)).all()


def test_convergence_is_told():
    x, mask = low_rank(10, 12, 3, noise=0.05), some_of((10, 12), 0.5)
    short = complete(x, mask, rank=3, lam=0.01, steps=3)
    assert not short.converged and short.steps == 3 and short.change > 1e-4
    assert "NOT converged after 3 steps" in str(short)
    long = complete(x, mask, rank=3, lam=0.01)
    assert long.converged and long.change <= 1e-4
    assert str(long).startswith(f"10 x 12, {mask.mean():.0%} observed: converged after")


def test_a_nan_error_counts_as_missing_with_a_warning():
    x, mask = RANK_ONE.copy(), np.ones_like(MASK)
    x[~MASK] = np.nan
    with pytest.warns(UserWarning, match="6 of 24 measured errors are NaN and count as missing"):
        found = complete(x, mask, rank=1, lam=0.1)
    assert (found.values == complete(RANK_ONE, MASK, rank=1, lam=0.1).values).all()
    assert (found.observed == MASK).all()
    x[1] = np.nan
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="row 1 has no observed entry"):
        complete(x, MASK, **OPTIONS)


NO_ROW, NO_COLUMN = MASK.copy(), MASK.copy()
NO_ROW[2], NO_COLUMN[:, 3] = False, False
OPTIONS = {"rank": 1, "lam": 0.1}


WRONG = [
    (RANK_ONE, NO_ROW, {}, ValueError, "row 2 has no observed entry"),
    (RANK_ONE, NO_COLUMN, {}, ValueError, "column 3 has no observed entry"),
    (RANK_ONE, MASK, {"rank": 5}, ValueError, r"rank must be in 1\.\.4 .* 4 x 6, got 5"),
    (RANK_ONE, MASK, {"rank": 0}, ValueError, "rank must be at least 1"),
    (RANK_ONE, MASK, {"lam": -1}, ValueError, "lam must be finite and at least 0"),
    (RANK_ONE, MASK, {"steps": 0}, ValueError, "steps must be at least 1"),
    (RANK_ONE, MASK, {"tolerance": np.nan}, ValueError, "tolerance must be finite"),
    (RANK_ONE * 100, MASK, {}, ValueError, r"errors must be in clip=\(0.0, 1.0\)"),
    (RANK_ONE, MASK, {"clip": (1, 0)}, ValueError, "low < high"),
    (RANK_ONE, MASK, {"clip": 1}, TypeError, "clip must be"),
    (RANK_ONE, MASK[:3], {}, ValueError, r"mask has shape \(3, 6\), x has \(4, 6\)"),
    (RANK_ONE, MASK * 1, {}, TypeError, "mask must hold bools"),
    (RANK_ONE[0], MASK[0], {}, ValueError, "x must have 2 dimension"),
    (RANK_ONE > 0, MASK, {}, TypeError, "x must hold real numbers, got bool"),
    (np.where(MASK, np.inf, 0), MASK, {}, ValueError, "got inf at row 0, column 0"),
    (RANK_ONE, MASK, {"weights": 0 * RANK_ONE}, ValueError, "weights must be finite and above"),
    (RANK_ONE, MASK, {"propensities": 2 + RANK_ONE}, ValueError, "are probabilities, got 2.8"),
    (RANK_ONE, MASK, {"weights": RANK_ONE.T}, ValueError, r"weights has shape \(6, 4\)"),
    (RANK_ONE, MASK, {"start": RANK_ONE.T}, ValueError, r"start has shape \(6, 4\)"),
]  # fmt: skip


@each("x, mask, options, error, match", WRONG)
def test_wrong_input_is_refused(x, mask, options, error, match):
    with pytest.raises(error, match=match):
        complete(x, mask, **{**OPTIONS, **options})
