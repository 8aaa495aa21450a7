"""Assignments, diagnoses and schedules as tables and pictures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpkernels.formats import parse_format
from lpkernels.report.assignments import plot_assignment
from lpkernels.report.diagnosis import diagnosis_table, plot_exponents
from lpkernels.report.schedules import drawing, plot_precision_range, plot_schedules, schedule_view
from lpkernels.techniques.assignment import Formats, demote, group
from lpkernels.techniques.cpt import (
    PrecisionScheduler,
    Schedule,
    parse_schedule,
    precision_range_test,
)
from lpkernels.techniques.loss_scaling import Report
from lpkernels.techniques.loss_scaling.rows import Histogram, TensorRow
from tests.loops import each
from tests.report.shown import same_each_time, text
from tests.support.commands import call
from tests.techniques.assignment.networks import chain

GROUPS = group(chain())


@each("ratio", [0.0, 0.6, 1.0])
def test_pictures_are_the_same_each_time(ratio: float, tmp_path: Path) -> None:
    made = demote(GROUPS, ratio)
    same_each_time(lambda path: plot_assignment(made, path, title="x"), tmp_path)
    with pytest.raises(ValueError, match="doc"):
        plot_assignment(made, tmp_path / "a.doc")


def test_a_picture_names_layers_and_paints_only_tensors_of_fewer_bits(figures: list[Any]) -> None:
    made = demote(GROUPS, 1.0)
    plot_assignment(made, "x.png")
    (sizes,) = figures[0].axes
    names = [label.get_text() for label in sizes.get_xticklabels()]
    assert names[:2] == ["0: in", "1: conv1 .. relu1"] and len(names) == len(GROUPS)
    # The paper's gradients of weights have 16 bits in either precision.
    weights = [sum(t.numel for t in g.tensors if t.kind == "grad_weight") for g in GROUPS]
    heights = [bar.get_height() for bar in sizes.patches]
    assert heights == [*(g.numel - w for g, w in zip(GROUPS, weights, strict=True)), *weights]
    plot_assignment(demote(GROUPS, 1.0, formats=Formats.same("fp16", "fp8_e5m2")), "x.png")
    assert sum(bar.get_height() for bar in figures[1].axes[0].patches[len(GROUPS) :]) == 0


def row(layer: str, kind: str, exponents: list[int], fmt: str = "fp16") -> TensorRow:
    of = Histogram.from_pairs([[e, 1] for e in exponents], 1, 0)
    return TensorRow(layer, kind, "", parse_format(fmt), 1, of, of)


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


def scheduler(text: str, steps: int = 64) -> PrecisionScheduler:
    made = parse_schedule(text)(None, steps)
    assert isinstance(made, PrecisionScheduler)
    return made


def test_a_drawing_has_a_row_for_each_width_and_shades_for_shares() -> None:
    plan = Schedule((3, 8), 1).plan(8)
    assert drawing(plan).plain.splitlines() == [
        "  8        █",
        "  7       █ ",
        "  6     ██  ",
        "  5    █    ",
        "  4   █     ",
        "  3 ██      ",
    ]
    mixed = drawing(np.array([3, 3, 3, 4]), columns=1)
    assert mixed.plain.splitlines() == ["  4 ░", "  3 ▓"]


def test_a_view_says_what_a_schedule_costs() -> None:
    view = text(schedule_view(scheduler("cpt:3-6/6", 64000), "cpt:3-6/6"), 80)
    assert "30.05%" in view and "4.499" in view and "0.024593" in view
    view = text(schedule_view(scheduler("static:none,acc=5"), "static"), 80)
    assert "0.250000" in view and "bitops" not in view


@each("names", [["cpt:3-8/8"], ["CR:3-8/8", "RTV:3-8/8", "cpt:4-8/4-8"]])
def test_schedules_are_drawn_to_the_same_file_each_time(names: list[str], tmp_path: Path) -> None:
    same_each_time(lambda path: plot_schedules({n: scheduler(n) for n in names}, path), tmp_path)


def test_no_schedule_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected at least one scheduler, got none"):
        plot_schedules({}, tmp_path / "a.png")


@each("steepness", [0.002, 0.0])
def test_a_precision_range_is_drawn_with_bounds_and_without(
    steepness: float, tmp_path: Path
) -> None:
    state = {"bits": 0, "step": 0}

    def step() -> float:
        state["step"] += 1
        return steepness * min(state["bits"], 4) * state["step"]

    result = precision_range_test(
        step,
        lambda bits: state.update(bits=bits, step=0),
        restore=[],
        candidates=(2, 4, 6),
        window=10,
        steps_per_level=30,
    )
    assert result.bits == ((4, 6) if steepness else None)
    assert plot_precision_range(result, tmp_path / "a.png", title="x").stat().st_size > 1000
