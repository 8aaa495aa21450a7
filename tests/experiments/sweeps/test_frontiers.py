"""Studies of frontiers: the configurations that are chosen, their runs, and the predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpkernels.experiments.sweeps import frontiers as work
from lpkernels.experiments.sweeps.frontiers import (
    Study,
    read_study,
    run_study,
    study_spec,
    task_config,
    task_memory,
)
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.workloads.registry import find
from lpkernels.techniques.pareto import (
    ErrorMatrix,
    FormatSpace,
    choose,
    count_tensors,
    embed,
    pareto_front,
    select,
    training_memory,
)
from tests.experiments.sweeps import synthetic, toy
from tests.experiments.sweeps.synthetic import HOW, KNOWN, SPACE, spec, train


def indices(study: Study, task: str) -> list[int]:
    """The configurations that were chosen for a task."""
    return [SPACE.names.index(name) for name in study.spec.chosen[task]]


def test_the_memory_of_a_task_is_that_of_its_model_and_batch() -> None:
    study = spec(0.0)
    workload = find(task_config(study, "noise 0.0").workload)
    batch = workload.train.plan(0, 0)(0, 32)
    counts = count_tensors(workload.model(), batch[0])
    expected = training_memory(counts, SPACE.low_bits, SPACE.high_bits)
    np.testing.assert_array_equal(task_memory(study, "noise 0.0"), expected)
    with pytest.raises(ValueError, match=r"task: expected one of noise 0.0, got 'other'"):
        task_config(study, "other")


def test_tasks_and_seeds_may_follow(tmp_path: Path) -> None:
    run_study(spec(0.1), tmp_path, **HOW)
    study = run_study(spec(0.1, 0.3, seeds=2), tmp_path, **HOW)
    assert study.matrix.tasks == ("noise 0.1", "noise 0.3")
    assert study.spec.seeds == [0, 1] and not np.isnan(study.matrix.errors).any()


def test_a_folder_of_another_study_or_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected the folder of a sweep at"):
        read_study(tmp_path)
    toy.run(toy.spec(), tmp_path / "sweep")
    with pytest.raises(ValueError, match="expected a study of frontiers, got a sweep"):
        study_spec(tmp_path / "sweep")
    run_study(spec(0.1), tmp_path / "study", known=KNOWN, n=2, rank=2, **HOW)
    for folder in ("sweep", "study"):
        with pytest.raises(ValueError, match="holds another sweep; choose another folder"):
            run_study(spec(0.1, space=OTHERS), tmp_path / folder, **HOW)


def chosen_by_known(folder: Path, n: int, **options: Any) -> Study:
    """A study of the task "noise 0.4" that measures n configurations chosen by the known tasks."""
    return run_study(spec(0.4), folder, known=KNOWN, n=n, rank=2, **{**HOW, **options})


def test_select_chooses_by_known_tasks(tmp_path: Path) -> None:
    study = chosen_by_known(tmp_path, 4)
    embeddings = embed(KNOWN.mean, 2)
    chosen = select(embeddings, n=4)
    assert indices(study, "noise 0.4") == list(chosen)
    assert sorted(np.flatnonzero(~np.isnan(study.matrix.mean[0]))) == sorted(chosen)
    # More measurements keep those there are.
    further = select(embeddings, n=2, measured=chosen)
    assert indices(chosen_by_known(tmp_path, 6), "noise 0.4") == [*chosen, *further]


def test_a_stopped_study_keeps_its_choice(tmp_path: Path) -> None:
    whole, folder = chosen_by_known(tmp_path / "whole", 5), tmp_path / "stopped"
    cells = iter(range(2))

    def stopping(*arguments: Any) -> None:
        if next(cells, None) is None:
            raise KeyboardInterrupt
        train(*arguments)

    with pytest.raises(Interrupted):
        chosen_by_known(folder, 5, jobs=1, train=stopping)
    assert (~np.isnan(read_study(folder).matrix.mean)).sum() == 2
    again = chosen_by_known(folder, 5)
    assert again.spec == whole.spec
    np.testing.assert_array_equal(again.matrix.errors, whole.matrix.errors)


def test_a_cap_leaves_out_what_is_above(tmp_path: Path) -> None:
    memory = task_memory(spec(0.4), "noise 0.4")
    cap = float(np.median(memory))
    study = chosen_by_known(tmp_path, 4, cap=cap)
    assert (memory[indices(study, "noise 0.4")] <= cap).all()


@pytest.mark.parametrize(
    ("how", "words"), [(synthetic.diverging, "diverged"), (synthetic.failing, "cannot train")]
)
def test_what_gives_no_error_counts_as_missing(how: object, words: str, tmp_path: Path) -> None:
    study = run_study(spec(0.4), tmp_path, jobs=1, train=how)
    assert np.isnan(study.matrix.mean[0, :3]).all() and not np.isnan(study.matrix.mean[0, 3:]).any()
    assert len(study.lost) == 3 and all(words in text for text in study.lost)


OTHERS = FormatSpace(["e4m2_sat", "e5m2_sat"], ["e6m9_sat", "bf16"])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"known": ErrorMatrix(OTHERS, ["a"], np.ones((1, 4)))}, "known: its errors are of other"),
        ({"known": KNOWN, "rank": 6}, "rank: expected 1 to 5, for 5 known tasks beside"),
        ({"known": KNOWN, "cap": 1.0}, "cap: 1 bytes are below the cheapest configuration's"),
        ({"known": KNOWN, "n": 13}, "measure: expected 1 to 12, got 13"),
        ({"known": KNOWN, "n": 0}, "measure: expected 1 to 12, got 0"),
        ({"cap": 1e9}, "cap: of the choice by known tasks"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_wrong_choices_run_nothing(options: dict[str, object], message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        run_study(spec(0.4), tmp_path / "out", **HOW, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_what_cannot_predict_is_refused(tmp_path: Path) -> None:
    errors = KNOWN.mean.copy()
    errors[:, 2] = np.nan
    known = ErrorMatrix(SPACE, KNOWN.tasks, errors)
    with pytest.raises(ValueError, match="complete: column 2 has no observed entry"):
        run_study(spec(0.4), tmp_path, known=known, n=4, rank=2, **HOW)
    images = spec(0.4).replace(base={"data": "text"}, arms={"text": {}}, compare="text")
    with pytest.raises(ValueError, match="a frontier needs a share such as accuracy"):
        run_study(images, tmp_path, **HOW)


def test_a_task_is_not_known_to_itself() -> None:
    known = work.errors_of_others(KNOWN, "noise 0.2", 2)
    assert len(known) == 4
    assert not (known == KNOWN.mean[1]).all(axis=1).any()


TRUTH = synthetic.truth(0.4).mean[0]


def test_known_tasks_of_the_same_rank_predict_exactly(tmp_path: Path) -> None:
    """Errors are a + b noise, so their rank is two."""
    study = chosen_by_known(tmp_path, 3)
    frontier = work.frontiers(study, known=KNOWN, rank=2)["noise 0.4"]
    np.testing.assert_allclose(frontier.predicted, TRUTH, atol=1e-9)
    assert not frontier.is_measured
    seen = ~np.isnan(frontier.measured)
    assert seen.sum() == 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Everything is measured, with two seeds."""
    return run_study(spec(0.4, seeds=2), tmp_path_factory.mktemp("whole"), **HOW)


