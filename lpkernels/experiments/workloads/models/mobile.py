"""MobileNetV2 for small images, and the block it is made of."""

from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Size, Task, family
from lpkernels.experiments.workloads.models.norms import norm_layers
from lpkernels.experiments.workloads.models.scaling import check_width, scaled

_WIDTH = 32
# Expansion, channels, blocks, stride of the first.
_ROWS = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_LAST = 1280


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise 3x3, project 1x1; added to the input where the shape allows.

    Reference: Sandler et al. 2018, arXiv 1801.04381, table 1.
    """

    def __init__(
        self, c_in: int, c_out: int, stride: int, expand: int, norm: str = "batch"
    ) -> None:
        super().__init__()
        width, bias = c_in * expand, norm == "none"
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [nn.Conv2d(c_in, width, 1, bias=bias), *norm_layers(norm, width, 2)]
            layers += [nn.ReLU6()]
        layers += [
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=bias),
            *norm_layers(norm, width, 2),
            nn.ReLU6(),
            nn.Conv2d(width, c_out, 1, bias=bias),
            *norm_layers(norm, c_out, 2),
        ]
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 for images of about 32 x 32.

    Reference: Sandler et al. 2018, arXiv 1801.04381, table 2. Differs: stride 1 in the stem and in
        the second row; no dropout; other widths round to multiples of 4. It is like the MobileNetV2
        of Lee et al. 2023 (arXiv 2301.13464), which is `lee-mobilenetv2` exactly.
    """

    def __init__(
        self, in_channels: int, classes: int, *, width: int = _WIDTH, norm: str = "batch"
    ) -> None:
        super().__init__()
        check_width("MobileNetV2", width)
        bias = norm == "none"
        self.stem = nn.Conv2d(in_channels, width, 3, 1, 1, bias=bias)
        blocks: list[nn.Module] = [*norm_layers(norm, width, 2), nn.ReLU6()]
        channels = width
        for expand, usual, count, stride in _ROWS:
            for block in range(count):
                out = scaled(usual, width, _WIDTH)
                first = stride if block == 0 else 1
                blocks.append(InvertedResidual(channels, out, first, expand, norm))
                channels = out
        last = scaled(_LAST, width, _WIDTH)
        blocks += [nn.Conv2d(channels, last, 1, bias=bias), *norm_layers(norm, last, 2), nn.ReLU6()]
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean(dim=(2, 3)))


@family("mobilenetv2", "images", width=_WIDTH, norms=("batch", "layer", "none"))
def _mobilenetv2(task: Task, size: Size) -> nn.Module:
    return MobileNetV2(task.shape[0], task.outputs, width=size.width, norm=size.norm or "batch")
