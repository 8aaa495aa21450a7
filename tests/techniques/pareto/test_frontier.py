"""Frontiers, areas and distances: the spec's vectors, brute force, invariances."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpkernels.techniques.pareto import choose, convergence, hyperdiff, hypervolume, pareto_front
from tests.support.refusals import refused

# The points A to G of the spec, as memory and error.
POINTS = np.array([(1, 0.9), (2, 0.5), (2, 0.6), (3, 0.5), (4, 0.2), (5, 0.25), (5, 0.1)])
PREDICTED = np.array([(1, 0.8), (2, 0.5), (5, 0.25)])
REFERENCE = (6, 1)

grid_points = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12)


def test_areas_of_the_vector():
    assert hypervolume(*POINTS.T, REFERENCE) == pytest.approx(2.8)
    assert hypervolume(*PREDICTED.T, REFERENCE) == pytest.approx(2.45)
    assert hyperdiff(POINTS, PREDICTED, REFERENCE) == pytest.approx(0.35)
    assert hyperdiff(PREDICTED, POINTS, REFERENCE) == pytest.approx(0.35)
    # Points beyond the reference add nothing.
    assert hypervolume([7, 1], [0.5, 2], REFERENCE) == 0
    assert hypervolume([7, 6, 5], [0.1, 0.1, 1], REFERENCE) == 0
    assert hypervolume([*POINTS[:, 0], 0], [*POINTS[:, 1], 1.5], REFERENCE) == pytest.approx(2.8)


def test_distances_of_the_vector():
    front = POINTS[pareto_front(*POINTS.T)]
    scale = np.array([6, 1])
    assert convergence(front / scale, PREDICTED / scale) == pytest.approx(0.25 / 3)
    # The points are taken as given: their scale is the caller's.
    assert convergence(front, PREDICTED) == pytest.approx((0.1 + 0 + 0.15) / 3)
    assert convergence(front, front) == 0


def test_of_equal_points_the_first_stays():
    twice = np.vstack([POINTS, POINTS[1], POINTS[1]])
    assert pareto_front(*twice.T).tolist() == [0, 1, 4, 6]
    assert pareto_front([1, 1, 1], [2, 2, 2]).tolist() == [0]


def brute_force_front(points: np.ndarray) -> set[tuple[float, float]]:
    def dominated(p: np.ndarray) -> bool:
        return any((q <= p).all() and (q < p).any() for q in points)

    return {tuple(p) for p in points if not dominated(p)}


@given(grid_points, st.randoms())
def test_frontier_and_area_are_those_of_all_pairs_and_squares_in_any_order(
    points: list[tuple[int, int]], random
):
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
    with pytest.warns(UserWarning, match="choose"):
        assert choose(memory, error, 4.5) == 1
    with pytest.warns(UserWarning, match="hypervolume"):
        assert hypervolume(memory, error, REFERENCE) == pytest.approx(2.8 - 0.3)


M, E = POINTS.T
WRONG = [
    (lambda: choose(M, E, 0.5), r"the cap of 0\.5 is below the cheapest configuration's 1"),
    (lambda: choose(M, [np.nan, *E[1:]], 1.5), "below the cheapest configuration's 2"),
    (lambda: choose(M, E, -1), "cap must be finite and at least 0"),
    (lambda: pareto_front(M, E[:3]), "got 7 values of memory and 3 of error"),
    (lambda: pareto_front(M, E * np.nan), "every error is NaN"),
    (lambda: pareto_front([], []), "at least one value"),
    (lambda: pareto_front(M * np.inf, E), "memory must be finite, got inf at index 0"),
    (lambda: pareto_front(M, E * np.inf), "finite or NaN"),
    (lambda: hypervolume(M, E, (6, 1, 1)), r"reference must be \(memory, error\)"),
    (lambda: hypervolume(M, E, (6, np.nan)), "reference must be finite"),
    (lambda: hyperdiff(POINTS.T, PREDICTED, (6, 1)), r"true_points must be \(points, 2\)"),
    (lambda: convergence(POINTS, PREDICTED[:, :1]), r"predicted_points must be \(points, 2\)"),
    (lambda: convergence(POINTS, PREDICTED * np.nan), "predicted_points must be finite"),
]


ignoring_nan = pytest.mark.filterwarnings("ignore:.*NaN")
test_wrong_points_are_refused = ignoring_nan(refused(WRONG, ValueError))
