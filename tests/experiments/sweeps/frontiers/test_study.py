"""Studies on the sweep engine: chosen by known tasks or from a cold start, and predicted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpkernels.experiments.sweeps.frontiers import choosing, study
from lpkernels.experiments.sweeps.frontiers.specification import write_study_spec
from lpkernels.experiments.sweeps.frontiers.study import Measured, read_measured, run_study
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace, pareto_front, select
from tests.experiments.sweeps.frontiers import synthetic
from tests.experiments.sweeps.frontiers.synthetic import HOW, KNOWN, SPACE, spec, train
from tests.loops import rows


def chosen_by_known(folder: Path, n: int, **options: Any) -> Measured:
    """A study of the task "noise 0.4" that measures n configurations chosen by the known tasks."""
    return run_study(spec(0.4), folder, known=KNOWN, n=n, rank=2, **{**HOW, **options})


def test_select_chooses_by_known_tasks(tmp_path: Path) -> None:
    found = chosen_by_known(tmp_path, 4)
    embeddings = choosing.Known.of(KNOWN, "noise 0.4", 2).embeddings
    chosen = select(embeddings, n=4)
    assert found.asked["noise 0.4"] == list(chosen)
    assert sorted(np.flatnonzero(~np.isnan(found.matrix.mean[0]))) == sorted(chosen)
    # More measurements keep those there are.
    further = select(embeddings, n=2, measured=chosen)
    assert chosen_by_known(tmp_path, 6).asked["noise 0.4"] == [*chosen, *further]


def test_a_stopped_study_keeps_its_choice(tmp_path: Path) -> None:
    whole, folder = chosen_by_known(tmp_path / "whole", 5), tmp_path / "stopped"
    cells = iter(range(2))

    def stopping(*arguments: Any) -> None:
        if next(cells, None) is None:
            raise KeyboardInterrupt
        train(*arguments)

    with pytest.raises(Interrupted):
        chosen_by_known(folder, 5, jobs=1, train=stopping)
    assert (~np.isnan(read_measured(folder).matrix.mean)).sum() == 2
    again = chosen_by_known(folder, 5)
    assert again.asked == whole.asked
    np.testing.assert_array_equal(again.matrix.errors, whole.matrix.errors)


def test_a_cap_leaves_out_what_is_above(tmp_path: Path) -> None:
    memory = spec(0.4).memory("noise 0.4")
    cap = float(np.median(memory))
    found = chosen_by_known(tmp_path, 4, cap=cap)
    assert (memory[found.asked["noise 0.4"]] <= cap).all()


def test_a_cold_start_measures_a_cover_and_then_what_adds_most(tmp_path: Path) -> None:
    found = run_study(spec(0.5), tmp_path, n=6, **HOW)
    asked = found.asked["noise 0.5"]
    rows, columns = np.unravel_index(asked[:4], SPACE.shape)
    assert set(rows) == set(range(4)) and set(columns) == set(range(3))
    assert 4 <= len(asked) <= 6
    # A study that is asked again measures nothing more.
    again = run_study(spec(0.5), tmp_path, n=6, jobs=1, train=synthetic.failing)
    np.testing.assert_array_equal(again.matrix.errors, found.matrix.errors)


@pytest.mark.parametrize(
    ("how", "words"), [(synthetic.diverging, "diverged"), (synthetic.failing, "cannot train")]
)
def test_what_gives_no_error_counts_as_missing(how: object, words: str, tmp_path: Path) -> None:
    found = run_study(spec(0.4), tmp_path, everything=True, jobs=1, train=how)
    assert np.isnan(found.matrix.mean[0, :3]).all() and not np.isnan(found.matrix.mean[0, 3:]).any()
    assert len(found.lost) == 3 and all(words in text for text in found.lost)


@pytest.mark.filterwarnings("ignore:.*count as missing")
def test_a_cold_start_goes_on_where_its_cover_gave_no_error(tmp_path: Path) -> None:
    found = run_study(spec(0.4), tmp_path, n=5, jobs=1, train=synthetic.diverging)
    assert found.asked["noise 0.4"][:4] == [0, 4, 8, 9] and found.lost
    with pytest.raises(ValueError, match=r"configurations \[0\] for every row and column"):
        choosing.frontiers(found)


OTHERS = FormatSpace(["e4m2_sat", "e5m2_sat"], ["e6m9_sat", "bf16"])


@rows(
    "options, message",
    ({"known": ErrorMatrix(OTHERS, ["a"], np.ones((1, 4)))}, "known: its errors are of other"),
    ({"known": KNOWN, "rank": 5}, "rank: expected 1 to 4, for 5 known tasks beside"),
    ({"known": KNOWN, "cap": 1.0}, "cap: 1 bytes are below the cheapest configuration's"),
    ({"known": KNOWN, "n": 13}, "measure: expected at most 12, all that there are, got 13"),
    ({"known": KNOWN, "n": 0}, "measure: expected at least 1, got 0"),
    ({"cap": 1e9}, "cap: of the choice by known tasks"),
    ({"n": 3}, "measure: without known tasks expected 4 to 12, .* 4 x 3 here; got 3"),
)
def test_wrong_choices_run_nothing(options: dict[str, object], message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        run_study(spec(0.4), tmp_path / "out", **HOW, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_what_cannot_predict_is_refused(tmp_path: Path) -> None:
    errors = KNOWN.mean.copy()
    errors[:, 2] = np.nan
    known = ErrorMatrix(SPACE, KNOWN.tasks, errors)
    with pytest.raises(ValueError, match=r"in 1 of the 12 configurations, such as 'e3m1_sat e6m11"):
        run_study(spec(0.4), tmp_path, known=known, n=4, rank=2, **HOW)
    images = spec(0.4).replace(base={"data": "text"}, tasks={"text": {}})
    with pytest.raises(ValueError, match="a frontier needs a share such as accuracy"):
        run_study(images, tmp_path, everything=True, **HOW)


def test_a_task_is_not_known_to_itself_and_defaults_cover_the_grid() -> None:
    known = choosing.Known.of(KNOWN, "noise 0.2", 2)
    assert len(known.errors) == 4
    assert not (known.errors == KNOWN.mean[1]).all(axis=1).any()
    assert study._count(spec(0.1), None) == 9
    assert study._count(spec(0.1, space=OTHERS), None) == 4


TRUTH = synthetic.truth(0.4).mean[0]


def test_known_tasks_of_the_same_rank_predict_exactly(tmp_path: Path) -> None:
    """Errors are a + b noise, so their rank is two."""
    found = chosen_by_known(tmp_path, 3)
    frontier = choosing.frontiers(found, known=KNOWN, rank=2)["noise 0.4"]
    np.testing.assert_allclose(frontier.predicted, TRUTH, atol=1e-9)
    assert frontier.how == "known"
    seen = ~np.isnan(frontier.measured)
    assert seen.sum() == 3
    np.testing.assert_array_equal(frontier.band.error_low[seen], frontier.measured[seen])


def test_a_task_alone_is_predicted_from_its_grid(tmp_path: Path) -> None:
    found = run_study(spec(0.4), tmp_path, n=9, **HOW)
    frontier = choosing.frontiers(found)["noise 0.4"]
    # The errors are additive in the two formats, which the fit holds back a little.
    assert frontier.how in ("alone", "measured")
    assert np.abs(frontier.predicted - TRUTH).max() < 0.03


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Everything is measured, with two seeds."""
    return run_study(spec(0.4, seeds=2), tmp_path_factory.mktemp("whole"), everything=True, **HOW)


