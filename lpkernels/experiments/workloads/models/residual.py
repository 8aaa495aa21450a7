"""Residual networks for small images, and ResNet-18 for those of ImageNet too."""

import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Task, family, norm_layers
from lpkernels.experiments.workloads.models.plain import NORMS


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a norm each; the shortcut is a 1x1 one where the shape changes.

    Reference: He et al. 2016, arXiv 1512.03385, section 3.3 (option B for the shortcut).
    """

    def __init__(self, in_channels: int, channels: int, stride: int, norm: str = "batch") -> None:
        super().__init__()
        bias = norm == "none"
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=bias)
        self.bn1 = _norm(norm, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=bias)
        self.bn2 = _norm(norm, channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=bias),
                *norm_layers(norm, channels, 2),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of `blocks` blocks each, average pool, linear layer. The first stage has the
    width of the stem; each further one halves the image and doubles the width.

    large: for images of 224 x 224, with a 7x7 stem of stride 2 and a pool. Else it is for images of
        about 32 x 32, with a 3x3 stem of stride 1 and no pool.

    Reference: He et al. 2016, arXiv 1512.03385, table 1 and section 4.2. Differs: 1x1 convolutions
        on the shortcuts.
    """

    def __init__(
        self, task: Task, stages: int, blocks: int, width: int, norm: str, *, large: bool = False
    ) -> None:
        super().__init__()
        kernel, stride, padding = (7, 2, 3) if large else (3, 1, 1)
        self.stem = nn.Conv2d(task.shape[0], width, kernel, stride, padding, bias=norm == "none")
        self.bn = _norm(norm, width)
        self.pool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        body, c_in = [], width
        for stage in range(stages):
            channels, first = width << stage, 2 if stage else 1
            body.append(
                nn.Sequential(
                    BasicBlock(c_in, channels, first, norm),
                    *(BasicBlock(channels, channels, 1, norm) for _ in range(blocks - 1)),
                )
            )
            c_in = channels
        self.stages = nn.Sequential(*body)
        self.head = nn.Linear(c_in, task.outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stages(self.pool(torch.relu(self.bn(self.stem(x)))))
        return self.head(y.mean(dim=(2, 3)))


@family("resnet", "images", depth=8, width=16, norms=NORMS)
def _cifar_resnet(task: Task, depth: int, width: int, norm: str) -> nn.Module:
    """Three stages; depth = 6n + 2 with n blocks a stage: 8 is the smallest, 20 with width 16 the
    ResNet-20 of the paper."""
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"resnet: depth must be 6n + 2 (8, 14, 20, ...), got {depth}")
    return ResNet(task, 3, (depth - 2) // 6, width, norm)


@family("resnet18", "images", width=64, norms=NORMS)
def resnet18(
    task: Task, depth: int = 18, width: int = 64, norm: str = "batch", *, large: bool = False
) -> ResNet:
    """ResNet-18: four stages of two blocks; the `width` is 64 in the paper. Without `large` it is
    like the ResNet-18 of Lee et al. 2023 (arXiv 2301.13464)."""
    return ResNet(task, 4, 2, width, norm, large=large)


def _norm(norm: str, channels: int) -> nn.Module:
    layers = norm_layers(norm, channels, 2)
    return layers[0] if layers else nn.Identity()
