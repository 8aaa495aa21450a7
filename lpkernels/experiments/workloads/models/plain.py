"""Networks of one kind of layer: perceptrons, and convolutions of images and of signals.

Each is `depth` times (layer, norm, ReLU), then one linear layer; layers without a norm have a bias.
"""

import math

from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Task, family, norm_layers

NORMS = ("batch", "layer", "none")


@family("mlp", "images", "signals", "vectors", depth=2, width=64, norms=("none", "batch", "layer"))
class Perceptron(nn.Module):
    """Linear layers of `width` units; examples are flattened."""

    def __init__(self, task: Task, depth: int, width: int, norm: str) -> None:
        super().__init__()
        bias = norm == "none"
        self.stem = nn.Linear(math.prod(task.shape), width, bias=bias)
        layers: list[nn.Module] = [*norm_layers(norm, width, 0), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width, bias=bias), *norm_layers(norm, width, 0), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, task.outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x.flatten(1))))


class PlainCNN(nn.Module):
    """3x3 convolutions of images; after each but the last the image is halved and the width
    doubled. The linear layer takes the mean over the positions."""

    def __init__(self, task: Task, depth: int, width: int, norm: str) -> None:
        super().__init__()
        bias = norm == "none"
        self.stem = nn.Conv2d(task.shape[0], width, 3, 1, 1, bias=bias)
        layers: list[nn.Module] = [*norm_layers(norm, width, 2), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, 1, 1, bias=bias)]
            width *= 2
            layers += [*norm_layers(norm, width, 2), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, task.outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean(dim=(2, 3)))


class SignalCNN(nn.Module):
    """Convolutions of signals, of 5 taps, stride 2 and one width. The linear layer takes all
    positions."""

    def __init__(self, task: Task, depth: int, width: int, norm: str) -> None:
        super().__init__()
        channels, length = task.shape
        bias = norm == "none"
        self.stem = nn.Conv1d(channels, width, 5, 2, 2, bias=bias)
        layers: list[nn.Module] = [*norm_layers(norm, width, 1), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Conv1d(width, width, 5, 2, 2, bias=bias)]
            layers += [*norm_layers(norm, width, 1), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        for _ in range(depth):
            length = (length + 1) // 2
        self.head = nn.Linear(width * length, task.outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).flatten(1))


@family("cnn", "images", "signals", depth=3, width=16, norms=("", *NORMS))
def _cnn(task: Task, depth: int, width: int, norm: str) -> nn.Module:
    """Batch norm is usual for images, none for signals."""
    if task.kind == "signals":
        return SignalCNN(task, depth, width, norm or "none")
    return PlainCNN(task, depth, width, norm or "batch")
