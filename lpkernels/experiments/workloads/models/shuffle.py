"""ShuffleNetV2 for small images."""

import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Size, Task, family
from lpkernels.experiments.workloads.models.norms import norm_layers
from lpkernels.experiments.workloads.models.scaling import check_width, scaled

_WIDTH = 24
# Channels and blocks of each stage.
_STAGES = ((116, 4), (232, 8), (464, 4))
_LAST = 1024


class ShuffleUnit(nn.Module):
    """Half of the channels pass, the others go through 1x1, depthwise 3x3, 1x1; then all are
    shuffled. With stride 2 both halves are convolutions of the whole input.

    Reference: Ma et al. 2018, arXiv 1807.11164, figure 3 (c) and (d).
    """

    def __init__(self, in_channels: int, channels: int, stride: int, norm: str = "batch") -> None:
        super().__init__()
        half = channels // 2
        self.splits = stride == 1
        entering = in_channels // 2 if self.splits else in_channels
        self.shortcut: nn.Module = nn.Identity()
        if not self.splits:
            self.shortcut = nn.Sequential(
                *_conv(entering, entering, 3, norm, stride=stride, groups=entering),
                *_conv(entering, half, 1, norm),
                nn.ReLU(),
            )
        self.branch = nn.Sequential(
            *_conv(entering, half, 1, norm),
            nn.ReLU(),
            *_conv(half, half, 3, norm, stride=stride, groups=half),
            *_conv(half, half, 1, norm),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1) if self.splits else (x, x)
        y = torch.cat([self.shortcut(left), self.branch(right)], dim=1)
        n, c, h, w = y.shape
        # The channels of the two halves are taken in turn.
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class ShuffleNetV2(nn.Module):
    """ShuffleNetV2 for images of about 32 x 32.

    Reference: Ma et al. 2018, arXiv 1807.11164, table 5 (1x). Differs: a stem of stride 1 without
        the pool; other widths are multiples of this one, rounded to multiples of 4, the stem too.
        It is like the ShuffleNetV2 of Lee et al. 2023 (arXiv 2301.13464), which is
        `lee-shufflenetv2` exactly.
    """

    def __init__(
        self, in_channels: int, classes: int, *, width: int = _WIDTH, norm: str = "batch"
    ) -> None:
        super().__init__()
        check_width("ShuffleNetV2", width)
        self.stem = nn.Conv2d(in_channels, width, 3, 1, 1, bias=norm == "none")
        body: list[nn.Module] = [*norm_layers(norm, width, 2), nn.ReLU()]
        channels = width
        for usual, blocks in _STAGES:
            out = scaled(usual, width, _WIDTH)
            body.append(ShuffleUnit(channels, out, 2, norm))
            body += [ShuffleUnit(out, out, 1, norm) for _ in range(1, blocks)]
            channels = out
        last = scaled(_LAST, width, _WIDTH)
        body += [*_conv(channels, last, 1, norm), nn.ReLU()]
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean(dim=(2, 3)))


def _conv(
    in_channels: int, channels: int, kernel: int, norm: str, *, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    conv = nn.Conv2d(
        in_channels, channels, kernel, stride, kernel // 2, groups=groups, bias=norm == "none"
    )
    return [conv, *norm_layers(norm, channels, 2)]


@family("shufflenetv2", "images", width=_WIDTH, norms=("batch", "layer", "none"))
def _shufflenetv2(task: Task, size: Size) -> nn.Module:
    return ShuffleNetV2(task.shape[0], task.outputs, width=size.width, norm=size.norm or "batch")
