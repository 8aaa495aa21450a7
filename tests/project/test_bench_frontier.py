"""The benchmarks of frontiers: on small matrices, and on cells of a step or two."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import frontier_study
from lpkernels.experiments.records import read_records
from lpkernels.experiments.sweeps.specification import read_spec
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace
from tests.experiments.sweeps.synthetic import SPACE, error_of

NOISES = np.linspace(0, 0.9, 5)
MEMORY = np.tile(100 * SPACE.low_bits + 10 * SPACE.high_bits, (len(NOISES), 1))


def matrix(*, seeds: int = 2) -> ErrorMatrix:
    exact = np.array([[error_of(noise, *map(str, c)) for c in SPACE] for noise in NOISES])
    drawn = 0.002 * np.random.default_rng(0).standard_normal((len(NOISES), 12, seeds))
    return ErrorMatrix(SPACE, [f"task {i}" for i in range(len(NOISES))], exact[..., None] + drawn)


def test_every_way_of_choosing_has_its_rows() -> None:
    rows = frontier_study.study(matrix(), SPACE, MEMORY, counts=(3, 5), rank=2, draws=4)
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    counts = {name: [row["count"] for row in own] for name, own in found.items()}
    # The cover of the grid takes 4.
    assert counts == {
        "greedy": [3, 5], "random": [3, 5], "column_mean": [0],
        "cold_start": [5],
    }  # fmt: skip
    assert all(row["tasks"] == len(NOISES) for row in rows)
    # A rank-two matrix with little noise is predicted to about that noise; its mean is far off.
    assert found["greedy"][1]["rmse"] < 0.005 < 0.05 < found["column_mean"][0]["rmse"]
    assert found["greedy"][1]["rmse_error"] > 0
    assert 0.0005 < found["greedy"][0]["noise"] < 0.003


def test_a_cold_start_to_its_end_counts_what_it_measured() -> None:
    records = frontier_study.ended_records(matrix(), SPACE, MEMORY, 0)
    assert [record["task"] for record in records] == list(matrix().tasks)
    for record in records:
        assert record["ended"] in ("bands", "all")
        assert (record["measured"] == len(SPACE)) == (record["ended"] == "all")
        assert 0.9 < record["hypervolume"] <= 1.0


def test_main_prints_and_records_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    study, out = tmp_path / "study.toml", tmp_path / "choices.jsonl"
    lines = [f"{name} = {[str(f) for f in getattr(SPACE, name)]}" for name in ("low", "high")]
    tasks = [f'[arms."task {i}"]\nlabel_noise = {noise}' for i, noise in enumerate(NOISES)]
    base = '[base]\ndata = "iris"\nwidth = 4'
    study.write_text("\n".join(['name = "five"', *lines, base, *tasks]))
    path = matrix().save(tmp_path / "errors.csv")
    options = ["--matrix", path, "--study", study, "--out", out, "--rank", 2, "--draws", 1]
    frontier_study.main([*map(str, options), "--counts", "4"])
    printed = capsys.readouterr().out
    assert "noise of the seeds: 0.00" in printed
    rows = [record for record in read_records(out) if record["type"] == "average"]
    assert {row["method"] for row in rows} >= {"greedy", "cold_start"}
    assert "cold start to its end: measured" in printed


def test_the_pictures_of_the_repository_are_drawn(tmp_path: Path) -> None:
    frontier_study.main(["--pictures", str(tmp_path)])
    assert (
        len([path for path in tmp_path.glob("frontier-*.png") if path.stat().st_size > 5000]) == 3
    )


def test_the_study_of_the_repository_has_tasks_enough_and_their_errors() -> None:
    spec = read_spec(frontier_study.STUDY)
    assert len(spec.arms) >= 30 and len(spec.seeds) == 2
    paper = {(str(low), str(high)) for low, high in FormatSpace.peppp()}
    assert {(str(low), str(high)) for low, high in spec.space} <= paper
    assert len(spec.space) == 33
    matrix = ErrorMatrix.load(frontier_study.MATRIX).for_space("study", spec.space)
    assert set(matrix.tasks) <= set(spec.arms) and not np.isnan(matrix.errors).any()
