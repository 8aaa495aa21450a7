"""The sizes of a convolution, and the layout of the image copies that its products read.

There are always three spatial dimensions, missing ones in front of size 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.arithmetic.products import Convolution

Three = tuple[int, int, int]


class Geometry(NamedTuple):
    """One convolution. The numbers of channels are for one group."""

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    size: Three
    kernel: Three
    output: Three
    stride: Three
    padding: Three
    dilation: Three

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    def ints(self) -> list[int]:
        """The 22 integers of a lpk::ConvShape."""
        return [*self[:4], *(i for three in self[4:] for i in three)]


class Frame(NamedTuple):
    """The layout of an image's copy: channels in front of positions, or channels_last.

    Position p of the image is position p + before of the frame. Lines may be folded: positions of a
    line with the same remainder by ``fold`` lie side by side. Channels may lie in ``parts``, one
    behind the other, each with all images; then a part has ``width`` channels, the last ones zeros.
    """

    size: Three
    before: Three
    fold: int
    channels_last: bool
    parts: int
    width: int

    @property
    def line(self) -> int:
        """The length of a line in memory."""
        return self.fold * -(-self.size[2] // self.fold)

    @property
    def positions(self) -> int:
        return self.size[0] * self.size[1] * self.line

    @property
    def channel_step(self) -> int:
        return 1 if self.channels_last else self.positions

    @property
    def place_step(self) -> int:
        return self.width if self.channels_last else 1

    @property
    def image_step(self) -> int:
        return self.positions * self.width

    def extends(self, size: Three) -> bool:
        """Whether the frame has positions that images of this size do not have."""
        ends = zip(self.size, self.before, size, strict=True)
        return self.line > self.size[2] or any(b > 0 or f > b + n for f, b, n in ends)

    def places(self, z: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """Offsets of the positions of all z, y, x in a channel, row-major.

        Offsets of two positions add up to the offset of their sum if one x is a multiple of fold.
        """
        column = x % self.fold * (self.line // self.fold) + x // self.fold
        return outer_sum(z * (self.size[1] * self.line), y * self.line, column) * self.place_step


def three(values: Sequence[int], missing: int) -> Three:
    z, y, x = [missing] * (3 - len(values)) + list(values)
    return z, y, x


def geometry_of(
    x: Sequence[int], w: Sequence[int], y: Sequence[int], conv: Convolution
) -> Geometry:
    """The geometry for the shapes of x (N, C, *), w (C_out, C / groups, *) and y (N, C_out, *)."""
    stride, padding, dilation, groups = conv
    return Geometry(
        x[0], groups, w[1], w[0] // groups, three(x[2:], 1), three(w[2:], 1), three(y[2:], 1),
        three(stride, 1), three(padding, 0), three(dilation, 1),
    )  # fmt: skip


def outer_sum(*axes: Tensor) -> Tensor:
    """All sums of one element from each of the axes, row-major."""
    total = axes[0]
    for axis in axes[1:]:
        total = (total[:, None] + axis).flatten()
    return total


def count(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, dtype=torch.int64, device=device)


def grid(counts: Sequence[int], steps: Sequence[int], device: torch.device) -> list[Tensor]:
    return [count(n, device) * step for n, step in zip(counts, steps, strict=True)]
