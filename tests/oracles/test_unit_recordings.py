"""What hardware returned, through the public product and bench/unit_recordings.py."""

import sys

import pytest

from bench import unit_recordings
from tests.oracles.recordings import SAMPLE, groups

GROUPS = {group.name: group for group in groups()}


@pytest.mark.parametrize("group", GROUPS.values())
def test_matmul_returns_what_the_hardware_did(group) -> None:
    assert len(group.d) == 200
    assert unit_recordings.differing(group, group.accumulator, "auto") == 0


@pytest.mark.parametrize(
    "respect", ["one bit more", "rounded otherwise", "half the block"], ids=str
)
def test_a_wrong_accumulator_does_not(respect: str) -> None:
    group = GROUPS["Ada.e4m3.fp32.mma"]
    wrong = unit_recordings.wrong(group.accumulator)[respect]
    assert unit_recordings.differing(group, wrong, "reference") > 20


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["unit_recordings", *arguments])
    return unit_recordings.main()


def test_the_command_counts_cases_and_fails_where_one_differs(monkeypatch, capsys) -> None:
    assert run(monkeypatch, str(SAMPLE)) == 0
    assert "0 of 6400 differ" in capsys.readouterr().out
    assert run(monkeypatch, str(SAMPLE), "--wrong") == 0
    shown = capsys.readouterr().out
    assert "V100.fp16.fp32" in shown and "c added last" in shown and "a place more" in shown
    monkeypatch.setattr(unit_recordings, "differing", lambda *_: 1)
    assert run(monkeypatch, str(SAMPLE)) == 1
    assert "32 of 6400 differ" in capsys.readouterr().out
