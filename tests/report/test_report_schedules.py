"""Schedules and precision range tests as drawings and pictures."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lpkernels.report.schedules import (
    drawing,
    plot_precision_range,
    plot_schedules,
    schedule_view,
)
from lpkernels.techniques.cpt import OpenLoop, Schedule, parse_schedule, precision_range_test


def opened(text: str) -> OpenLoop:
    schedule = parse_schedule(text)
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
    console = Console(record=True, width=80)
    console.print(schedule_view(opened("cpt:3-6/6"), 64000))
    text = console.export_text()
    assert "30.05%" in text and "4.499" in text and "0.024593" in text
    console.print(schedule_view(opened("static:none,acc=5"), 10))
    text = console.export_text()
    assert "0.250000" in text and "bitops" not in text


@pytest.mark.parametrize("texts", [["cpt:3-8/8"], ["CR:3-8/8", "RTV:3-8/8", "cpt:4-8/4-8"]])
def test_schedules_are_drawn_to_the_same_file_each_time(texts: list[str], tmp_path: Path) -> None:
    made = [
        plot_schedules([opened(t) for t in texts], 64, tmp_path / name).read_bytes()
        for name in ("a.png", "b.png")
    ]
    assert made[0] == made[1] and len(made[0]) > 1000


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
