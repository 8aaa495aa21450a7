"""Networks for small images, in torch.nn alone: a residual network and a plain CNN.

Both name their first layer `stem` and their last `head`, so that a recipe can treat these two
apart.
"""

import re

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm; the shortcut is a 1x1 one where the shape changes.

    Reference: He et al. 2016, arXiv 1512.03385, section 3.3 (option B for the shortcut).
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """The CIFAR residual network: a stem, stages of widths w, 2w, 4w, average pool, linear layer.

    depth = 6n + 2 with n blocks a stage: 8 is the smallest, 20 with width 16 the ResNet-20 of the
    paper.

    Reference: He et al. 2016, arXiv 1512.03385, section 4.2. Differs: 1x1 convolutions on the
        shortcuts.
    """

    def __init__(self, in_channels: int, classes: int, *, depth: int = 20, width: int = 16) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"ResNet: depth must be 6n + 2 (8, 14, 20, ...), got {depth}")
        if width < 1:
            raise ValueError(f"ResNet: width must be at least 1, got {width}")
        blocks = (depth - 2) // 6
        self.stem = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        stages = [_stage(width, width, blocks, 1)]
        stages += [_stage(width << (i - 1), width << i, blocks, 2) for i in (1, 2)]
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stages(torch.relu(self.bn(self.stem(x))))
        return self.head(y.mean(dim=(2, 3)))


def _stage(in_channels: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(in_channels, channels, stride)
    return nn.Sequential(first, *(BasicBlock(channels, channels, 1) for _ in range(blocks - 1)))


class PlainCNN(nn.Module):
    """`depth` times (3x3 convolution, batch norm, ReLU), halving the image and doubling the width
    after each but the last, then average pool and one linear layer. Without batch norm (norm=False)
    the convolutions have a bias.
    """

    def __init__(
        self, in_channels: int, classes: int, *, depth: int = 3, width: int = 16, norm: bool = True
    ) -> None:
        super().__init__()
        if depth < 1 or width < 1:
            raise ValueError(
                f"PlainCNN: depth and width must be at least 1, got depth={depth} and width={width}"
            )
        self.stem = nn.Conv2d(in_channels, width, 3, 1, 1, bias=not norm)
        layers: list[nn.Module] = [nn.BatchNorm2d(width)] if norm else []
        layers.append(nn.ReLU())
        for _ in range(depth - 1):
            layers += [nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, 1, 1, bias=not norm)]
            width *= 2
            layers += [nn.BatchNorm2d(width)] if norm else []
            layers.append(nn.ReLU())
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean(dim=(2, 3)))


def build_model(name: str, in_channels: int, classes: int, *, width: int = 16) -> nn.Module:
    """The network called `name`: "resnet<depth>" (resnet8, resnet20), "cnn<depth>" (cnn3),
    "cnn<depth>_plain" (no batch norm).

    Raises: ValueError: a name of another form, or an impossible depth or width.
    """
    match = re.fullmatch(r"(resnet|cnn)(\d+)(_plain)?", name)
    if match is None or (match[1] == "resnet" and match[3]):
        raise ValueError(
            "model: expected resnet<depth>, cnn<depth> or cnn<depth>_plain such as resnet8, "
            f"got {name!r}"
        )
    if match[1] == "resnet":
        return ResNet(in_channels, classes, depth=int(match[2]), width=width)
    return PlainCNN(in_channels, classes, depth=int(match[2]), width=width, norm=not match[3])
