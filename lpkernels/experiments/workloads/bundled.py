"""Networks that the command line can plan for, with random weights, a random batch and a loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.experiments.workloads.models.residual import resnet18
from lpkernels.formats.elsewhere import nearest

__all__ = ["Network", "network"]


class Network(NamedTuple):
    """A network that a plan is made for.

    model: the network. sample: its input. loss: makes a scalar of its output.
    """

    model: nn.Module
    sample: Any
    loss: Callable[[Any], Tensor]


def alexnet() -> nn.Sequential:
    """Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks" (arXiv
    1404.5997), 224 x 224 and 1000 classes; without local response normalisation.
    """
    convolutions: list[nn.Module] = []
    shapes = [(3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1)]
    for index, shape in enumerate([*shapes, (256, 256, 3, 1, 1)]):
        convolutions += [nn.Conv2d(*shape), nn.ReLU(inplace=True)]
        if index in (0, 1, 4):
            convolutions.append(nn.MaxPool2d(3, 2))
    hidden: list[nn.Module] = []
    for width in (256 * 6 * 6, 4096):
        hidden += [nn.Dropout(), nn.Linear(width, 4096), nn.ReLU(inplace=True)]
    return nn.Sequential(*convolutions, nn.Flatten(), *hidden, nn.Linear(4096, 1000))


_CIFAR, _IMAGENET = Task("images", (3, 32, 32), 10), Task("images", (3, 224, 224), 1000)
_MODELS: dict[str, tuple[Callable[[], nn.Module], Task]] = {
    "resnet20-cifar": (lambda: build_model("resnet20", _CIFAR), _CIFAR),
    "resnet32-cifar": (lambda: build_model("resnet32", _CIFAR), _CIFAR),
    "resnet18-imagenet": (lambda: resnet18(_IMAGENET, large=True), _IMAGENET),
    "alexnet-imagenet": (alexnet, _IMAGENET),
}
#: The names `network` knows, and what an error says of them.
BUNDLED = tuple(_MODELS)
LISTED = "docs/choosing-an-accumulator.md lists all"


def network(name: str, *, batch: int = 8, seed: int = 0, device: str = "cpu") -> Network:
    """The bundled network of that name, on a batch of random images with random labels.

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
    build, task = _MODELS[name]
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        model, images = build(), torch.randn(batch, *task.shape)
        labels = torch.randint(task.outputs, (batch,))
        return Network(model, images, lambda y: cross_entropy(y, labels))
