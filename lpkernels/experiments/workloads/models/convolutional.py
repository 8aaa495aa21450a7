"""Plain convolutional networks, for small images and for signals."""

from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Size, Task, family
from lpkernels.experiments.workloads.models.norms import norm_layers
from lpkernels.experiments.workloads.models.scaling import check_size


class PlainCNN(nn.Module):
    """A plain convolutional network for images (N, in_channels, H, W), which gives (N, classes).

    `depth` times (3x3 convolution, norm, ReLU), halving the image and doubling `width` after each
    but the last, then average pool and one linear layer. norm is "batch", "layer" or "none", with
    which the convolutions have a bias.

    Raises: ValueError: depth or width below 1.
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        *,
        depth: int = 3,
        width: int = 16,
        norm: str = "batch",
    ) -> None:
        super().__init__()
        check_size("PlainCNN", depth, width)
        bias = norm == "none"
        self.stem = nn.Conv2d(in_channels, width, 3, 1, 1, bias=bias)
        layers: list[nn.Module] = [*norm_layers(norm, width, 2), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, 1, 1, bias=bias)]
            width *= 2
            layers += [*norm_layers(norm, width, 2), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean(dim=(2, 3)))


class SignalCNN(nn.Module):
    """A plain convolutional network for signals of `shape` (C, L), which gives (N, classes).

    `depth` times (1-d convolution of 5 taps and stride 2, norm, ReLU), all of one `width`, then
    one linear layer on all positions. norm is "batch", "layer" or "none", with which the
    convolutions have a bias.

    Raises: ValueError: depth or width below 1.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        depth: int = 3,
        width: int = 16,
        norm: str = "none",
    ) -> None:
        super().__init__()
        check_size("SignalCNN", depth, width)
        channels, length = shape
        bias = norm == "none"
        self.stem = nn.Conv1d(channels, width, 5, 2, 2, bias=bias)
        layers: list[nn.Module] = [*norm_layers(norm, width, 1), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Conv1d(width, width, 5, 2, 2, bias=bias)]
            layers += [*norm_layers(norm, width, 1), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        for _ in range(depth):
            length = (length + 1) // 2
        self.head = nn.Linear(width * length, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).flatten(1))


@family("cnn", "images", "signals", depth=3, width=16, norms=("batch", "layer", "none"))
def _cnn(task: Task, size: Size) -> nn.Module:
    depth, width = size.depth, size.width
    if task.kind == "signals":
        norm = size.norm or "none"
        return SignalCNN(task.shape, task.outputs, depth=depth, width=width, norm=norm)
    norm = size.norm or "batch"
    return PlainCNN(task.shape[0], task.outputs, depth=depth, width=width, norm=norm)
