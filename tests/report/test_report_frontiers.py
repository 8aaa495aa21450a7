"""Frontiers as tables and as pictures."""

import numpy as np

from lpkernels.experiments.sweeps.frontiers import Frontier, frontier_of
from lpkernels.report import frontiers as report
from lpkernels.techniques.pareto import ErrorMatrix, pareto_front
from tests.experiments.sweeps.synthetic import KNOWN, SPACE, truth
from tests.report.shown import text

MEMORY = 100 * SPACE.low_bits + 10 * SPACE.high_bits
TRUTH = truth(0.4).mean[0]


def predicted() -> Frontier:
    measured = np.full(12, np.nan)
    measured[[0, 5, 11]] = TRUTH[[0, 5, 11]]
    return frontier_of(MEMORY, measured, known=KNOWN.mean, rank=2)


def test_tables_have_the_frontier_by_memory_and_count_what_is_measured() -> None:
    table = text(report.frontier_table(predicted(), SPACE, title="noise"))
    lines = [line for line in table.splitlines() if "e6m" in line]
    sizes = [float(line.split("│")[1].split()[0]) for line in lines]
    assert sizes == sorted(sizes) and "measured" in lines[0] and "e3m1_sat e6m7_sat" in lines[0]
    assert any("predicted" in line for line in lines)
    assert "predicted from other tasks" in table
    errors = np.array([[0.25, np.nan] * 6, [np.nan] * 12])
    table = text(report.matrix_table(ErrorMatrix(SPACE, ["half", "none"], errors)))
    half, none = (line for line in table.splitlines() if "half" in line or "none" in line)
    assert half.split()[3] == "6" and "0.2500" in half
    assert none.split()[3] == "0" and "0." not in none


def test_a_frontier_is_drawn_with_names_measurements_cap_and_choice() -> None:
    frontier = predicted()
    (axes,) = report.plot_frontiers({"a": frontier}, SPACE.names, cap=2048.0).axes
    labels = [label.get_text() for label in axes.get_legend().get_texts()]
    assert labels == ["predicted frontier", "measured", "cap", "chosen"]
    front = pareto_front(MEMORY, frontier.predicted)
    names = [SPACE.names[i].replace("_sat", "") for i in front]
    assert [text.get_text() for text in axes.texts] == names
    assert [text.xy for text in axes.texts] == [
        (MEMORY[i] / 1024, frontier.predicted[i]) for i in front
    ]
    lines = {line.get_label(): line for line in axes.lines}
    assert np.isfinite(lines["measured"].get_ydata()).sum() == 3
    assert list(lines["cap"].get_xdata()) == [2.0, 2.0]
    assert lines["chosen"].get_ydata() == [min(frontier.predicted)]
    assert axes.texts[-1].get_fontweight() == "bold"
    (axes,) = report.plot_frontiers({"a": frontier}, SPACE.names, cap=1.0).axes
    assert "chosen" not in {line.get_label() for line in axes.lines}
