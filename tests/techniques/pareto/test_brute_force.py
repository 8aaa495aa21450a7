"""Completion and selection against enumeration: grids of matrices, and every set of columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpkernels.techniques.pareto import complete, select
from tests.techniques.pareto.matrices import low_rank, some_of

TO_THE_END = {"clip": None, "tolerance": 1e-14, "steps": 20_000}


@settings(max_examples=40)
@given(st.integers(2, 6), st.integers(2, 6), st.floats(0.02, 0.5), st.integers(0, 10**6))
def test_a_completion_of_full_rank_has_the_gradient_of_a_minimum(rows, columns, lam, seed):
    """Z is the minimum where a subgradient of the nuclear norm, U V^T + W, balances the errors: W
    is orthogonal to U and V, and no singular value of it is above 1."""
    x, mask = low_rank(rows, columns, 2, 0.1, seed), some_of((rows, columns), 0.7, seed)
    z = complete(x, mask, rank=min(rows, columns), lam=lam, **TO_THE_END).values
    u, s, vt = np.linalg.svd(z, full_matrices=False)
    rank = int((s > 1e-6).sum())
    u, vt = u[:, :rank], vt[:rank]
    errors = np.where(mask, x - z, 0) / lam
    assert u.T @ errors == pytest.approx(vt, abs=1e-3)
    assert errors @ vt.T == pytest.approx(u, abs=1e-3)
    assert np.linalg.norm(errors, 2) < 1 + 1e-3


def volume(y: np.ndarray, chosen: list[int]) -> float:
    """The squared volume that these columns span."""
    columns = y[:, chosen]
    return float(np.linalg.det(columns.T @ columns))


def log_det(y: np.ndarray, chosen: list[int]) -> float:
    return float(np.linalg.slogdet(y[:, chosen] @ y[:, chosen].T)[1])


def by_trial(y: np.ndarray, cost: np.ndarray, n: int, budget: float) -> list[int]:
    """The greedy rule with every candidate tried anew at every step."""
    rank, size = y.shape
    y = np.linalg.qr(y.T)[0].T

    def pivots(candidates: list[int]) -> list[int]:
        chosen: list[int] = []
        while len(chosen) < rank:
            volumes = {j: volume(y, [*chosen, j]) for j in candidates if j not in chosen}
            if not volumes or max(volumes.values()) < 1e-20:
                break
            chosen.append(max(volumes, key=volumes.__getitem__))
        return chosen

    everything = list(range(size))
    limits = [budget / (2 * rank), budget / rank]
    cheap = [pivots([j for j in everything if cost[j] <= limit]) for limit in limits]
    first = next((chosen for chosen in cheap if len(chosen) == rank), None)
    assert first is not None, "the draw leaves every dimension a cheap column"
    chosen: list[int] = []
    for j in first:
        if len(chosen) < n and cost[chosen].sum() + cost[j] <= budget:
            chosen.append(j)
    while len(chosen) < n:
        left = budget - cost[chosen].sum()
        rest = [j for j in everything if j not in chosen and cost[j] <= left]
        if not rest:
            break
        base = log_det(y, chosen)
        chosen.append(max(rest, key=lambda j: (log_det(y, [*chosen, j]) - base) / cost[j]))
    return chosen


@given(st.integers(1, 3), st.integers(4, 9), st.integers(0, 10**6), st.data())
def test_the_greedy_choice_is_the_best_of_all_candidates_at_every_step(rank, size, seed, data):
    y = np.random.default_rng(seed).standard_normal((rank, size))
    cost = np.array(data.draw(st.lists(st.sampled_from([1.0, 1.5, 4.0]), min_size=size,
                                       max_size=size)))  # fmt: skip
    # Pivots that cost no more than budget / rank are there for every dimension.
    budget = data.draw(st.sampled_from([4.0, 5.5, 9.0])) * rank
    n = data.draw(st.integers(1, size))
    chosen = select(y, n=n, cost=cost, budget=budget)
    assert chosen.tolist() == by_trial(y, cost, n, budget)
    assert cost[chosen].sum() <= budget
