"""The benchmarks of frontiers: on small matrices, and on cells of a step or two."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench.frontier_coinciding as coinciding
from bench import frontier_optimizers, frontier_stopping, frontier_study, frontier_transfer
from lpkernels.experiments.sweeps.frontiers.predicting import read_choices
from lpkernels.experiments.sweeps.frontiers.specification import read_frontier_spec
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace
from tests.experiments.sweeps.frontiers.synthetic import SPACE, error_of

NOISES = np.linspace(0, 0.9, 5)
MEMORY = np.tile(100 * SPACE.low_bits + 10 * SPACE.high_bits, (len(NOISES), 1))


def matrix(*, seeds: int = 2) -> ErrorMatrix:
    exact = np.array([[error_of(noise, *map(str, c)) for c in SPACE] for noise in NOISES])
    drawn = 0.002 * np.random.default_rng(0).standard_normal((len(NOISES), 12, seeds))
    return ErrorMatrix(SPACE, [f"task {i}" for i in range(len(NOISES))], exact[..., None] + drawn)


def one_by_one(
    space: FormatSpace, memory: np.ndarray, measure: Callable[[int], float], n: int, seed: int
) -> list[int]:
    """A search that measures in the order of the numbers."""
    for index in range(n):
        measure(index)
    return list(range(n))


def test_every_way_of_choosing_has_its_rows() -> None:
    rows = frontier_study.study(
        matrix(), MEMORY, counts=(3, 5), rank=2, draws=4, others={"in order": one_by_one}
    )
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    counts = {name: [row["count"] for row in own] for name, own in found.items()}
    # The cover of the grid takes 4.
    assert counts == {
        "greedy": [3, 5], "random": [3, 5], "cheapest": [3, 5], "column_mean": [0],
        "cold_start": [5], "in order": [3, 5],
    }  # fmt: skip
    assert all(row["tasks"] == len(NOISES) for row in rows)
    # A rank-two matrix with little noise is predicted to about that noise; its mean is far off.
    assert found["greedy"][1]["rmse"] < 0.005 < 0.05 < found["column_mean"][0]["rmse"]
    assert found["greedy"][1]["rmse_error"] > 0
    assert 0.0005 < found["greedy"][0]["noise"] < 0.003


def test_what_a_search_measured_is_all_that_counts_and_gaps_have_no_cold_start() -> None:
    found = frontier_study.searched_records(matrix(), MEMORY, (3, 12), "it", one_by_one, 1)
    few, every = found[:2]
    assert few["measured"] == [0, 1, 2]
    assert few["rmse"] is None and few["hypervolume"] < 1 and few["regret"] > 0
    assert every["hypervolume"] == pytest.approx(1) and every["regret"] == pytest.approx(0)
    gaps = matrix().errors.copy()
    gaps[2, 3] = np.nan
    known = ErrorMatrix(SPACE, matrix().tasks, gaps)
    rows = frontier_study.study(known, MEMORY, counts=(3,), rank=2, draws=1)
    assert {row["method"] for row in rows} == {"greedy", "random", "cheapest", "column_mean"}


def test_a_cold_start_to_its_end_counts_what_it_measured() -> None:
    records = frontier_study.ended_records(matrix(), MEMORY, 0)
    assert [record["task"] for record in records] == list(matrix().tasks)
    for record in records:
        assert record["ended"] in ("bands", "all")
        assert (record["measured"] == len(SPACE)) == (record["ended"] == "all")
        assert 0.9 < record["hypervolume"] <= 1.0


def other_network() -> ErrorMatrix:
    """The errors of two tasks with a network that is worse by the same amount everywhere."""
    one = matrix()
    return ErrorMatrix(SPACE, one.tasks[1:3], one.errors[1:3] + 0.05)


def test_what_is_transferred_is_held_against_the_truth() -> None:
    rows = frontier_transfer.study(matrix(), other_network(), MEMORY[1:3], counts=(3,), rank=2)
    found = {row["method"]: row for row in rows}
    # The frontier is the same, but all of it is higher by 0.05.
    assert found["the same task's row"]["rmse"] == pytest.approx(0.05)
    assert found["the same task's row"]["hypervolume"] == pytest.approx(1)
    assert found["D-optimal, known network"]["rmse"] < found["column mean, known network"]["rmse"]
    assert found["column mean, its own network"]["count"] == 0
    assert all(row["tasks"] == 2 for row in rows)


def test_a_task_is_never_predicted_from_its_own_row() -> None:
    one, other = matrix(), other_network()
    changed = one.errors.copy()
    changed[1] = 0.5
    there, again = (
        frontier_transfer.said(known, other, "task 1", counts=(3,), rank=2)
        for known in (one, ErrorMatrix(SPACE, one.tasks, changed))
    )
    for before, after in zip(there, again, strict=True):
        same = np.array_equal(before[3], after[3])
        assert same == (before[0] != "the same task's row"), before[0]
    other = ErrorMatrix(SPACE, ["new"], matrix().errors[:1])
    with pytest.raises(ValueError, match="the known network has no task 'new'"):
        next(frontier_transfer.said(matrix(), other, "new", counts=(3,), rank=2))


def test_main_writes_what_the_pictures_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, out = tmp_path / "study.toml", tmp_path / "choices.jsonl"
    lines = [f"{name} = {[str(f) for f in getattr(SPACE, name)]}" for name in ("low", "high")]
    tasks = [f'[tasks."task {i}"]\nlabel_noise = {noise}' for i, noise in enumerate(NOISES)]
    base = '[base]\ndata = "iris"\nwidth = 4'
    study.write_text("\n".join(['name = "five"', *lines, base, *tasks]))
    path = matrix().save(tmp_path / "errors.json")
    monkeypatch.setattr(frontier_study, "searches", lambda: ({}, {"tpe": "not installed"}))
    options = ["--matrix", path, "--study", study, "--out", out, "--rank", 2, "--draws", 1]
    frontier_study.main([*map(str, options), "--counts", "4"])
    printed = capsys.readouterr().out
    assert "without tpe: not installed" in printed and "noise of the seeds: 0.00" in printed
    assert {row["method"] for row in read_choices(out)} >= {"greedy", "cold_start"}
    assert "cold start to its end: measured" in printed


def test_optimizers_that_are_not_installed_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier_optimizers.importlib.util, "find_spec", lambda name: None)
    found, lacking = frontier_optimizers.searches()
    assert (found, set(lacking)) == ({}, {"tpe", "nsga2", "qnehvi"})
    assert lacking["qnehvi"] == "botorch is not installed"


@pytest.mark.parametrize("name", ["tpe", "nsga2", "qnehvi"])
def test_an_optimizer_measures_so_many_configurations(name: str) -> None:
    found, lacking = frontier_optimizers.searches()
    if name not in found:
        pytest.skip(lacking[name])
    truth, asked = matrix().mean[3], list[int]()

    def measure(index: int) -> float:
        asked.append(index)
        return float(truth[index])

    order = found[name](SPACE, MEMORY[0], measure, 6, 0)
    assert len(set(order)) == len(order) == 6 and set(order[:-1]) <= set(asked)


def test_formats_with_the_same_bits_are_grouped(tmp_path: Path) -> None:
    study, out = tmp_path / "study.toml", tmp_path / "out.jsonl"
    study.write_text('[base]\ndata = "iris"\nwidth = 4\nepochs = 1\nlr = 0.02\n[tasks.iris]\n')
    high = ["e6m7_sat", "e8m7_sat", "e8m9_sat"]
    options = ["--study", study, "--tasks", "iris", "--low", "e4m2_sat", "--high", *high]
    coinciding.main([*map(str, options), "--out", str(out)])
    record = json.loads(out.read_text())
    assert record["groups"] == [["e6m7_sat", "e8m7_sat"], ["e8m9_sat"]]
    # No value that is kept lies below 2^-30, the least normal value of six exponent bits.
    assert all(cell["least"] > -30 for cell in record["cells"].values())


def test_the_study_of_the_repository_has_tasks_enough_and_curves_to_its_errors() -> None:
    spec = read_frontier_spec(frontier_study.STUDY)
    assert len(spec.tasks) >= 30 and len(spec.seeds) == 2
    paper = {(str(low), str(high)) for low, high in FormatSpace.peppp()}
    assert {(str(low), str(high)) for low, high in spec.space} <= paper
    assert len(spec.space) == 33
    spec = read_frontier_spec(frontier_stopping.STUDY)
    matrix = ErrorMatrix.load(frontier_study.MATRIX, spec.space)
    curves = frontier_stopping.read_curves(frontier_stopping.CURVES)
    assert list(curves) == list(matrix.tasks)
    for errors, row in zip(curves.values(), matrix.mean, strict=True):
        np.testing.assert_allclose(errors[:, -1], row, atol=1e-4)


def test_stopping_saves_epochs_and_counts_what_it_loses() -> None:
    # The errors of twelve configurations fall within four epochs to those of a task; the cheapest
    # is the best.
    final = np.array([error_of(0.3, *map(str, c)) for c in SPACE])[::-1]
    errors = final[:, None] * np.array([4.0, 2.0, 1.5, 1.0])
    records = []
    for name, own in (("a", errors), ("b", errors + 0.01)):
        records += frontier_stopping.task_records(name, own, MEMORY[0], SPACE.shape, 0.9)
    ways = {(row["way"], row["stopped"]): row for row in frontier_stopping.averages(records)}
    assert list(ways) == list(itertools.product(["all", "cold start"], [False, True]))
    whole, stopped = ways["all", False], ways["all", True]
    assert whole["epochs"] == whole["finished"] == 12 and whole["area"] == 1
    assert stopped["finished"] <= stopped["epochs"] < 12
    assert 0.9 < stopped["area"] <= 1 and stopped["regret"] >= 0
    assert ways["cold start", False]["epochs"] == ways["cold start", False]["finished"]
