"""The table and the picture of a diagnosis, and the command that makes them."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from lpkernels.cli import app
from lpkernels.formats import parse_format
from lpkernels.report.diagnosis import diagnosis_table, plot_exponents
from lpkernels.techniques.loss_scaling import Report
from lpkernels.techniques.loss_scaling.diagnosis import Histogram, TensorRow


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


def printed(report: Report) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(diagnosis_table(report))
    return console.export_text()


def test_table_fits_80_columns() -> None:
    lines = printed(REPORT).splitlines()
    assert max(map(len, lines)) <= 80
    gradient = next(line for line in lines if "grad_output" in line)
    assert gradient.split() == "grad_output e5m10 4 25.0% 100.0% 66.7% 0 0 -110..-20".split()
    affine = next(line for line in lines if "affine8" in line)
    assert affine.split()[-8:] == "affine8 2 50.0% - - - 0 1..1".split()


def test_picture_is_the_same_for_the_same_report(tmp_path: Path) -> None:
    files = [plot_exponents(REPORT, tmp_path / name, title="x") for name in ("a.png", "b/b.png")]
    first, second = (path.read_bytes() for path in files)
    assert first == second and len(first) > 5000


def test_picture_of_one_direction_and_of_nothing(tmp_path: Path) -> None:
    assert plot_exponents(Report([REPORT.rows[2]]), tmp_path / "one.svg").exists()
    with pytest.raises(ValueError, match="expected a tensor with a number in it, got none"):
        plot_exponents(Report([row("a", "input", [])]), tmp_path / "none.png")


def test_train_diagnose_prints_and_draws(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = "train --data mnist1d --model cnn1 --width 2 --train-size 64 --threads 1 --epochs 1"
    done = CliRunner().invoke(app, [*given.split(), "--diagnose", "e4m3", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "loss scale for gradients in e4m3:" in done.output
    assert "grad_weight" in done.output and "diagnosis.png" in done.output.replace("\n", "")
    assert (out / "diagnosis.png").stat().st_size > 5000
    assert Report.load(out / "diagnosis.jsonl").rows
