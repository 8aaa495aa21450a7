"""The table of what is done around convert, on the page of layers, is what the trials give."""

import pytest

from bench.around_convert import BEGIN, END, TRIALS, Trial
from bench.zoo.table import PAGE, split


@pytest.mark.parametrize("number, trial", [*enumerate(TRIALS)], ids=[t.what for t in TRIALS])
def test_a_trial_has_its_row_on_the_page(number: int, trial: Trial) -> None:
    lines = split(PAGE.read_text(encoding="utf-8"), BEGIN, END)[1]
    assert len(lines) == len(TRIALS)
    assert lines[number].startswith(f"| {trial.what} | ")
    if not trial.runs_here:
        pytest.skip(f"{trial.package} is not installed")
    row = trial.row()
    assert lines[number] == row, "python -m bench.around_convert --write renews the page"
