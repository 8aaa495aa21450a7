"""A tiny workload that no file holds, and what tests of runs share."""

import torch
from torch import Tensor, nn

from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.images import ImageData, image_workload
from lpkernels.experiments.workloads.workload import Workload


class TinyImages(ImageData):
    """Pixels are normalised exactly, by round numbers."""

    moments = (torch.full((1, 1, 1, 1), 5.0), torch.full((1, 1, 1, 1), 4.0))


def tiny_data(test: int = 8) -> ImageData:
    """Images of 6 x 6 in three classes, which a bright pixel tells apart; 30 to train on."""
    train, count = 30, 30 + test
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    images = torch.randint(0, 8, (count, 1, 6, 6), generator=generator, dtype=torch.uint8)
    images[torch.arange(count), 0, labels * 2] += 8
    parts = (images[:train], labels[:train]), (images[train:], labels[train:])
    return TinyImages("tiny", 3, *parts, max_shift=1, flip=True)


def tiny_workload(config: WorkloadConfig, *, test: int = 8) -> Workload:
    """`tiny_data` with the settings of a run, by name "tests.experiments.tiny:tiny_workload"."""
    return image_workload(tiny_data(test), config.replace(model=config.model or "resnet8"))


def bits_of_steps(trainer: Trainer) -> list[int]:
    """Trains the rest of a run under a schedule of precisions; returns the bits of its steps."""
    bits: list[int] = []
    scheduler = trainer.callbacks[0].scheduler
    trainer.fit(on_progress=lambda *_: bits.append(scheduler.precision[0]))
    return bits


def assert_trains(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Asserts that steps of SGD on one batch lower its cross-entropy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
