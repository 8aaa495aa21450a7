"""SqueezeNet for small images."""

import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Size, Task, family
from lpkernels.experiments.workloads.models.norms import norm_layers
from lpkernels.experiments.workloads.models.scaling import check_width, scaled

_WIDTH = 96
# Channels of the squeeze and of each expand convolution; 0: the image is halved.
_FIRES = (
    *((16, 64), (16, 64), (32, 128), (0, 0)),
    *((32, 128), (48, 192), (48, 192), (64, 256), (0, 0), (64, 256)),
)


class Fire(nn.Module):
    """A 1x1 convolution that squeezes, then 1x1 and 3x3 ones side by side, concatenated.

    Reference: Iandola et al. 2016, arXiv 1602.07360, section 3.2. Differs: a norm after each
        convolution. bias: of the convolutions; None: where there is no norm.
    """

    def __init__(
        self,
        in_channels: int,
        squeeze: int,
        expand: int,
        norm: str = "batch",
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        bias = norm == "none" if bias is None else bias
        self.squeeze = _layer(in_channels, squeeze, 1, norm, bias)
        self.expand1 = _layer(squeeze, expand, 1, norm, bias)
        self.expand3 = _layer(squeeze, expand, 3, norm, bias)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.squeeze(x))
        return torch.relu(torch.cat([self.expand1(y), self.expand3(y)], dim=1))


class SqueezeNet(nn.Module):
    """SqueezeNet for images of about 32 x 32.

    Reference: Iandola et al. 2016, arXiv 1602.07360, table 1. Differs: a stem of 3x3 and stride 1,
        norms, pools of 2x2, no dropout; other widths round to multiples of 4. It is like the
        SqueezeNet of Lee et al. 2023 (arXiv 2301.13464), which is `lee-squeezenet` exactly.
    """

    def __init__(
        self, in_channels: int, classes: int, *, width: int = _WIDTH, norm: str = "batch"
    ) -> None:
        super().__init__()
        check_width("SqueezeNet", width)
        self.stem = nn.Conv2d(in_channels, width, 3, 1, 1, bias=norm == "none")
        body: list[nn.Module] = [*norm_layers(norm, width, 2), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
        for squeeze, expand in _FIRES:
            if not expand:
                body.append(nn.MaxPool2d(2))
                continue
            wide = scaled(expand, width, _WIDTH)
            body.append(Fire(channels, scaled(squeeze, width, _WIDTH), wide, norm))
            channels = 2 * wide
        self.body = nn.Sequential(*body)
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x))).mean(dim=(2, 3))


def _layer(in_channels: int, channels: int, kernel: int, norm: str, bias: bool) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, channels, kernel, 1, kernel // 2, bias=bias)
    return nn.Sequential(conv, *norm_layers(norm, channels, 2))


@family("squeezenet", "images", width=_WIDTH, norms=("batch", "layer", "none"))
def _squeezenet(task: Task, size: Size) -> nn.Module:
    return SqueezeNet(task.shape[0], task.outputs, width=size.width, norm=size.norm or "batch")
