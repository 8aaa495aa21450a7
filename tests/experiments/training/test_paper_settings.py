"""The documented commands with a paper's settings, on small sets of the same layout."""

import re
from pathlib import Path

import pytest

from lpkernels.experiments.records import read_run
from tests.support.cifar import write_cifar
from tests.support.commands import done

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cyclic-precision.md"
# One step of all images an epoch, and two cycles.
SMALL = {"--model": "resnet8", "--epochs": "4", "--batch": "15"}


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_cyclic_precision_on_cifar(data: str, tmp_path: Path) -> None:
    page = PAGE.read_text()
    line = re.findall(rf"^    lpkernels (train --data {data} .*)$", page, re.MULTILINE)[0]
    arguments = line.replace("cycles=32", "cycles=2").split()
    folders = {"--data-dir": str(tmp_path / data), "--out": str(tmp_path / "out")}
    for option, value in {**SMALL, **folders}.items():
        arguments[arguments.index(option) + 1] = value
    write_cifar(tmp_path / data, data)
    done(*arguments, "--width", 1, "--threads", 1)
    run = read_run(tmp_path / "out")
    assert run.finished
    assert (run.config.optimizer.lr_schedule, run.config.optimizer.peak) == ("steps", 0.1)
    tests = {f"test_accuracy{name}" for name in ("", "_last_bits", "_recalibrated")}
    assert tests <= run.epochs[-1].keys()
    assert [epoch["bits"] for epoch in run.epochs] == [3, 6, 3, 6]
