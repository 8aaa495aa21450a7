"""Frontiers, matrices and choices as tables and pictures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpkernels.experiments.sweeps.frontiers.choosing import Frontier, Known, frontier_of
from lpkernels.report import frontiers as report
from lpkernels.techniques.pareto import ErrorMatrix, pareto_front
from tests.experiments.sweeps.frontiers.synthetic import KNOWN, SPACE, truth
from tests.loops import rows
from tests.report.shown import same_each_time, text

MEMORY = 100 * SPACE.low_bits + 10 * SPACE.high_bits
TRUTH = truth(0.4).mean[0]


def predicted() -> Frontier:
    measured = np.full(12, np.nan)
    measured[[0, 5, 11]] = TRUTH[[0, 5, 11]]
    return frontier_of(MEMORY, measured, known=Known.of(KNOWN, "", 2))


def test_tables_have_the_frontier_by_memory_and_count_what_is_measured() -> None:
    table = text(report.frontier_table(predicted(), SPACE, title="noise"))
    lines = [line for line in table.splitlines() if "e6m" in line]
    sizes = [float(line.split("│")[1].split()[0]) for line in lines]
    assert sizes == sorted(sizes) and "measured" in lines[0] and "e3m1_sat e6m7_sat" in lines[0]
    assert any("predicted" in line and " .. " in line for line in lines)
    assert "predicted from other tasks; band: 90% of the draws" in table
    errors = np.array([[0.25, np.nan] * 6, [np.nan] * 12])
    table = text(report.matrix_table(ErrorMatrix(SPACE, ["half", "none"], errors)))
    half, none = (line for line in table.splitlines() if "half" in line or "none" in line)
    assert half.split()[3] == "6" and "0.2500" in half
    assert none.split()[3] == "0" and "0." not in none


ROWS = [
    {"method": method, "count": count, "rmse": 0.1 / (1 + count), "rmse_error": 0.01, "noise": 0.01}
    for method, counts in (("greedy", (3, 5)), ("random", (3, 5)), ("column_mean", (0,)))
    for count in counts
]


@rows(
    "draw",
    lambda path: report.plot_frontiers(
        {"predicted": predicted(), "whole": frontier_of(MEMORY, TRUTH)}, path,
        truth={"predicted": TRUTH}, cap=1000.0,
    ),
    lambda path: report.plot_error_matrix({"known": KNOWN, "one": truth(0.4)}, path),
    lambda path: report.plot_singular_values({"known": KNOWN}, path, title="known"),
    lambda path: report.plot_counts({"a": ROWS, "b": ROWS}, path),
)  # fmt: skip
def test_pictures_are_the_same_file_each_time(draw: Any, tmp_path: Path) -> None:
    same_each_time(draw, tmp_path, 5000)


def test_a_frontier_is_drawn_with_names_band_truth_measurements_cap_and_choice(
    figures: list[Any],
) -> None:
    frontier = replace(predicted(), names=SPACE.names)
    report.plot_frontiers({"a": frontier}, "x.png", truth={"a": TRUTH}, cap=2048.0)
    (axes,) = figures[0].axes
    labels = [label.get_text() for label in axes.get_legend().get_texts()]
    assert labels == ["band", "predicted frontier", "true frontier", "measured", "cap", "chosen"]
    front = pareto_front(MEMORY, frontier.predicted)
    names = [str(SPACE.name(i)).replace("_sat", "") for i in front]
    assert [text.get_text() for text in axes.texts] == names
    assert [text.xy for text in axes.texts] == [
        (MEMORY[i] / 1024, frontier.predicted[i]) for i in front
    ]
    lines = {line.get_label(): line for line in axes.lines}
    assert np.isfinite(lines["measured"].get_ydata()).sum() == 3
    assert list(lines["cap"].get_xdata()) == [2.0, 2.0]
    assert lines["chosen"].get_ydata() == [min(frontier.predicted)]
    assert axes.texts[-1].get_fontweight() == "bold"
    report.plot_frontiers({"a": predicted()}, "x.png", cap=1.0)
    assert not figures[1].axes[0].texts
    assert "chosen" not in {line.get_label() for line in figures[1].axes[0].lines}
    assert min(lines["true frontier"].get_ydata()) == TRUTH.min()


def test_singular_values_are_shares_of_the_first(figures: list[Any]) -> None:
    report.plot_singular_values({"a": KNOWN}, "x.png")
    values = figures[0].axes[0].lines[0].get_ydata()
    expected = np.linalg.svd(KNOWN.mean, compute_uv=False)
    np.testing.assert_allclose(values, expected / expected[0])


def test_choices_have_a_line_each_and_the_noise(figures: list[Any]) -> None:
    report.plot_counts({"a": ROWS}, "x.png")
    (axes,) = figures[0].axes
    labels = {label.get_text() for label in axes.get_legend().get_texts()}
    assert labels == {"D-optimal", "random", "mean of the other tasks", "noise of the seeds"}


GAPS = ErrorMatrix(SPACE, ["a"], [[0.5] * 11 + [np.nan]])
NOTHING = ErrorMatrix(SPACE, ["a"], [[np.nan] * 12])


@rows(
    "call, message",
    (lambda p: report.plot_frontiers({}, p), "plot_frontiers: expected at least one frontier"),
    (lambda p: report.plot_error_matrix({"a": NOTHING}, p), "a matrix with at least one error"),
    (lambda p: report.plot_singular_values({"a": GAPS}, p), "a: expected a task with all err"),
    (lambda p: report.plot_counts({"a": []}, p), "expected rows with 'rmse', got none"),
)
def test_nothing_to_draw_is_refused(call: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        call(tmp_path / "x.png")
