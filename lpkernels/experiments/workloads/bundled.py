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


_CIFAR, _IMAGENET = Task("images", (3, 32, 32), 10), Task("images", (3, 224, 224), 1000)
_MODELS: dict[str, tuple[Callable[[], nn.Module], Task]] = {
    "resnet20-cifar": (lambda: build_model("resnet20", _CIFAR), _CIFAR),
    "resnet32-cifar": (lambda: build_model("resnet32", _CIFAR), _CIFAR),
    "resnet18-imagenet": (lambda: resnet18(_IMAGENET, large=True), _IMAGENET),
}
#: The names that `network` knows.
BUNDLED = tuple(_MODELS)


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
        raise ValueError(f"model: expected one of {nearest(name, BUNDLED)}, got {name!r}")
    build, task = _MODELS[name]
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        model, images = build(), torch.randn(batch, *task.shape)
        labels = torch.randint(task.outputs, (batch,))
        return Network(model, images, lambda y: cross_entropy(y, labels))
