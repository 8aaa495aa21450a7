"""The three passes of a convolution as batches of gather products, as tables of offsets and keys.

    pass    rows (channels)   columns                      k
    fprop   c_out             (n, position) of y           (c_in, tap)
    dgrad   c_in              (n, position) of x, a phase  (c_out, tap of the phase)
    wgrad   c_out             (tap, c_in)                  (n, position) of y

One matrix for each group. The columns read an image that was copied into a `Frame` once, with
ABSENT wherever a tap can reach outside of it, so that an element lies at lane + step and no bounds
are tested. dgrad of a strided convolution is one product for each phase of x. A phase holds the
positions with the same remainders by the strides: all of them meet the same taps, and neighbours in
a phase read neighbours of dy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.backends._conv_geometry import Frame, Geometry, Three, count, grid, outer_sum
from lpkernels.backends._tables import kept


class Tables(NamedTuple):
    """One batch of matrix products whose columns are gathered from a framed image.

    Element (column j, step k) of matrix g is ``image[batch[g] + lanes[j] + steps[k]]``, output
    (row i, column j) is ``out[out_batch[g] + rows[i] + cols[j]]``. Of its draws' two keys,
    ``row_batch[g] + row_keys[i]`` and ``col_batch[g] + col_keys[j]``, the first is the row and the
    second the column; ``swapped`` exchanges them. All tensors are int64, on the device, offsets in
    elements.
    """

    batch: Tensor
    lanes: Tensor
    steps: Tensor
    out_batch: Tensor
    rows: Tensor
    cols: Tensor
    row_keys: Tensor
    col_keys: Tensor
    row_batch: Tensor
    col_batch: Tensor
    swapped: bool
    #: The position of every step, where only some of ``length`` positions have a step.
    positions: Tensor | None
    length: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return len(self.batch), len(self.rows), len(self.cols), len(self.steps)


Builder = Callable[[Geometry, torch.device], list[Tables]]


def _reach(g: Geometry) -> Three:
    """How far the windows of all outputs reach."""
    z, y, x = (
        (o - 1) * s + d * (k - 1) + 1
        for o, s, d, k in zip(g.output, g.stride, g.dilation, g.kernel, strict=True)
    )
    return z, y, x


def fprop_frame(g: Geometry) -> Frame:
    """The frame of x in fprop: lanes are positions of y, folded so that neighbours of a line lie
    side by side."""
    return Frame(_reach(g), g.padding, g.stride[2], False, 1, g.groups * g.in_channels)


def fprop(g: Geometry, device: torch.device) -> list[Tables]:
    frame, volume = fprop_frame(g), math.prod(g.output)
    places = frame.places(*grid(g.output, g.stride, device))
    taps = frame.places(*grid(g.kernel, g.dilation, device))
    group, images = count(g.groups, device), count(g.batch, device)
    channels_out, channels_in = count(g.out_channels, device), count(g.in_channels, device)
    product = Tables(
        batch=group * (g.in_channels * frame.channel_step),
        lanes=outer_sum(images * frame.image_step, places),
        steps=outer_sum(channels_in * frame.channel_step, taps),
        out_batch=group * (g.out_channels * volume),
        rows=channels_out * volume,
        cols=outer_sum(images * (g.groups * g.out_channels * volume), count(volume, device)),
        row_keys=channels_out,
        col_keys=count(g.batch * volume, device),
        row_batch=group * g.out_channels,
        col_batch=group * 0,
        swapped=True,
        positions=None,
        length=g.in_channels * g.taps,
    )
    return [product]


def wgrad_frame(g: Geometry) -> Frame:
    """The frame of x in wgrad: lanes are taps and channels."""
    return Frame(_reach(g), g.padding, 1, True, 1, g.groups * g.in_channels)


def gradient_frame(g: Geometry) -> Frame:
    """The frame of dy, the left operand of wgrad: lanes are channels, steps are positions."""
    return Frame(g.output, (0, 0, 0), 1, True, 1, g.groups * g.out_channels)


def wgrad(g: Geometry, device: torch.device) -> list[Tables]:
    frame = wgrad_frame(g)
    places = frame.places(*grid(g.output, g.stride, device))
    taps = frame.places(*grid(g.kernel, g.dilation, device))
    group, images = count(g.groups, device), count(g.batch, device)
    channels_out, channels_in = count(g.out_channels, device), count(g.in_channels, device)
    # Lanes are ordered (tap, c_in), the columns of w (c_in, tap).
    columns = outer_sum(count(g.taps, device), channels_in * g.taps)
    product = Tables(
        batch=group * g.in_channels,
        lanes=outer_sum(taps, channels_in),
        steps=outer_sum(images * frame.image_step, places),
        out_batch=group * (g.out_channels * g.in_channels * g.taps),
        rows=channels_out * (g.in_channels * g.taps),
        cols=columns,
        row_keys=channels_out,
        col_keys=columns,
        row_batch=group * g.out_channels,
        col_batch=group * (g.in_channels * g.taps),
        swapped=False,
        positions=None,
        length=g.batch * math.prod(g.output),
    )
    return [product]


def by_input(w: Tensor, g: Geometry) -> Tensor:
    """w as (groups, C / groups, C_out / groups * taps), which makes dgrad's rows."""
    split = w.reshape(g.groups, g.out_channels, g.in_channels, g.taps)
    return split.transpose(1, 2).reshape(g.groups, g.in_channels, g.out_channels * g.taps)


@kept
def _kept_tables(build: Builder, g: Geometry, device: torch.device) -> list[Tables]:
    return build(g, device)


#: Larger tables are made anew: their products take far longer, and kept they would fill the memory.
KEPT_COLUMNS = 1 << 20


def tables(build: Builder, g: Geometry, device: torch.device) -> list[Tables]:
    """build(g, device), kept for the next call; build is `fprop`, `wgrad` or
    `_conv_phases.dgrad`."""
    large = g.batch * max(math.prod(g.size), math.prod(g.output)) > KEPT_COLUMNS
    return build(g, device) if large else _kept_tables(build, g, device)
