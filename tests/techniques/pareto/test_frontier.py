"""Frontiers, areas and distances by brute force; leaving one out, with figures by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpkernels.techniques.pareto import (
    choose,
    convergence,
    hyperdiff,
    hypervolume,
    leave_one_out,
    pareto_front,
    prediction,
)
from lpkernels.techniques.pareto.prediction import compare, noise_floor
from tests.techniques.pareto.matrices import low_rank

# The points A to G of the spec, as memory and error.
POINTS = np.array([(1, 0.9), (2, 0.5), (2, 0.6), (3, 0.5), (4, 0.2), (5, 0.25), (5, 0.1)])
PREDICTED = np.array([(1, 0.8), (2, 0.5), (5, 0.25)])
REFERENCE = (6, 1)
grid_points = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12)


def test_areas_and_distances_of_the_vector():
    assert hypervolume(*POINTS.T, REFERENCE) == pytest.approx(2.8)
    assert hypervolume(*PREDICTED.T, REFERENCE) == pytest.approx(2.45)
    assert hyperdiff(POINTS, PREDICTED, REFERENCE) == pytest.approx(0.35)
    assert hyperdiff(PREDICTED, POINTS, REFERENCE) == pytest.approx(0.35)
    # Points beyond the reference add nothing.
    assert hypervolume([7, 1], [0.5, 2], REFERENCE) == 0
    assert hypervolume([7, 6, 5], [0.1, 0.1, 1], REFERENCE) == 0
    assert hypervolume([*POINTS[:, 0], 0], [*POINTS[:, 1], 1.5], REFERENCE) == pytest.approx(2.8)
    front = POINTS[pareto_front(*POINTS.T)]
    scale = np.array([6, 1])
    assert convergence(front / scale, PREDICTED / scale) == pytest.approx(0.25 / 3)
    # The points are taken as given: their scale is the caller's.
    assert convergence(front, PREDICTED) == pytest.approx((0.1 + 0 + 0.15) / 3)
    assert convergence(front, front) == 0
    # Of equal points the first one stays.
    twice = np.vstack([POINTS, POINTS[1], POINTS[1]])
    assert pareto_front(*twice.T).tolist() == [0, 1, 4, 6]
    assert pareto_front([1, 1, 1], [2, 2, 2]).tolist() == [0]


def brute_force_front(points: np.ndarray) -> set[tuple[float, float]]:
    def dominated(p: np.ndarray) -> bool:
        return any((q <= p).all() and (q < p).any() for q in points)

    return {tuple(p) for p in points if not dominated(p)}


@given(grid_points, st.randoms())
def test_frontier_and_area_are_those_of_all_pairs_and_squares_in_any_order(points, random):
    p = np.array(points, dtype=float)
    front, best = pareto_front(*p.T), brute_force_front(p)
    assert {tuple(point) for point in p[front]} == best
    assert len(front) == len(best)
    assert (np.diff(p[front, 0]) > 0).all() and (np.diff(p[front, 1]) < 0).all()
    corners = np.arange(7)
    covered = sum(any(x <= i and y <= j for x, y in points) for i in corners for j in corners)
    assert hypervolume(*p.T, (7, 7)) == covered
    q = np.array(random.sample(points, len(points)), dtype=float)
    assert p[front].tolist() == q[pareto_front(*q.T)].tolist()
    assert hypervolume(*q.T, (7, 7)) == covered


def test_the_best_below_a_cap_is_chosen():
    assert choose(*POINTS.T, 6) == 6
    assert choose(*POINTS.T, 4.5) == 4
    assert choose(*POINTS.T, 2) == 1
    # Of equal errors, the one of smaller memory is chosen, and then the first one.
    assert choose([3, 2, 2], [0.5, 0.5, 0.5], 9) == 1


def test_nan_errors_count_as_missing_with_a_warning():
    memory, error = POINTS.T.copy()
    error[4] = np.nan
    with pytest.warns(UserWarning, match="pareto_front: 1 of 7 measured errors are NaN"):
        assert pareto_front(memory, error).tolist() == [0, 1, 6]
    with pytest.warns(UserWarning, match="pareto_front"):
        assert choose(memory, error, 4.5) == 1
    with pytest.warns(UserWarning, match="hypervolume"):
        assert hypervolume(memory, error, REFERENCE) == pytest.approx(2.8 - 0.3)


MEMORY = np.linspace(1, 2, 20)
NOISY = low_rank(14, 20, 2, noise=0.03)
OPTIONS = {"methods": ["greedy"], "counts": [3], "rank": 2}


def studied(errors: np.ndarray = NOISY, **options) -> list[dict]:
    return leave_one_out(errors, MEMORY, **{**OPTIONS, **options})


def figures(errors: np.ndarray, **options) -> dict[tuple[str, int], dict]:
    """The means of the figures of all records, by method and count."""
    groups: dict = {}
    for record in studied(errors, **options):
        groups.setdefault((record["method"], record["count"]), []).append(record)
    names = ("rmse", "hyperdiff", "hypervolume")
    return {
        key: {x: np.mean([r[x] for r in group]) for x in names} for key, group in groups.items()
    }


def test_a_comparison_has_the_figures_worked_out_by_hand():
    memory = np.array([1.0, 2, 4, 4])
    truth, predicted = np.array([0.8, 0.4, 0.2, 0.6]), np.array([0.8, 0.9, 0.2, 0.5])
    record = compare(truth, predicted, memory, np.array([0, 2]))
    assert record["rmse"] == pytest.approx(np.sqrt((0.5**2 + 0.1**2) / 2))
    # The true frontier is (.25, .8), (.5, .4), (1, .2); the predicted one is (.25, .8), (1, .2).
    assert record["hyperdiff"] == pytest.approx(0.25 * 0.2 + 0.5 * 0.6 - 0.75 * 0.2)
    assert record["hypervolume"] == pytest.approx(0.75 * 0.2 / (0.25 * 0.2 + 0.5 * 0.6))
    assert record["convergence"] == 0
    assert record["regret"] == 0
    assert compare(truth, truth, memory, np.arange(4))["rmse"] is None


@pytest.mark.parametrize("method", ["greedy", "qr", "random"])
def test_as_many_measurements_as_the_rank_recover_an_exact_task(method: str):
    row = figures(low_rank(9, 20, 2), methods=[method], counts=[2])[method, 2]
    assert row["rmse"] < 1e-8 and row["hyperdiff"] < 1e-8
    assert row["hypervolume"] == pytest.approx(1)


def test_records_say_what_was_done():
    records = studied(methods=["random", "greedy", "column_mean"], counts=[1, 3], draws=2)
    assert len(records) == 14 * (2 * 2 + 2 + 1)
    assert [r["rank"] for r in records if r["task"] == 0] == [1, 1, 2, 2, 1, 2, 2]
    assert all(len(r["measured"]) == r["count"] for r in records)
    assert {r["noise"] for r in records} == {None}
    first = [("random", count, draw) for count in (1, 3) for draw in (0, 1)]
    assert [(r["method"], r["count"], r["draw"]) for r in records[:4]] == first


def test_the_task_itself_is_not_learned_from(monkeypatch):
    """Errors of a task that were not measured change no prediction of the task."""
    predictions: list[np.ndarray] = []

    def remembered(truth, predicted, memory, measured):
        predictions.append(predicted)
        return compare(truth, predicted, memory, measured)

    monkeypatch.setattr(prediction, "compare", remembered)
    options = {"methods": ["greedy", "column_mean"], "observed": 0.6}
    first = studied(**options)[0]
    other = NOISY.copy()
    unmeasured = np.setdiff1d(np.arange(20), first["measured"])
    other[0, unmeasured] = 1 - other[0, unmeasured]
    second = studied(other, **options)[0]
    assert second["measured"] == first["measured"]
    assert (predictions[0] == predictions[28]).all() and (predictions[1] == predictions[29]).all()
    assert second["rmse"] != first["rmse"]


def test_missing_entries_are_completed_and_not_compared():
    holed = NOISY.copy()
    holed[2, [3, 4]] = np.nan
    records = studied(holed)
    assert all(np.isfinite(r["rmse"]) for r in records)
    assert not {3, 4} & set(records[2]["measured"])
    # A share of the entries is enough.
    whole, part = (figures(NOISY, counts=[4], observed=share)["greedy", 4] for share in (1, 0.6))
    assert whole["rmse"] < part["rmse"] < 2 * whole["rmse"]


def test_a_cap_removes_configurations():
    records = studied(cap=1.5)
    assert all(max(r["measured"]) < 10 for r in records)
    options = {**OPTIONS, "cap": 1.5}
    assert leave_one_out(NOISY, np.tile(MEMORY, (14, 1)), **options) == records


def test_seeds_give_the_noise():
    rng = np.random.default_rng(0)
    seeds = NOISY[..., None] + 0.02 * rng.standard_normal((14, 20, 4))
    floor = noise_floor(seeds)
    assert floor == pytest.approx(np.full(14, 0.01), rel=0.5)
    assert floor == pytest.approx(np.sqrt((seeds.var(axis=2, ddof=1) / 4).mean(axis=1)))
    records = studied(seeds, counts=[4])
    assert [r["noise"] for r in records] == pytest.approx(list(floor))
    # An entry needs two seeds.
    errors = np.array([[[0.1, 0.3], [0.5, np.nan]], [[0.1, np.nan], [np.nan, np.nan]]])
    assert noise_floor(errors) == pytest.approx([np.sqrt(0.02 / 2), np.nan], nan_ok=True)
