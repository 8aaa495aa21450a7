"""Assignments as tables and pictures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lpkernels.report.assignments import assignment_table, plot_assignment
from lpkernels.techniques.assignment import Pins, demote, group
from tests.loops import each
from tests.report.shown import same_each_time, text
from tests.techniques.assignment.networks import chain

GROUPS = group(chain())


def shown(**options: Any) -> str:
    return text(assignment_table(demote(GROUPS, 0.6, pins=Pins(high="relu1.Y")), **options))


def test_a_row_for_each_group_and_what_all_come_to() -> None:
    table = shown(title="A chain")
    rows = [line.strip(" │").split("│") for line in table.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[0] == ["0", "in", "in", "584", "0%", "9,344"]
    # Of 6,736 elements the 1,024 of relu1.Y are held high.
    assert cells[1][:5] == ["1", "conv1", "relu1", "6,736", "85%"]
    assert len(cells) == 4
    assert "A chain" in table and "2 of 4 groups demoted" in table
    assert "score" not in table
    scored = shown(scores={0: 0.5, 1: 1e-6, 2: 0.0, 3: 12.0})
    assert "score" in scored and "1.00e-06" in scored and "1.20e+01" in scored


def test_operations_that_are_not_known_are_named() -> None:
    ops = chain()
    ops[2] = replace(ops[2], known=False)
    table = text(assignment_table(demote(group(ops), 0.6)))
    assert "without what is computed inside bn1" in " ".join(table.split())


@each("ratio", [0.0, 0.6, 1.0])
def test_pictures_are_the_same_each_time(ratio: float, tmp_path: Path) -> None:
    made = demote(GROUPS, ratio)
    same_each_time(lambda path: plot_assignment(made, path, title="x"), tmp_path)
    with pytest.raises(ValueError, match="doc"):
        plot_assignment(made, tmp_path / "a.doc")
