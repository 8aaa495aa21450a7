"""Which configurations are measured."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpkernels.techniques.pareto import select
from tests.techniques.pareto.matrices import BASIS

COST = np.arange(1.0, 7.0)
COUNTED = ("greedy", "random")


def embeddings(rank: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rank, size))


def test_greedy_takes_pivots_then_what_adds_most():
    # The squares of the determinants of 0 with 5, 0 with 4, and 1 with 5 are 0.0289, 0.0256 and
    # 0.0196; the other pairs have smaller ones.
    assert select(BASIS, n=4).tolist() == [0, 5, 4, 1]
    assert select(BASIS, n=2, method="qr").tolist() == [0, 5]
    assert select(BASIS, n=1).tolist() == [0]
    # Cost divides the gain.
    assert select(BASIS, n=2, measured=[0, 5]).tolist() == [4, 1]
    assert select(BASIS, n=2, measured=[0, 5], cost=COST).tolist() == [1, 4]
    # A configuration that adds more by one part in 10^8 is first.
    y = np.array([[2, 0, 1 + 1e-8, 0.9, 0], [0, 1, 0, 0, 0.5]])
    assert select(y, n=3).tolist() == [1, 0, 2]


@pytest.mark.parametrize("method", COUNTED)
def test_an_item_too_dear_for_what_is_left_is_skipped(method: str):
    y = embeddings(2, 12, 3)
    cost = np.array([1.0, 2, 3, 4, 5, 6, 50, 60, 70, 80, 90, 100])
    chosen = select(y, cost=cost, budget=22, method=method, seed=1)
    assert cost[chosen].sum() <= 22
    left = np.setdiff1d(np.arange(12), chosen)
    assert (cost[left] > 22 - cost[chosen].sum()).all()


def test_a_budget_leaves_room_for_every_dimension():
    # The longest embedding costs the whole budget. The pivots cost at most 8 / 4, and the last one
    # costs less than what is left.
    y = np.array([[10.0, 1, 0, 0], [0, 0, 1, 2]])
    assert select(y, cost=[8.0, 2, 2, 3], budget=8).tolist() == [2, 1, 3]
    # Pivots may cost twice as much where cheaper ones miss a dimension.
    y = np.array([[2.0, 3, 0, 0, 0], [0, 0, 1, 2, 5]])
    assert select(y, cost=[2.0, 4, 3, 4, 9], budget=8).tolist() == [1, 3]
    # Below 7 / 2 there is one dimension: the cheapest that add one are taken, not the longest.
    y = np.array([[1.0, 3, 0, 0], [0, 0, 1, 2]])
    assert select(y, cost=[1.0, 2, 5.5, 6], budget=7).tolist() == [0, 2]


def test_a_budget_too_small_for_every_dimension_is_still_spent():
    y = np.array([[1.0, 1, 0], [0, 0, 1]])
    # The second one costs exactly the budget that the first one leaves.
    assert sorted(select(y, cost=[1.0, 1, 9], budget=2)) == [0, 1]
    # 1 is longer than 3 in the basis in which y is orthonormal, and adds less to the chosen ones.
    y = np.zeros((3, 9))
    y[0, :2], y[1, 2:8], y[2, 8] = (1, 0.8), (1, 0.9, 0.5, 0.5, 0.5, 0.5), 1
    assert select(y, cost=[1.0] * 8 + [100], budget=3).tolist() == [0, 2, 3]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.sampled_from(["greedy", "qr"]))
def test_choices_do_not_depend_on_the_basis_or_the_order(seed: int, method: str):
    rng = np.random.default_rng(seed)
    y, n = rng.standard_normal((3, 12)), 3 if method == "qr" else 6
    chosen = select(y, n=n, method=method)
    turned = (rng.standard_normal((3, 3)) + 3 * np.eye(3)) @ y
    order = rng.permutation(12)
    assert set(select(turned, n=n, method=method)) == set(chosen)
    assert set(order[select(y[:, order], n=n, method=method)]) == set(chosen)


@pytest.mark.parametrize("method", [*COUNTED, "qr"])
def test_measured_and_forbidden_ones_are_not_chosen(method: str):
    y = embeddings(4, 20)
    chosen = select(y, n=2, cost=np.ones(20), method=method, measured=[0, 1], among=range(1, 14))
    assert len(chosen) == 2
    assert set(chosen) <= set(range(2, 14))
    # Pivots of measured directions are not looked for again.
    assert set(select(np.eye(3).repeat(2, axis=1), n=1, method="qr", measured=[0, 2])) <= {4, 5}
