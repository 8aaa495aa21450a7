"""Runs of the trainer on a few images: made, stopped, resumed and compared; files of CIFAR."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lpkernels.experiments import records
from lpkernels.experiments.training.checkpoints import CHECKPOINT
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads.workload import Workload
from tests.experiments.tiny import tiny_workload
from tests.techniques.loss_scaling.optimizers import assert_same

#: Two epochs of four steps; the last step of an epoch has 6 images.
SMALL = RunConfig.of(model="cnn2", width=2, epochs=2, batch=8, threads=1)


def tiny_trainer(config: RunConfig, folder: Path, **values: Any) -> Trainer:
    """A trainer of `config`, with other values of some settings, on the images of `tiny_data`."""
    config = config.replace(**values)
    return Trainer(config, folder, workload=tiny_workload(config.workload))


def stop_after(trainer: Trainer, step: int, *, match: str = "stopped in epoch") -> None:
    """Trains until ctrl-C after so many steps of the whole run, or at another moment."""

    def stop(done: int, total: int) -> None:
        if done == step:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=match):
        trainer.fit(on_progress=stop)


def goes_on_alike(
    make: Callable[[Path], Trainer], folder: Path, *steps: int, workload: Workload | None = None
) -> tuple[Trainer, Trainer, Trainer]:
    """Asserts that a run which stops after `step` steps and goes on ends as one that does not stop,
    for each of `steps`.

    Returns the trainers: the whole run's, the last that stopped, and the one that went on from it.
    """
    whole = make(folder / "whole")
    whole.fit()
    for step in steps:
        stopped = make(folder / f"stopped after {step}")
        stop_after(stopped, step)
        # What a process has drawn before does not matter.
        torch.manual_seed(123)
        workload = workload or tiny_workload(stopped.config.workload)
        resumed = Trainer.resume(stopped.folder, workload=workload)
        resumed.fit()
        assert_same_end(resumed.folder, whole.folder)
    return whole, stopped, resumed


def assert_same_end(one: Path, two: Path) -> None:
    """Asserts that two runs ended alike: their checkpoints to the bit, their figures and files."""
    left, right = (torch.load(folder / CHECKPOINT, weights_only=True) for folder in (one, two))
    for state in ("model", "optimizer", "callbacks", "position", "tally", "rng"):
        assert_same(left[state], right[state], state)
    assert figures(one) == figures(two)
    assert _lines_of_callbacks(one) == _lines_of_callbacks(two)


def figures(folder: Path) -> list[dict[str, Any]]:
    """The epochs of a run without the seconds, which no two runs share."""
    epochs = records.read_run(folder).epochs
    return [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in epochs]


def _lines_of_callbacks(folder: Path) -> dict[str, list[str]]:
    """The files that callbacks write, without their headers."""
    paths = [path for path in folder.glob("*.jsonl") if path.name != records.RECORDS]
    return {path.name: path.read_text().splitlines()[1:] for path in paths}
