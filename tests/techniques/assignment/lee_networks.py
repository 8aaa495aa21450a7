"""The four networks on which Lee, Sharma and Aiken train under precision assignments, exactly.

Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), networks as in their released code: widths,
biases, order of operations and initial distributions.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.models.residual import BasicBlock

# By width in percent, SqueezeNet's channels: the stem's, and those of each fire module's squeeze
# and expand convolutions. The last fire module has the same at every width.
_SQUEEZE = {
    100: (96, (16, 16, 32, 32, 48, 48, 64, 64), (64, 64, 128, 128, 192, 192, 256, 256)),
    50: (48, (8, 8, 16, 16, 24, 24, 32, 32), (32, 32, 64, 64, 96, 96, 128, 256)),
    25: (24, (4, 4, 8, 8, 12, 12, 16, 16), (16, 16, 32, 32, 48, 48, 64, 256)),
    10: (12, (4, 4, 4, 4, 8, 8, 8, 8), (8, 8, 12, 12, 20, 20, 24, 256)),
}
# SqueezeNet halves the image before these of its fire modules.
_HALVED = (0, 3, 7)
# By width in percent, the channels of ShuffleNetV2's stages.
_SHUFFLE = {100: (116, 232, 464), 50: (56, 112, 224), 25: (28, 56, 112), 10: (12, 24, 48)}
# MobileNetV2's rows: channels, blocks, stride of the first, expansion.
_MOBILE = (
    (16, 1, 1, 1), (24, 2, 1, 6), (32, 3, 2, 6), (64, 4, 2, 6), (96, 3, 1, 6), (160, 3, 2, 6),
    (320, 1, 1, 6),
)  # fmt: skip


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


class Inverted(nn.Module):
    """MobileNetV2's block as the released code has it: always an expansion, ReLU, and at stride 1 a
    1x1 convolution with norm on the shortcut where the channels change."""

    def __init__(self, c_in: int, channels: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = expand * c_in
        self.layers = nn.Sequential(
            *conv_norm(c_in, wide, 1), nn.ReLU(),
            *conv_norm(wide, wide, 3, stride, groups=wide), nn.ReLU(),
            *conv_norm(wide, channels, 1),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if c_in != channels and stride == 1:
            self.shortcut = nn.Sequential(*conv_norm(c_in, channels, 1))
        self.adds = stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return y + self.shortcut(x) if self.adds else y


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


class ShuffleUnit(nn.Module):
    """Half of the channels pass, the others go through 1x1, depthwise 3x3, 1x1; then all are
    shuffled. With stride 2 both halves are convolutions of the whole input.

    Reference: Ma et al. 2018, arXiv 1807.11164, figure 3 (c) and (d).
    """

    def __init__(self, c_in: int, channels: int, stride: int) -> None:
        super().__init__()
        half = channels // 2
        self.splits = stride == 1
        entering = c_in // 2 if self.splits else c_in
        self.shortcut: nn.Module = nn.Identity()
        if not self.splits:
            self.shortcut = nn.Sequential(
                *conv_norm(entering, entering, 3, stride, groups=entering),
                *conv_norm(entering, half, 1), nn.ReLU(),
            )  # fmt: skip
        self.branch = nn.Sequential(
            *conv_norm(entering, half, 1), nn.ReLU(),
            *conv_norm(half, half, 3, stride, groups=half),
            *conv_norm(half, half, 1), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1) if self.splits else (x, x)
        y = torch.cat([self.shortcut(left), self.branch(right)], dim=1)
        n, c, h, w = y.shape
        # The channels of the two halves are taken in turn.
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def blocks(block: Callable[..., nn.Module], c_in: int, rows: Sequence[Any]) -> list[nn.Module]:
    """Blocks made by `block(c_in, channels, stride, ...)`, `count` for each row (channels, count,
    stride, ...). The first block of a row has the row's stride, the others have 1."""
    body = []
    for channels, count, stride, *expansion in rows:
        for number in range(count):
            body.append(block(c_in, channels, 1 if number else stride, *expansion))
            c_in = channels
    return body


def stem(channels: int, *, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(3, channels, 3, 1, 1, bias=bias)


def divided(channels: int, width: int) -> int:
    """The multiple of 8 (of 4 at a quarter and below) nearest to width percent of the channels, if
    it is at least nine tenths of that share, else the next one."""
    step, share = 4 if width <= 25 else 8, channels * width / 100
    nearest = max(step, int(share + step / 2) // step * step)
    return nearest + step if nearest < 0.9 * share else nearest


def resnet18(width: int, classes: int) -> LeeNetwork:
    widths = [divided(64 << stage, width) for stage in range(4)]
    rows = [(channels, 2, 2 if stage else 1) for stage, channels in enumerate(widths)]
    body = blocks(BasicBlock, widths[0], rows)
    return LeeNetwork(stem(widths[0]), body, nn.Linear(widths[-1], classes)).fan_out()


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


def mobilenetv2(width: int, classes: int) -> LeeNetwork:
    first = stem(divided(32, width))
    rows = [(divided(usual, width), *others) for usual, *others in _MOBILE]
    body, head = blocks(Inverted, first.out_channels, rows), nn.Linear(1280, classes)
    end = conv_norm(rows[-1][0], 1280, 1)
    network = LeeNetwork(first, [*body, *end, nn.ReLU()], head).fan_out()
    nn.init.normal_(head.weight, std=0.01)
    nn.init.zeros_(head.bias)
    return network


def shufflenetv2(width: int, classes: int) -> LeeNetwork:
    widths = _SHUFFLE[width]
    rows = [(channels, count, 2) for channels, count in zip(widths, (4, 8, 4), strict=True)]
    body = [*blocks(ShuffleUnit, 24, rows), *conv_norm(widths[-1], 1024, 1), nn.ReLU()]
    return LeeNetwork(stem(24), body, nn.Linear(1024, classes))


#: By name, functions of the width in percent (100, 50, 25 or 10) and the number of classes.
NETWORKS: dict[str, Callable[[int, int], LeeNetwork]] = {
    "squeezenet": squeezenet,
    "shufflenetv2": shufflenetv2,
    "mobilenetv2": mobilenetv2,
    "resnet18": resnet18,
}
