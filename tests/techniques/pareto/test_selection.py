"""Which configurations are measured: chosen at once, and one after another from a cold start."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpkernels.techniques.pareto import cold_start, hypervolume, select
from lpkernels.techniques.pareto.cold_start import expected_gain, fit_grid
from tests.techniques.pareto.matrices import BASIS, low_rank

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


ROWS, COLUMNS = 5, 4
LOW = np.array([0.9, 0.6, 0.4, 0.22, 0.2])
HIGH = np.array([0.06, 0.03, 0.0, 0.0])
ADDITIVE = (LOW[:, None] + HIGH).ravel()
MEMORY = (np.arange(5, 10)[:, None] * 10.0 + np.arange(4)).ravel()


class Task:
    """A task that gives errors, and remembers for which configurations it gave them."""

    def __init__(self, errors: np.ndarray) -> None:
        self.errors, self.asked = errors, list[int]()

    def __call__(self, index: int) -> float:
        self.asked.append(index)
        return float(self.errors[index])


def start(errors: np.ndarray = ADDITIVE, **options):
    task = Task(errors)
    return cold_start((ROWS, COLUMNS), MEMORY, task, **{"n": 12, "draws": 50, **options}), task


def test_an_additive_grid_is_fitted_from_a_few_cells_and_another_one_is_completed():
    cells = np.array([0, 5, 10, 15, 16, 1, 6, 11])
    fit = fit_grid((ROWS, COLUMNS), cells, ADDITIVE[cells], ridge=1e-9, rank=0)
    assert fit == pytest.approx(ADDITIVE, abs=1e-6)
    x = low_rank(8, 7, 1, seed=2)
    cells = np.random.default_rng(0).permutation(56)[:45]
    others = np.setdiff1d(np.arange(56), cells)
    left = [
        np.linalg.norm((fit_grid(x.shape, cells, x.ravel()[cells], ridge=1e-6, **options)
                        - x.ravel())[others])
        for options in ({"rank": 2, "lam": 1e-3}, {"rank": 0})
    ]  # fmt: skip
    assert left[0] < 0.5 * left[1]


def test_the_cover_comes_first_and_sees_every_row_and_column():
    result, task = start(n=8)
    assert task.asked[:5] == [0, 5, 10, 15, 16]
    rows, columns = np.divmod(task.asked[:5], COLUMNS)
    assert set(rows) == set(range(ROWS)) and set(columns) == set(range(COLUMNS))
    # Nothing is measured twice, and n is kept.
    assert task.asked == result.measured.tolist()
    assert len(set(task.asked)) == len(task.asked) <= 8
    assert (result.errors == ADDITIVE[result.measured]).all()
    assert (result.predicted[result.measured] == result.errors).all()
    # A third axis is part of the columns.
    task = Task(ADDITIVE)
    assert len(cold_start((5, 2, 2), MEMORY, task, n=7, draws=50).predicted) == 20
    assert task.asked[:5] == [0, 5, 10, 15, 16]


def test_a_cold_start_finds_most_of_the_frontier_and_goes_on_where_it_was_stopped():
    whole, task = start(n=12)
    reference = (100, 1)
    share = hypervolume(MEMORY[whole.measured], whole.errors, reference)
    assert share > 0.98 * hypervolume(MEMORY, ADDITIVE, reference)
    done = {index: float(ADDITIVE[index]) for index in task.asked[:9]}
    rest, again = start(n=12, measured=done)
    assert rest.measured.tolist() == whole.measured.tolist()
    assert again.asked == task.asked[9:]


def test_a_cold_start_ends_when_no_band_reaches_the_frontier_with_the_count_or_with_everything():
    # Every other configuration is worse than the smallest one, by far more than the bands.
    hopeless = np.linspace(0.1, 0.9, 20)
    result, task = start(hopeless, n=20)
    assert result.ended == "bands"
    assert len(task.asked) < 12
    noisy = np.random.default_rng(0).uniform(0.3, 0.6, 20)
    assert start(noisy, n=7)[0].ended == "count"
    flat = np.array([0.5, 0.5, 0.5, 0.2])
    everything = cold_start((2, 2), [1.0, 2, 3, 4], Task(flat), n=4, measured={0: 0.5, 1: 0.8})
    assert everything.ended == "all"
    assert everything.band.error_low.tolist() == everything.band.error_high.tolist()


def test_a_failed_run_counts_as_missing_and_is_not_tried_again():
    errors = ADDITIVE.copy()
    errors[16] = np.nan
    with pytest.warns(UserWarning, match="cold_start: 1 of 1 measured errors are NaN"):
        result, task = start(errors, n=9)
    assert task.asked.count(16) == 1
    assert np.isnan(result.errors[result.measured == 16]).all()
    assert np.isfinite(result.predicted).all()


def test_the_expected_gain_is_the_mean_area_that_is_added():
    points = np.array([1.0, 3.0]), np.array([0.8, 0.4])
    memory, simulated = np.array([2.0, 4.0, 0.5]), np.array([[0.6, 0.5, 0.9], [0.2, 0.3, 0.7]])
    end = 4.0 + 0.1 * 3.5
    base = hypervolume(*points, (end, 0.8))

    def added(m: float, e: float) -> float:
        return hypervolume([*points[0], m], [*points[1], e], (end, 0.8)) - base

    gains = [np.mean([added(m, e) for e in simulated[:, i]]) for i, m in enumerate(memory)]
    assert expected_gain(memory, simulated, *points) == pytest.approx(gains)


@pytest.mark.filterwarnings("ignore:.*NaN")
@pytest.mark.parametrize("shape, options, match", [
    ((20,), {}, r"shape must be \(low, high\) or .* got \(20,\)"),
    ((1, 20), {}, "at least 2 x 2 cells"),
    ((5, 5), {}, r"memory: expected shape \(25,\)"),
    ((5, 4), {"n": 4}, r"n: expected 5 to 20, got 4: .* configurations \[0, 5, 10, 15, 16\] for"),
    ((5, 4), {"level": 1.0}, "level: expected a finite number above 0 and below 1"),
    ((5, 4), {"errors": ADDITIVE * np.nan}, "bands need 3 measured errors, got 0"),
    ((5, 4), {"errors": ADDITIVE * np.inf}, "expected errors that are finite or NaN"),
])  # fmt: skip
def test_wrong_starts_are_refused_before_anything_is_measured(shape, options, match):
    task = Task(options.pop("errors", ADDITIVE))
    with pytest.raises(ValueError, match=match):
        cold_start(shape, MEMORY, task, **{"n": 12, **options})
    assert task.asked == [] or not np.isfinite(task.errors).any()
