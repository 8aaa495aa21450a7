"""A network from images to images of the same shape."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from lpkernels.experiments.workloads.models.family import Task, family


@family("unet", "denoising", depth=3, width=8)
class UNet(nn.Module):
    """x + net(x): `depth` levels of widths w, 2w, 4w, ..., each of half the resolution before it.

    A level is two 3x3 convolutions with ReLU. On the way down 2x2 max pooling leads to the next
    level; on the way up an image is doubled (nearest), put beside the level's own output of the way
    down, and goes through two more convolutions, to the level's width. A 1x1 convolution makes the
    channels of x; its weight and bias are zero at first, so that the network begins as the
    identity. There is no norm.

    The sides of the images are multiples of 2^(depth - 1).

    Raises: ValueError: other sides.

    Reference: Ronneberger et al. 2015, arXiv 1505.04597, figure 1. Differs: padded convolutions,
        nearest upsampling, and the residual, as Zhang et al. 2017 (arXiv 1608.03981) learn noise.
    """

    def __init__(self, task: Task, depth: int, width: int, norm: str) -> None:
        super().__init__()
        channels, *sides = task.shape
        if any(side % 2 ** (depth - 1) for side in sides):
            raise ValueError(
                f"unet: 2^(depth - 1) must divide the sides {' x '.join(map(str, sides))}, got "
                f"depth {depth}"
            )
        widths = [width << level for level in range(depth)]
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(_level(above, below) for above, below in pairs)
        self.up = nn.ModuleList(_level(above + below, above) for above, below in pairs)
        self.head = nn.Conv2d(width, channels, 1)
        nn.init.zeros_(self.head.weight)
        assert self.head.bias is not None
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(torch.relu(self.stem(x))))
        levels = []
        for level in self.down:
            levels.append(y)
            y = level(max_pool2d(y, 2))
        for level, beside in zip(reversed(self.up), reversed(levels), strict=True):
            y = level(torch.cat([interpolate(y, scale_factor=2.0), beside], dim=1))
        return x + self.head(y)


def _level(in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
    )
