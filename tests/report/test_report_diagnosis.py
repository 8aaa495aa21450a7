"""The table and the picture of a diagnosis, and the command that makes them."""

from pathlib import Path

import numpy as np
import pytest

from lpkernels.formats import parse_format
from lpkernels.report.diagnosis import diagnosis_table, plot_exponents
from lpkernels.techniques.loss_scaling import Report
from lpkernels.techniques.loss_scaling.diagnosis import Histogram, TensorRow
from tests.report.shown import same_each_time, text
from tests.support.commands import call


def row(layer: str, kind: str, exponents: list[int], fmt: str = "fp16") -> TensorRow:
    of = Histogram.of(np.array([0.0, *(2.0**e for e in exponents)]))
    return TensorRow(layer, kind, "", parse_format(fmt), 1, of, of, 0, 0)


REPORT = Report(
    [
        row("body.block.first", "input", [0, -3]),
        row("body.block.first", "grad_output", [-30, -20, -110]),
        row("body.block.second", "weight", [1], "affine8"),
    ]
)


def test_table_fits_80_columns() -> None:
    lines = text(diagnosis_table(REPORT), 80).splitlines()
    assert max(map(len, lines)) <= 80
    gradient = next(line for line in lines if "grad_output" in line)
    assert gradient.split() == "grad_output e5m10 4 25.0% 100.0% 66.7% 0 0 -110..-20".split()
    affine = next(line for line in lines if "affine8" in line)
    assert affine.split()[-8:] == "affine8 2 50.0% - - - 0 1..1".split()


def test_pictures_of_both_directions_of_one_and_of_nothing(tmp_path: Path) -> None:
    same_each_time(lambda path: plot_exponents(REPORT, path, title="x"), tmp_path, 5000)
    assert plot_exponents(Report([REPORT.rows[2]]), tmp_path / "one.svg").exists()
    with pytest.raises(ValueError, match="expected a tensor with a number in it, got none"):
        plot_exponents(Report([row("a", "input", [])]), tmp_path / "none.png")


def test_train_diagnose_prints_and_draws(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = "train --data mnist1d --model cnn1 --width 2 --train-size 64 --threads 1 --epochs 1"
    done = call(*given.split(), "--diagnose", "e4m3", "--out", out)
    assert done.exit_code == 0, done.output
    assert "loss scale for gradients in e4m3:" in done.output
    assert "grad_weight" in done.output and "diagnosis.png" in done.output.replace("\n", "")
    assert (out / "diagnosis.png").stat().st_size > 5000
    assert Report.load(out / "diagnosis.jsonl").rows
