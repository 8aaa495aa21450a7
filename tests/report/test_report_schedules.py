"""Schedules and precision range tests as drawings and pictures."""

from pathlib import Path

import numpy as np
import pytest

from lpkernels.report.schedules import (
    drawing,
    plot_precision_range,
    plot_schedules,
    schedule_view,
)
from lpkernels.techniques.cpt import OpenLoop, Schedule, parse_schedule, precision_range_test
from tests.loops import each
from tests.report.shown import same_each_time, text


def opened(name: str) -> OpenLoop:
    schedule = parse_schedule(name)
    assert isinstance(schedule, OpenLoop)
    return schedule


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
    view = text(schedule_view(opened("cpt:3-6/6"), 64000), 80)
    assert "30.05%" in view and "4.499" in view and "0.024593" in view
    view = text(schedule_view(opened("static:none,acc=5"), 10), 80)
    assert "0.250000" in view and "bitops" not in view


@each("names", [["cpt:3-8/8"], ["CR:3-8/8", "RTV:3-8/8", "cpt:4-8/4-8"]])
def test_schedules_are_drawn_to_the_same_file_each_time(names: list[str], tmp_path: Path) -> None:
    same_each_time(lambda path: plot_schedules([opened(n) for n in names], 64, path), tmp_path)


def test_no_schedule_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected at least one schedule, got none"):
        plot_schedules([], 64, tmp_path / "a.png")


def test_a_precision_range_is_drawn(tmp_path: Path) -> None:
    state = {"bits": 0, "step": 0}

    def step() -> float:
        state["step"] += 1
        return 0.02 * min(state["bits"], 4) * (state["step"] % 10)

    result = precision_range_test(
        step, lambda b: state.update(bits=b), candidates=(2, 4, 6), window=2, steps_per_level=9
    )
    assert plot_precision_range(result, tmp_path / "a.png", title="x").stat().st_size > 1000
