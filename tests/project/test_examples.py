"""The examples run, in shortened form."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

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


def test_nvfp4_training_learns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "nvfp4.png"
    accuracies = run(monkeypatch, "nvfp4_training.py", "--epochs", "1", "--out", str(out))
    # ten classes: chance is 0.1
    assert min(accuracies.values()) > 0.3 and out.exists()


def test_train_on_two_processes_learns_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank_0(monkeypatch, 1)
    accuracy = run(monkeypatch, "train_on_two_processes.py", "--epochs", "4", "--images", "500")
    # ten classes: chance is 0.1
    assert accuracy > 0.5


def test_train_gan_comes_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    distances = [run(monkeypatch, "train_gan.py", "--epochs", epochs) for epochs in ("1", "4")]
    assert distances[1] < 0.8 * distances[0]


def test_mac_width_tells_a_narrow_sum_from_a_wide_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "mac.png"
    arguments = ("--epochs", "1", "--bits", "1", "8", "--out", str(out))
    accuracies = run(monkeypatch, "mac_width.py", *arguments)
    assert all(of[8] > of[1] + 0.2 for of in accuracies.values()) and out.exists()


def test_kernel_vectors_accept_the_units_own_step_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shares = run(monkeypatch, "kernel_vectors.py", "--cases", "700", "--out", str(tmp_path))
    assert shares["aligned"] == 1 and max(shares["one_by_one"], shares["exact"]) < 0.5
    assert (tmp_path / "equal.png").exists()
