"""Tiny workloads that no file holds: images, and one whose layers have a precision to set."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.images import ImageData, image_workload
from lpkernels.experiments.workloads.supervised import classification
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


class Rounded(nn.Module):
    """A linear layer whose affine operands have as many bits as it is told; it notes the bits."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.bits = (16, 16)
        self.seen: list[tuple[int, bool]] = []

    def set_precision(self, forward_bits: int, backward_bits: int, **options: Any) -> None:
        self.bits = (forward_bits, backward_bits)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((self.bits[0], self.training))
        fmt = lp.AffineFormat(self.bits[0])
        weight = lp.quantize(self.linear.weight, fmt)
        return nn.functional.linear(lp.quantize(x, fmt), weight, self.linear.bias)


@contextmanager
def scheduled_layers() -> Iterator[None]:
    """Trainers made in the block keep these layers instead of converting them to lpkernels' own."""
    with patch("lpkernels.experiments.training.trainer.convert", lambda model, _: model):
        yield


def trained_with(trainer: Trainer) -> list[int]:
    """The bits of the forward passes in training; recalibration runs the layers in evaluation."""
    return [bits for bits, training in trainer.model[0].seen if training]


def network() -> nn.Module:
    return nn.Sequential(Rounded(8, 16), nn.BatchNorm1d(16), nn.ReLU(), Rounded(16, 2))


def made(config: Any = None) -> Workload:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 8, generator=generator)
    y = (x[:, :3].sum(1) > 0).long()
    return classification("scheduled", train=(x[:40], y[:40]), test=(x[40:], y[40:]), model=network)


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
