"""Residual networks for small images, and ResNet-18 for those of ImageNet too."""

import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Size, Task, family
from lpkernels.experiments.workloads.models.norms import norm_layers
from lpkernels.experiments.workloads.models.scaling import check_width


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
    """The CIFAR residual network: a stem, stages of widths w, 2w, 4w, average pool, linear layer.

    Images are (N, in_channels, H, W), results (N, classes);
    norm is "batch", "layer" or "none".
    depth = 6n + 2 with n blocks a stage: 8 is the smallest, 20 with width 16 the ResNet-20 of the
    paper.

    Reference: He et al. 2016, arXiv 1512.03385, section 4.2. Differs: 1x1 convolutions on the
        shortcuts.
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        *,
        depth: int = 20,
        width: int = 16,
        norm: str = "batch",
    ) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"ResNet: depth must be 6n + 2 (8, 14, 20, ...), got {depth}")
        check_width("ResNet", width)
        blocks = (depth - 2) // 6
        self.stem = nn.Conv2d(in_channels, width, 3, 1, 1, bias=norm == "none")
        self.bn = _norm(norm, width)
        stages = [_stage(width, width, blocks, 1, norm)]
        stages += [_stage(width << (i - 1), width << i, blocks, 2, norm) for i in (1, 2)]
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stages(torch.relu(self.bn(self.stem(x))))
        return self.head(y.mean(dim=(2, 3)))


class ResNet18(nn.Module):
    """ResNet-18: a stem, four stages of widths w, 2w, 4w, 8w with two blocks each, average pool,
    linear layer; w, the `width`, is 64 in the paper.

    Images are (N, in_channels, H, W), results (N, classes);
    norm is "batch", "layer" or "none".

    large: for images of 224 x 224, with the paper's stem: 7x7 of stride 2 and a pool. Else it is
        for images of about 32 x 32, with a 3x3 stem of stride 1 and no pool.

    Reference: He et al. 2016, arXiv 1512.03385, table 1 (18 layers). Differs: 1x1 convolutions on
        the shortcuts. Without `large` it is like the ResNet-18 of Lee et al. 2023 (arXiv
        2301.13464), which is `lee-resnet18` exactly.
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        *,
        width: int = 64,
        norm: str = "batch",
        large: bool = False,
    ) -> None:
        super().__init__()
        check_width("ResNet18", width)
        kernel, stride, padding = (7, 2, 3) if large else (3, 1, 1)
        self.stem = nn.Conv2d(in_channels, width, kernel, stride, padding, bias=norm == "none")
        self.bn = _norm(norm, width)
        self.pool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        stages = [_stage(width, width, 2, 1, norm)]
        stages += [_stage(width << (i - 1), width << i, 2, 2, norm) for i in (1, 2, 3)]
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stages(self.pool(torch.relu(self.bn(self.stem(x)))))
        return self.head(y.mean(dim=(2, 3)))


def _norm(norm: str, channels: int) -> nn.Module:
    layers = norm_layers(norm, channels, 2)
    return layers[0] if layers else nn.Identity()


def _stage(in_channels: int, channels: int, blocks: int, stride: int, norm: str) -> nn.Sequential:
    first = BasicBlock(in_channels, channels, stride, norm)
    return nn.Sequential(
        first, *(BasicBlock(channels, channels, 1, norm) for _ in range(1, blocks))
    )


@family("resnet", "images", depth=8, width=16, norms=("batch", "layer", "none"))
def _resnet(task: Task, size: Size) -> nn.Module:
    return ResNet(
        task.shape[0], task.outputs, depth=size.depth, width=size.width, norm=size.norm or "batch"
    )


@family("resnet18", "images", width=64, norms=("batch", "layer", "none"))
def _resnet18(task: Task, size: Size) -> nn.Module:
    return ResNet18(task.shape[0], task.outputs, width=size.width, norm=size.norm or "batch")
