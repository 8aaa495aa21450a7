"""Networks that the command line can ask about, with random weights, a random batch and a loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.experiments.workloads.models.residual import ResNet18
from lpkernels.experiments.workloads.models.transformer import GPT, LanguageLSTM
from lpkernels.formats.elsewhere import nearest

__all__ = ["Workload", "workload"]


@dataclass(frozen=True, eq=False)
class Workload:
    """A bundled network with data.

    model: the network. sample: its input. loss: makes a scalar of the network's output.
    """

    model: nn.Module
    sample: Any
    loss: Callable[[Any], Tensor]


def alexnet(classes: int = 1000) -> nn.Sequential:
    """Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks" (arXiv
    1404.5997), 224 x 224; without local response normalisation.
    """
    convolutions: list[nn.Module] = []
    shapes = [(3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1)]
    shapes.append((256, 256, 3, 1, 1))
    for index, shape in enumerate(shapes):
        convolutions += [nn.Conv2d(*shape), nn.ReLU(inplace=True)]
        if index in (0, 1, 4):
            convolutions.append(nn.MaxPool2d(3, 2))
    hidden: list[nn.Module] = []
    for width in (256 * 6 * 6, 4096):
        hidden += [nn.Dropout(), nn.Linear(width, 4096), nn.ReLU(inplace=True)]
    return nn.Sequential(*convolutions, nn.Flatten(), *hidden, nn.Linear(4096, classes))


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise 3x3, project 1x1; added to the input where the shape allows.

    Reference: Sandler et al. 2018, arXiv 1801.04381, table 1.
    """

    def __init__(self, c_in: int, c_out: int, stride: int, expand: int) -> None:
        super().__init__()
        width = c_in * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [nn.Conv2d(c_in, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
        layers += [nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU6()]
        layers += [nn.Conv2d(width, c_out, 1, bias=False), nn.BatchNorm2d(c_out)]
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


def mobilenetv2(classes: int = 1000) -> nn.Sequential:
    """Sandler et al. 2018, arXiv 1801.04381, table 2, 224 x 224."""
    width = 32
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1, bias=False)]
    layers += [nn.BatchNorm2d(width), nn.ReLU6()]
    # expansion, channels, blocks, stride of the first
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]
    for expand, channels, blocks, stride in [*rows, (6, 160, 3, 2), (6, 320, 1, 1)]:
        for block in range(blocks):
            first = stride if block == 0 else 1
            layers.append(InvertedResidual(width, channels, first, expand))
            width = channels
    layers += [nn.Conv2d(width, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, classes)]
    return nn.Sequential(*layers)


_CIFAR, _IMAGENET = Task("images", (3, 32, 32), 10), Task("images", (3, 224, 224), 1000)
_IMAGE_MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "resnet20-cifar": (lambda: build_model("resnet20", _CIFAR), 32, 10),
    "resnet32-cifar": (lambda: build_model("resnet32", _CIFAR), 32, 10),
    "resnet18-imagenet": (lambda: ResNet18(_IMAGENET, 0, 64, "batch", large=True), 224, 1000),
    "alexnet-imagenet": (alexnet, 224, 1000),
    "mobilenetv2": (mobilenetv2, 224, 1000),
    "mobilenetv2-imagenet": (mobilenetv2, 224, 1000),
}
_TOKENS, _LENGTH = 256, 128
_TEXT_MODELS: dict[str, Callable[[], nn.Module]] = {
    "tiny-gpt": GPT,
    "tiny-lstm": lambda: LanguageLSTM(Task("text", (_LENGTH,), _TOKENS), 1, 128),
}
#: The names `workload` knows, and what an error says of them.
BUNDLED = (*_IMAGE_MODELS, *_TEXT_MODELS)
LISTED = "docs/choosing-an-accumulator.md lists all"


def workload(name: str, *, batch: int = 8, seed: int = 0, device: str = "cpu") -> Workload:
    """The bundled network of that name, on a batch of random images or tokens, random labels.

    Args:
        name: of BUNDLED.
        batch: examples.
        seed: of weights and data.
        device: where all of it is made; on "meta" it has sizes and no values, and takes no
            memory.
    Raises: ValueError: an unknown name.
    """
    if name not in BUNDLED:
        raise ValueError(f"model: expected one of {nearest(name, BUNDLED, LISTED)}, got {name!r}")
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        if name in _TEXT_MODELS:
            tokens = torch.randint(_TOKENS, (batch, _LENGTH + 1))
            labels = tokens[:, 1:].flatten()
            model = _TEXT_MODELS[name]()
            return Workload(model, tokens[:, :-1], lambda y: cross_entropy(y.flatten(0, 1), labels))
        build, size, classes = _IMAGE_MODELS[name]
        model, images = build(), torch.randn(batch, 3, size, size)
        answers = torch.randint(classes, (batch,))
        return Workload(model, images, lambda y: cross_entropy(y, answers))
