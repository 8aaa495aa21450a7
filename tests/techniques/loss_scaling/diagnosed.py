"""A network that is diagnosed while it trains, for the tests of diagnoses."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lpkernels.techniques.loss_scaling import Report, diagnose
from lpkernels.techniques.loss_scaling.rows import Histogram, TensorRow


class Net(nn.Module):
    """A convolution, a norm, and two linear layers on one input, with dropout that makes draws."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.left, self.right = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.dropout(self.norm(self.conv(x)).relu().flatten(1), 0.2, self.training)
        return self.left(x) * self.right(x)


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def batch(seed: int = 0) -> Tensor:
    return torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(seed))


def train(model: nn.Module, steps: int = 2, scale: float = 1e-4) -> list[Tensor]:
    """The losses of some steps of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean() * scale
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def histogram(values: Any) -> Histogram:
    """The histogram of an array of numbers, as float32 holds them, found with NumPy."""
    with np.errstate(over="ignore"):
        plain = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    exponents = (plain.view(np.uint32) >> 23) & 255
    bins = np.bincount(exponents[plain != 0], minlength=256)
    pairs = [(e - 127, int(count)) for e, count in enumerate(bins[:255])]
    return Histogram.from_pairs(pairs, int((plain == 0).sum()), int(bins[255]))


def row_of(report: Report, layer: str, kind: str) -> TensorRow:
    (found,) = (row for row in report.rows if (row.layer, row.kind) == (layer, kind))
    return found


def one_pass(model: nn.Module, *inputs: Tensor, fmt: Any = "fp16") -> Report:
    """The report of a forward and a backward pass."""
    with diagnose(model, fmt) as report:
        model(*inputs).mean().backward()
    return report


def deep(gain: float) -> nn.Module:
    """Twelve layers; each makes the gradients behind it about `gain` times as large."""
    torch.manual_seed(0)
    layers = [nn.Linear(32, 32) for _ in range(12)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.ones_(layer.bias)
    return nn.Sequential(*layers, nn.Linear(32, 1))
