"""The benchmarks of frontiers: on small matrices, and on cells of a step or two."""

from pathlib import Path

import numpy as np
import pytest

from bench import frontier_study
from lpkernels.experiments.records import read_records
from lpkernels.techniques.pareto import ErrorMatrix
from tests.experiments.sweeps.synthetic import SPACE, error_of

NOISES = np.linspace(0, 0.9, 5)


def matrix(*, seeds: int = 2) -> ErrorMatrix:
    exact = np.array([[error_of(noise, *map(str, c)) for c in SPACE] for noise in NOISES])
    drawn = 0.002 * np.random.default_rng(0).standard_normal((len(NOISES), 12, seeds))
    return ErrorMatrix(SPACE, [f"task {i}" for i in range(len(NOISES))], exact[..., None] + drawn)


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
    assert {row["method"] for row in rows} == {"greedy", "random", "column_mean"}
