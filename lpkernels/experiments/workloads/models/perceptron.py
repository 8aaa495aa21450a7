"""Linear layers alone."""

import math

from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Size, Task, family
from lpkernels.experiments.workloads.models.norms import norm_layers
from lpkernels.experiments.workloads.models.scaling import check_size


class Perceptron(nn.Module):
    """`depth` times (linear layer of `width` units, norm, ReLU), then the linear layer of the
    outputs; examples are flattened. Without a norm, the usual, the layers have a bias.
    """

    def __init__(
        self, features: int, outputs: int, *, depth: int = 2, width: int = 64, norm: str = "none"
    ) -> None:
        super().__init__()
        check_size("Perceptron", depth, width)
        bias = norm == "none"
        self.stem = nn.Linear(features, width, bias=bias)
        layers: list[nn.Module] = [*norm_layers(norm, width, 0), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width, bias=bias), *norm_layers(norm, width, 0), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x.flatten(1))))


@family("mlp", "images", "signals", "vectors", depth=2, width=64, norms=("none", "batch", "layer"))
def _mlp(task: Task, size: Size) -> nn.Module:
    features = math.prod(task.shape)
    return Perceptron(
        features, task.outputs, depth=size.depth, width=size.width, norm=size.norm or "none"
    )