def test_what_is_measured_is_not_predicted_and_the_best_is_on_the_frontier(whole: Study) -> None:
    np.testing.assert_allclose(whole.matrix.errors[0, :, 1], TRUTH + 0.001)
    frontier = work.frontiers(whole, known=KNOWN, rank=2)["noise 0.4"]
    assert frontier.is_measured
    np.testing.assert_array_equal(frontier.predicted, frontier.measured)
    frontier = work.frontiers(whole)["noise 0.4"]
    cap = float(np.median(frontier.memory))
    index = choose(frontier.memory, frontier.predicted, cap)
    below = frontier.memory <= cap
    assert frontier.predicted[index] == frontier.predicted[below].min()
    assert index in pareto_front(frontier.memory, frontier.predicted)


def test_too_little_or_other_known_errors_are_refused(tmp_path: Path, whole: Study) -> None:
    message = "task noise 0.4: known: 2 of 12 configurations are measured; give the errors"
    with pytest.raises(ValueError, match=message):
        work.frontiers(chosen_by_known(tmp_path / "two", 2))
    nothing = run_study(
        spec(0.4), tmp_path, known=KNOWN, n=3, rank=2, jobs=1, train=synthetic.failing_all
    )
    with pytest.raises(ValueError, match=r"task noise 0.4: nothing is measured yet; `lpkernels fr"):
        work.frontiers(nothing)
    other = ErrorMatrix(FormatSpace(["e4m3"], ["fp16"]), ["a"], [[0.5]])
    with pytest.raises(ValueError, match="known: its errors are of other configurations: it has"):
        work.frontiers(whole, known=other)
