"""Networks of one kind of layer: perceptrons, and convolutions of images and of signals.

Each is `depth` times (layer, norm, ReLU), then one linear layer; layers without a norm have a bias.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Task, family, norm_layers

NORMS = ("batch", "layer", "none")


class PlainNetwork(nn.Module):
    """Layers with a norm and a ReLU after each; the first one is `stem`. The linear layer `head`
    takes the mean over the positions of images, and all positions of signals.

    dims: of the positions: 0 for vectors, to which other examples are flattened.
    halves: whether images are halved before each layer but the first.
    """

    def __init__(
        self, layers: Sequence[nn.Linear | nn.Conv1d | nn.Conv2d], head: nn.Linear, norm: str,
        dims: int, *, halves: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        body: list[nn.Module] = []
        for layer in layers:
            body += [nn.MaxPool2d(2)] if halves and body else []
            body += [layer, *norm_layers(norm, len(layer.weight), dims), nn.ReLU()]
        self.stem, self.body, self.head = body[0], nn.Sequential(*body[1:]), head
        self._dims = dims

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(self.stem(x if self._dims else x.flatten(1)))
        if self._dims:
            y = y.mean(dim=(2, 3)) if self._dims == 2 else y.flatten(1)
        return self.head(y)


@family("mlp", "images", "signals", "vectors", depth=2, width=64, norms=("none", "batch", "layer"))
def _perceptron(task: Task, depth: int, width: int, norm: str) -> nn.Module:
    """Linear layers of `width` units."""
    sizes = pairwise([math.prod(task.shape), *[width] * depth])
    layers = [nn.Linear(c_in, c_out, bias=norm == "none") for c_in, c_out in sizes]
    return PlainNetwork(layers, nn.Linear(width, task.outputs), norm, 0)


@family("cnn", "images", "signals", depth=3, width=16, norms=("", *NORMS))
def _cnn(task: Task, depth: int, width: int, norm: str) -> nn.Module:
    """Of images 3x3 convolutions: before each but the first the image is halved, and the width
    doubles; batch norm is usual. Of signals 5 taps, stride 2 and one width; no norm is usual."""
    if task.kind == "images":
        norm = norm or "batch"
        sizes = pairwise([task.shape[0], *(width << level for level in range(depth))])
        layers = [nn.Conv2d(*size, 3, 1, 1, bias=norm == "none") for size in sizes]
        head = nn.Linear(width << depth - 1, task.outputs)
        return PlainNetwork(layers, head, norm, 2, halves=True)
    norm = norm or "none"
    channels, length = task.shape
    sizes = pairwise([channels, *[width] * depth])
    signal_layers = [nn.Conv1d(*size, 5, 2, 2, bias=norm == "none") for size in sizes]
    # Each layer halves the positions, and rounds up.
    head = nn.Linear(width * math.ceil(length / 2**depth), task.outputs)
    return PlainNetwork(signal_layers, head, norm, 1)
