"""Pictures of diagnoses; schedules as tables and pictures."""

from pathlib import Path

import pytest

from lpkernels.formats import parse_format
from lpkernels.report.diagnosis import plot_exponents
from lpkernels.report.schedules import plot_schedules, schedule_view
from lpkernels.techniques.cpt import (
    PrecisionScheduler,
    parse_schedule,
)
from lpkernels.techniques.loss_scaling import Report
from lpkernels.techniques.loss_scaling.rows import Histogram, TensorRow
from tests.report.shown import same_each_time, text
from tests.support.commands import call


def row(layer: str, kind: str, exponents: list[int], fmt: str = "fp16") -> TensorRow:
    of = Histogram.from_pairs([[e, 1] for e in exponents], 1, 0)
    return TensorRow(layer, kind, "", parse_format(fmt), None, 1, of, of)


REPORT = Report(
    [
        row("body.block.first", "input", [0, -3]),
        row("body.block.first", "grad_output", [-30, -20, -110]),
        row("body.block.second", "weight", [1], "affine8"),
    ]
)


def test_exponents_have_a_row_for_each_tensor_and_the_limits_of_its_format(tmp_path: Path) -> None:
    same_each_time(lambda: plot_exponents(REPORT), tmp_path, 5000)
    forward, backward = plot_exponents(REPORT).axes
    names = ["body.block.first input", "body.block.second weight"]
    assert [label.get_text() for label in forward.get_yticklabels()] == names
    least_to_largest, _, median, *limits = backward.lines
    assert list(least_to_largest.get_xdata()) == [-110, -19]
    assert list(median.get_xdata()) == [-29.5]
    assert [line.get_xdata()[0] for line in limits][:2] == [-24, -14]
    (axes,) = plot_exponents(Report([REPORT.rows[2]])).axes
    # A format that takes its range from the tensor has no limits.
    assert len(axes.lines) == 3
    with pytest.raises(ValueError, match="expected a tensor with a number in it, got none"):
        plot_exponents(Report([row("a", "input", [])]))


def test_train_diagnose_prints_and_draws(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = "train --data mnist1d --model cnn1 --width 2 --train-size 64 --threads 1 --epochs 1"
    result = call(*options.split(), "--diagnose", "e4m3", "--out", out)
    assert result.exit_code == 0, result.output
    assert "loss scale for gradients in e4m3:" in result.output
    assert "grad_weight" in result.output and "diagnosis.png" in result.output.replace("\n", "")
    assert (out / "diagnosis.png").stat().st_size > 5000
    assert Report.load(out / "diagnosis.jsonl").rows


def scheduler(text: str, steps: int = 64) -> PrecisionScheduler:
    scheduler = parse_schedule(text)(None, steps)
    assert isinstance(scheduler, PrecisionScheduler)
    return scheduler


def test_a_view_says_what_a_schedule_costs() -> None:
    view = text(schedule_view(scheduler("cpt:3-6/6", 64000), "cpt:3-6/6"), 80)
    assert "30.05%" in view and "4.499" in view and "0.024593" in view


@pytest.mark.parametrize(
    "names",
    [["cpt:3-8/8"], ["CR:3-8/8", "RTV:3-8/8", "cpt:4-8/4-8"]],
    ids=["one schedule", "several schedules"],
)
def test_schedules_are_drawn_to_the_same_file_each_time(names: list[str], tmp_path: Path) -> None:
    same_each_time(lambda: plot_schedules({n: scheduler(n) for n in names}), tmp_path)