def test_what_is_measured_is_not_predicted_and_the_best_is_on_the_frontier(whole: Measured) -> None:
    np.testing.assert_allclose(whole.matrix.errors[0, :, 1], TRUTH + 0.001)
    frontier = choosing.frontiers(whole, known=KNOWN, rank=2)["noise 0.4"]
    assert frontier.how == "measured"
    np.testing.assert_array_equal(frontier.predicted, frontier.measured)
    np.testing.assert_array_equal(frontier.band.error_low, frontier.band.error_high)
    frontier = choosing.frontiers(whole)["noise 0.4"]
    cap = float(np.median(frontier.memory))
    index = choosing.best(frontier, cap)
    below = frontier.memory <= cap
    assert frontier.predicted[index] == frontier.predicted[below].min()
    assert index in pareto_front(frontier.memory, frontier.predicted)
    with pytest.raises(ValueError, match=r"cap: 8 bytes are below the cheapest configuration's"):
        choosing.best(frontier, 8.0)


def test_too_little_or_other_known_errors_are_refused(tmp_path: Path, whole: Measured) -> None:
    message = "task noise 0.4: cold_start: n: .* are not; measure them"
    with pytest.raises(ValueError, match=message):
        choosing.frontiers(chosen_by_known(tmp_path / "two", 2))
    write_study_spec(tmp_path, spec(0.4))
    nothing = read_measured(tmp_path)
    with pytest.raises(ValueError, match="nothing is measured yet; `lpkernels frontier run`"):
        choosing.frontiers(nothing)
    with pytest.raises(ValueError, match=r"task noise 0.4: nothing is measured yet"):
        choosing.frontiers(nothing, task="noise 0.4")
    other = ErrorMatrix(FormatSpace(["e4m3"], ["fp16"]), ["a"], [[0.5]])
    with pytest.raises(ValueError, match="known: its errors are of other configurations: it has"):
        choosing.frontiers(whole, known=other)
