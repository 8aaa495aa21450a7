"""Assignments as tables and pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lpkernels.report.assignments import assignment_table, plot_assignment
from lpkernels.techniques.assignment import Pins, demote, group
from tests.techniques.assignment.networks import chain

GROUPS = group(chain())


def shown(**options: object) -> str:
    console = Console(record=True, width=120)
    made = demote(GROUPS, 0.6, pins=Pins(high="relu1.Y"))
    console.print(assignment_table(made, **options))  # type: ignore[arg-type]
    return console.export_text()


def test_a_row_for_each_group_and_what_all_come_to() -> None:
    text = shown(title="A chain")
    rows = [line.strip(" │").split("│") for line in text.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[0] == ["0", "in", "in", "584", "0%", "9,344"]
    # Of 6,736 elements the 1,024 of relu1.Y are held high.
    assert cells[1][:5] == ["1", "conv1", "relu1", "6,736", "85%"]
    assert len(cells) == 4
    assert "A chain" in text and "2 of 4 groups demoted" in text
    assert "score" not in text


def test_scores_are_a_column() -> None:
    text = shown(scores={0: 0.5, 1: 1e-6, 2: 0.0, 3: 12.0})
    assert "score" in text and "1.00e-06" in text and "1.20e+01" in text


@pytest.mark.parametrize("ratio", [0.0, 0.6, 1.0])
def test_pictures_are_the_same_each_time(ratio: float, tmp_path: Path) -> None:
    made = demote(GROUPS, ratio)
    one, two = (
        plot_assignment(made, tmp_path / n, title="x").read_bytes() for n in ("a.png", "b.png")
    )
    assert one == two and len(one) > 1000


def test_a_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="doc"):
        plot_assignment(demote(GROUPS, 0.6), tmp_path / "a.doc")


def test_operations_that_are_not_known_are_named() -> None:
    ops = chain()
    ops[2] = replace(ops[2], known=False)
    console = Console(record=True, width=120)
    console.print(assignment_table(demote(group(ops), 0.6)))
    assert "without what is computed inside bn1" in " ".join(console.export_text().split())
