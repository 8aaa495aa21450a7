"""Cold starts on synthetic grids: covers, choices, when they end."""

import numpy as np
import pytest

from lpkernels.techniques.pareto import cold_start, expected_gain, fit_grid, hypervolume
from tests.loops import each
from tests.techniques.pareto.matrices import low_rank

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
    found = fit_grid((ROWS, COLUMNS), cells, ADDITIVE[cells], ridge=1e-9, rank=0)
    assert found == pytest.approx(ADDITIVE, abs=1e-6)
    x = low_rank(8, 7, 1, seed=2)
    cells = np.random.default_rng(0).permutation(56)[:45]
    others = np.setdiff1d(np.arange(56), cells)
    left = [
        np.linalg.norm((fit_grid(x.shape, cells, x.ravel()[cells], ridge=1e-6, **options)
                        - x.ravel())[others])
        for options in ({"rank": 2, "lam": 1e-3}, {"rank": 0})
    ]  # fmt: skip
    assert left[0] < 0.5 * left[1]
    # Every row and column needs an error.
    with pytest.raises(ValueError, match="row 1 or column 1 of the 5 x 4 grid has no error; meas"):
        fit_grid((ROWS, COLUMNS), [0], [0.5])


def test_the_cover_comes_first_and_sees_every_row_and_column():
    found, task = start(n=8)
    assert task.asked[:5] == [0, 5, 10, 15, 16]
    rows, columns = np.divmod(task.asked[:5], COLUMNS)
    assert set(rows) == set(range(ROWS)) and set(columns) == set(range(COLUMNS))
    # Nothing is measured twice, and n is kept.
    assert task.asked == found.measured.tolist()
    assert len(set(task.asked)) == len(task.asked) <= 8
    assert (found.errors == ADDITIVE[found.measured]).all()
    assert (found.predicted[found.measured] == found.errors).all()


def test_it_finds_most_of_the_frontier_and_goes_on_where_it_was_stopped():
    whole, task = start(n=12)
    reference = (100, 1)
    share = hypervolume(MEMORY[whole.measured], whole.errors, reference)
    assert share > 0.98 * hypervolume(MEMORY, ADDITIVE, reference)
    done = {index: float(ADDITIVE[index]) for index in task.asked[:9]}
    rest, again = start(n=12, measured=done)
    assert rest.measured.tolist() == whole.measured.tolist()
    assert again.asked == task.asked[9:]


def test_it_ends_when_no_band_reaches_the_frontier_with_the_count_or_with_everything():
    # Every other configuration is worse than the smallest one, by far more than the bands.
    hopeless = np.linspace(0.1, 0.9, 20)
    found, task = start(hopeless, n=20)
    assert found.ended == "bands"
    assert len(task.asked) < 12
    noisy = np.random.default_rng(0).uniform(0.3, 0.6, 20)
    assert start(noisy, n=7)[0].ended == "count"
    flat = np.array([0.5, 0.5, 0.5, 0.2])
    everything = cold_start((2, 2), [1.0, 2, 3, 4], Task(flat), n=4, measured={0: 0.5, 1: 0.8})
    assert everything.ended == "all"
    assert everything.band.error_low.tolist() == everything.band.error_high.tolist()


def test_a_third_axis_is_part_of_the_columns():
    task = Task(np.add.outer(np.add.outer(LOW, HIGH[:2]), [0, 0.01]).ravel())
    found = cold_start((5, 2, 2), MEMORY, task, n=7, draws=50)
    assert len(found.predicted) == 20
    assert task.asked[:5] == [0, 5, 10, 15, 16]


def test_a_failed_run_counts_as_missing_and_is_not_tried_again():
    errors = ADDITIVE.copy()
    errors[16] = np.nan
    with pytest.warns(UserWarning, match="cold_start: 1 of 1 measured errors are NaN"):
        found, task = start(errors, n=9)
    assert task.asked.count(16) == 1
    assert np.isnan(found.errors[found.measured == 16]).all()
    assert np.isfinite(found.predicted).all()


def test_the_expected_gain_is_the_mean_area_that_is_added():
    known = np.array([1.0, 3.0]), np.array([0.8, 0.4])
    memory, simulated = np.array([2.0, 4.0, 0.5]), np.array([[0.6, 0.5, 0.9], [0.2, 0.3, 0.7]])
    end = 4.0 + 0.1 * 3.5
    base = hypervolume(*known, (end, 0.8))

    def added(m: float, e: float) -> float:
        return hypervolume([*known[0], m], [*known[1], e], (end, 0.8)) - base

    gains = [np.mean([added(m, e) for e in simulated[:, i]]) for i, m in enumerate(memory)]
    assert expected_gain(memory, simulated, *known) == pytest.approx(gains)


WRONG = [
    ((20,), {}, r"shape must be \(low, high\) or .* got \(20,\)"),
    ((1, 20), {}, "at least 2 x 2 cells"),
    ((5, 5), {}, "memory has 20 values, the grid 25"),
    ((5, 4), {"n": 4}, r"n must be in 5\.\.20: 0 measured already and 5 for every row"),
    ((5, 4), {"n": 21}, r"n must be in 5\.\.20"),
    ((5, 4), {"rank": 5}, r"rank must be in 0\.\.4 for a grid of 5 x 4, got 5"),
    ((5, 4), {"ridge": 0}, "ridge must be finite and above 0"),
    ((5, 4), {"level": 1.0}, "level must be above 0 and below 1"),
    ((5, 4), {"draws": 1}, "draws must be at least 2"),
    ((5, 4), {"measured": {20: 0.1}}, r"measured must be configurations in 0\.\.19, got 20"),
    ((5, 4), {"errors": ADDITIVE * np.nan}, "0 of 5 measurements gave an error"),
    ((5, 4), {"errors": ADDITIVE * np.inf}, "errors must be finite or NaN"),
]


@pytest.mark.filterwarnings("ignore:.*NaN")
@each("shape, options, match", WRONG)
def test_wrong_starts_are_refused_before_anything_is_measured(shape, options, match):
    task = Task(options.pop("errors", ADDITIVE))
    with pytest.raises(ValueError, match=match):
        cold_start(shape, MEMORY, task, **{"n": 12, **options})
    assert task.asked == [] or not np.isfinite(task.errors).any()
