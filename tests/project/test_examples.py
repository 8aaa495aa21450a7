"""The examples run, in shortened form."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launch import finished, torchrun
from tests.support.commands import as_rank_0

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> Any:
    """The result of the example's main() for these arguments."""
    path = EXAMPLES / name
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    return runpy.run_path(str(path))["main"]()


def test_every_example_is_tested_and_short() -> None:
    text = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in text
        assert len(path.read_text().splitlines()) <= 80


def test_train_digits_fp8_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy = run(monkeypatch, "train_digits_fp8.py", "--epochs", "4", "--images", "500")
    # ten classes: chance is 0.1
    assert accuracy > 0.5


def test_train_on_two_processes_learns_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank_0(monkeypatch, 1)
    accuracy = run(monkeypatch, "train_on_two_processes.py", "--epochs", "4", "--images", "500")
    # ten classes: chance is 0.1
    assert accuracy > 0.5


def test_train_gan_comes_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    distances = [run(monkeypatch, "train_gan.py", "--epochs", epochs) for epochs in ("1", "4")]
    assert distances[1] < 0.8 * distances[0]


@pytest.mark.slow
def test_train_on_two_processes_learns() -> None:
    example = EXAMPLES / "train_on_two_processes.py"
    printed = finished(torchrun(example, "--epochs", "4", "--images", "500"))
    accuracy = float(re.findall(r"accuracy (.*)%", printed)[-1])
    assert printed.count("epoch 4") == 1
    # ten classes: chance is 10
    assert accuracy > 50


def test_accumulator_width_shows_what_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = run(monkeypatch, "accumulator_width.py", "--length", "1024")
    assert errors["e6m3 one sum"] > 0.5
    assert errors["e6m3 chunks of 64"] < errors["e6m3 one sum"] / 2
    assert errors["e6m3 stochastic"] < errors["e6m3 one sum"] / 2
    assert errors["e6m12 one sum"] < 0.01
