"""The tiny runs that one process and two make alike, and folders that several fill once."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock
from torch import nn

from lpkernels.experiments.processes.replicas import replicated, sharded
from lpkernels.experiments.processes.torchrun import ALONE, Processes
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads.workload import Workload
from lpkernels.recipes import recipe
from tests.experiments.tiny import tiny_workload

#: These test images make three batches of 256 at most, one more than two processes take at once.
DATA_TEST = 520

# Operands are FP8, and weights are rounded stochastically to a fine grid. There is no batch norm:
# every image is on its own.
PLAIN = RunConfig.of(
    name="plain", model="cnn2", norm="none", width=2, recipe=str(recipe("fp8_wang2018")), epochs=2,
    loss_scale=1024.0, weight_update="e8m16:stochastic", batch=10, lr=0.2, augment=True, threads=1,
)  # fmt: skip


def _aligned(layer: str, products: int) -> tuple[str, str, str, str]:
    """A layer whose weight gradients are summed in two chunks for a batch.

    Each process has one of the chunks; the two are added in float32.
    """
    return layer, "e6m9_chunk64", "e6m9_chunk64", f"e6m9_chunk{products}:outer=fp32"


# Each process has 5 images; the first layer has 6 x 6 positions, the second 3 x 3.
ALIGNED = PLAIN.replace(
    name="aligned", layer_accs=(_aligned("stem", 180), _aligned("body.2", 45), _aligned("head", 5))
)
# This run has batch norm, a short last batch, and draws in the layers.
STOCHASTIC = PLAIN.replace(name="stochastic", batch=8, acc="e6m5:stochastic")

# The norm is over the gradients of all processes. Where the gradients are sharded, the sums of
# squares have another order.
CLIPPED = PLAIN.replace(name="clipped", clip=0.1)
CONFIGS = (ALIGNED, PLAIN, STOCHASTIC)
WAYS = ("ddp", "fsdp")
Losses = list[float]

# Precisions on a schedule: by the step, and by the loss of all processes.
SCHEDULES = ("cpt:3-8/8,cycles=2", "pfq:3-4-6/8,eps=9,period=2")


SCHEDULED = RunConfig.of(
    model="cnn2", width=2, epochs=4, batch=10, threads=1, lr=0.2, recipe="cpt_fu2021"
)


def fit_until(trainer: Trainer, step: int, rank: int = 0) -> None:
    """Trains until ctrl-C reaches one of the processes after so many steps of the run, or to the
    end, where that comes first."""

    def stop(done: int, total: int) -> None:
        if done == step < total and trainer.processes.rank == rank:
            signal.raise_signal(signal.SIGINT)

    try:
        trainer.fit(on_progress=stop)
    except Interrupted:
        assert step < trainer.total_steps
    else:
        assert step == trainer.total_steps


def start_and_stop(config: RunConfig, folder: Path, processes: Processes = ALONE) -> None:
    """A run whose checkpoint is in the middle of the second epoch; ctrl-C reaches the last
    process."""
    trainer = Trainer(config, folder, workload=data(config), processes=processes)
    fit_until(trainer, trainer.steps + 2, processes.count - 1)


def noted(config: RunConfig, folder: Path, processes: Processes = ALONE) -> tuple[Trainer, Losses]:
    """Trains; returns the loss of every step too."""
    trainer = Trainer(config, folder, workload=data(config), processes=processes)
    sums: Losses = []
    losses: Losses = []

    def note(done: int, total: int) -> None:
        before = sums[-1] if trainer.position.step > 1 else 0.0
        sums.append(trainer.tally.totals(processes)["loss"])
        losses.append(sums[-1] - before)

    trainer.fit(on_progress=note)
    return trainer, losses


def spread(model: nn.Module, processes: Processes) -> nn.Module:
    """The function that processes call for a step of a loop of one's own."""
    return replicated(sharded(model, processes, "cpu"), processes)


def data(config: RunConfig) -> Workload:
    return tiny_workload(config.workload, test=DATA_TEST)


class Made(NamedTuple):
    """The folder that several processes filled, and the things that each of them saw."""

    folder: Path
    ranks: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> "Made":
        paths = sorted(folder.glob("rank*.pt"))
        return cls(folder, [torch.load(path, weights_only=True) for path in paths])


def made_once(factory: Any, name: str, make: Callable[[Path], None]) -> Made:
    """The folder that `make` fills, which all of pytest's processes share."""
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with FileLock(root / f"{name}.lock"):
        folder = root / name
        if not folder.exists():
            folder.mkdir()
            make(folder)
    return Made.read(folder)
