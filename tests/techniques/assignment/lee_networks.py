"""Two of the networks on which Lee, Sharma and Aiken train under precision assignments, exactly.

Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), networks as in their released code: widths,
biases, order of operations and initial distributions.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.models.residual import BasicBlock

# By width in percent, SqueezeNet's channels: the stem's, and those of each fire module's squeeze
# and expand convolutions. The last fire module has the same at every width.
_SQUEEZE = {
    25: (24, (4, 4, 8, 8, 12, 12, 16, 16), (16, 16, 32, 32, 48, 48, 64, 256)),
    10: (12, (4, 4, 4, 4, 8, 8, 8, 8), (8, 8, 12, 12, 20, 20, 24, 256)),
}
# By width in percent, the channels of ResNet-18's stages.
_RESNET = {25: (16, 32, 64, 128), 10: (8, 12, 24, 52)}
# SqueezeNet halves the image before these of its fire modules.
_HALVED = (0, 3, 7)


class LeeNetwork(nn.Module):
    """A stem, a body, average pooling of all positions, and a head: a linear layer after the pool,
    or a 1x1 convolution before it."""

    def __init__(
        self, stem: nn.Conv2d, body: Iterable[nn.Module], head: nn.Linear | nn.Conv2d
    ) -> None:
        super().__init__()
        self.stem = stem
        self.body = nn.Sequential(nn.BatchNorm2d(stem.out_channels), nn.ReLU(), *body)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(self.stem(x))
        if isinstance(self.head, nn.Conv2d):
            y = self.head(y)
        y = torch.nn.functional.avg_pool2d(y, y.shape[2:]).flatten(1)
        return self.head(y) if isinstance(self.head, nn.Linear) else y

    def fan_out(self) -> "LeeNetwork":
        """Draws the weights of all convolutions by the number of their outputs."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        return self


def conv_norm(
    c_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1, bias: bool = False
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution of images that keeps their size at stride 1, and its batch norm."""
    conv = nn.Conv2d(c_in, channels, kernel, stride, kernel // 2, groups=groups, bias=bias)
    return conv, nn.BatchNorm2d(channels)


class Fire(nn.Module):
    """A 1x1 convolution that squeezes, then 1x1 and 3x3 ones side by side, concatenated; a norm
    after each.

    Reference: Iandola et al. 2016, arXiv 1602.07360, section 3.2.
    """

    def __init__(self, c_in: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(*conv_norm(c_in, squeeze, 1, bias=True))
        self.expand1 = nn.Sequential(*conv_norm(squeeze, expand, 1, bias=True))
        self.expand3 = nn.Sequential(*conv_norm(squeeze, expand, 3, bias=True))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.squeeze(x))
        return torch.relu(torch.cat([self.expand1(y), self.expand3(y)], dim=1))


def stem(channels: int, *, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(3, channels, 3, 1, 1, bias=bias)


def resnet18(width: int, classes: int) -> LeeNetwork:
    widths, c_in, body = _RESNET[width], _RESNET[width][0], list[nn.Module]()
    for stage, channels in enumerate(widths):
        body += [BasicBlock(c_in, channels, 2 if stage else 1), BasicBlock(channels, channels, 1)]
        c_in = channels
    return LeeNetwork(stem(widths[0]), body, nn.Linear(c_in, classes)).fan_out()


def squeezenet(width: int, classes: int) -> LeeNetwork:
    c_in, squeezed, expanded = _SQUEEZE[width]
    first, body = stem(c_in, bias=True), list[nn.Module]()
    for number, (squeeze, expand) in enumerate(zip(squeezed, expanded, strict=True)):
        body += [nn.MaxPool2d(2)] if number in _HALVED else []
        body.append(Fire(c_in, squeeze, expand))
        c_in = 2 * expand
    network = LeeNetwork(first, body, nn.Conv2d(c_in, classes, 1))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=math.sqrt(2 / module.weight[0].numel()))
    return network


#: By name, functions of the width in percent (25 or 10) and the number of classes.
NETWORKS: dict[str, Callable[[int, int], LeeNetwork]] = {
    "squeezenet": squeezenet,
    "resnet18": resnet18,
}
