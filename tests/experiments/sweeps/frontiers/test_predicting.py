"""What a few measurements say of all configurations of a task."""

from pathlib import Path

import numpy as np
import pytest

from lpkernels.experiments.records import write_records
from lpkernels.experiments.sweeps.frontiers.measuring import run_study
from lpkernels.experiments.sweeps.frontiers.predicting import CHOICES, best, frontiers, read_choices
from lpkernels.experiments.sweeps.frontiers.store import Measured, read_measured, write_study_spec
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace, pareto_front
from tests.experiments.sweeps.frontiers.synthetic import ENGINE, KNOWN, spec, truth

TRUTH = truth(0.4).mean[0]


def test_known_tasks_of_the_same_rank_predict_exactly(tmp_path: Path) -> None:
    """Errors are a + b noise, so their rank is two."""
    found = run_study(spec(0.4), tmp_path, known=KNOWN, n=3, rank=2, engine=ENGINE)
    frontier = frontiers(found, known=KNOWN, rank=2)["noise 0.4"]
    np.testing.assert_allclose(frontier.predicted, TRUTH, atol=1e-9)
    assert frontier.how == "known"
    seen = ~np.isnan(frontier.measured)
    assert seen.sum() == 3
    np.testing.assert_array_equal(frontier.band.error_low[seen], frontier.measured[seen])


def test_a_task_alone_is_predicted_from_its_grid(tmp_path: Path) -> None:
    found = run_study(spec(0.4), tmp_path, n=9, engine=ENGINE)
    frontier = frontiers(found)["noise 0.4"]
    # The errors are additive in the two formats, which the fit holds back a little.
    assert frontier.how in ("alone", "measured")
    assert np.abs(frontier.predicted - TRUTH).max() < 0.03


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Everything is measured."""
    return run_study(spec(0.4), tmp_path_factory.mktemp("whole"), everything=True, engine=ENGINE)


def test_what_is_measured_is_not_predicted(whole: Measured) -> None:
    frontier = frontiers(whole, known=KNOWN, rank=2)["noise 0.4"]
    assert frontier.how == "measured"
    np.testing.assert_array_equal(frontier.predicted, frontier.measured)
    np.testing.assert_array_equal(frontier.band.error_low, frontier.band.error_high)


def test_the_best_under_a_cap_is_on_the_frontier(whole: Measured) -> None:
    frontier = frontiers(whole)["noise 0.4"]
    cap = float(np.median(frontier.memory))
    index = best(frontier, cap)
    below = frontier.memory <= cap
    assert frontier.predicted[index] == frontier.predicted[below].min()
    assert index in pareto_front(frontier.memory, frontier.predicted)
    with pytest.raises(ValueError, match=r"cap: 8 bytes are below the cheapest configuration's"):
        best(frontier, 8.0)


def test_too_little_is_refused_by_task(tmp_path: Path) -> None:
    found = run_study(spec(0.4), tmp_path, known=KNOWN, n=2, rank=2, engine=ENGINE)
    with pytest.raises(ValueError, match=r"task noise 0.4: fit_grid: row . or column . .* measure"):
        frontiers(found)


def test_nothing_measured_is_refused(tmp_path: Path) -> None:
    write_study_spec(tmp_path, spec(0.4))
    with pytest.raises(ValueError, match="nothing is measured yet; `lpkernels frontier run`"):
        frontiers(read_measured(tmp_path))
    with pytest.raises(ValueError, match=r"task noise 0.4: nothing is measured yet"):
        frontiers(read_measured(tmp_path), task="noise 0.4")


def test_known_errors_of_other_configurations_are_refused(whole: Measured) -> None:
    other = ErrorMatrix(FormatSpace(["e4m3"], ["fp16"]), ["a"], [[0.5]])
    with pytest.raises(ValueError, match="known: its errors are of other configurations: e4m3 x"):
        frontiers(whole, known=other)


def test_rows_of_choices_are_read_from_their_records(tmp_path: Path) -> None:
    path, row = tmp_path / "choices.jsonl", {"type": "average", "method": "greedy"}
    write_records(path, [{"type": "header", "kind": CHOICES}, row])
    assert read_choices(path) == [row]
    write_records(path, [{"type": "header", "kind": "run"}, row])
    with pytest.raises(ValueError, match=r"expected records of bench.frontier_study"):
        read_choices(path)
    with pytest.raises(FileNotFoundError, match=r"expected records of bench.frontier_study at"):
        read_choices(tmp_path / "none.jsonl")
