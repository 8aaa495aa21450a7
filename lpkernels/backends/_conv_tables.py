"""The three passes of a convolution as batches of gather products, as tables of offsets and keys.

    pass    rows (channels)   columns                      k
    fprop   c_out             (n, position) of y           (c_in, tap)
    dgrad   c_in              (n, position) of x, a phase  (c_out, tap of the phase)
    wgrad   c_out             (tap, c_in)                  (n, position) of y

One matrix for each group. The columns read an image that was copied into a `Frame` once, with
ABSENT wherever a tap can reach outside of it, so that an element lies at lane + step and no bounds
are tested. dgrad of a strided convolution is one product for each phase of x. A phase holds the
positions with the same remainders by the strides: all of them meet the same taps (input position i
and tap t meet output o where o * stride = i + padding - t * dilation). From one position of a phase
to the next, each tap brings the next output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.arithmetic.products import period
from lpkernels.backends._conv_geometry import (
    Frame,
    Geometry,
    Three,
    count,
    grid,
    outer_sum,
    three,
)
from lpkernels.backends._tables import cached_by_stream


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


class Meetings(NamedTuple):
    """One phase of one dimension: position phase + stride * j meets output first - i * output_step
    + j through tap + i * tap_step, for i < taps and j < positions."""

    phase: int
    positions: int
    taps: int
    tap: int
    tap_step: int
    first: int
    output_step: int

    @property
    def reach(self) -> tuple[int, int]:
        """The range of the outputs that are met; its end lies behind the last."""
        return self.first - (self.taps - 1) * self.output_step, self.first + self.positions


def _meetings(g: Geometry, dim: int, phase: int) -> Meetings:
    stride, dilation = g.stride[dim], g.dilation[dim]
    positions = -(-(g.size[dim] - phase) // stride)
    tap_step = period(stride, dilation)
    start = phase + g.padding[dim]
    taps = [t for t in range(g.kernel[dim]) if (start - t * dilation) % stride == 0]
    tap = taps[0] if taps else 0
    first, output_step = (start - tap * dilation) // stride, tap_step * dilation // stride
    return Meetings(phase, positions, len(taps), tap, tap_step, first, output_step)


def met_phases(g: Geometry) -> list[list[Meetings]]:
    """The phases of each dimension that have positions and taps."""
    phases = (range(min(s, n)) for s, n in zip(g.stride, g.size, strict=True))
    meetings = ([_meetings(g, dim, p) for p in ps] for dim, ps in enumerate(phases))
    return [[m for m in ms if m.taps > 0] for ms in meetings]


def dgrad_frame(g: Geometry) -> Frame:
    """The frame of dy: it holds everything that the taps of any phase reach."""
    reaches = [[m.reach for m in phases] or [(0, 1)] for phases in met_phases(g)]
    before = [max(-first for first, _ in reach) for reach in reaches]
    last = [max(end for _, end in reach) for reach in reaches]
    size = [end + b for end, b in zip(last, before, strict=True)]
    return Frame(three(size, 1), three(before, 0), 1, False, 1, g.groups * g.out_channels)


def dgrad(g: Geometry, device: torch.device) -> list[Tables]:
    """A product for every phase that any tap meets; the positions of the others have no taps."""
    return [_phase(g, meetings, device) for meetings in itertools.product(*met_phases(g))]


def meets_all(g: Geometry) -> bool:
    """Whether every position of x has a tap."""
    counts = zip(met_phases(g), g.stride, g.size, strict=True)
    return all(len(phases) == min(s, n) for phases, s, n in counts)


def _phase(g: Geometry, meetings: tuple[Meetings, ...], device: torch.device) -> Tables:
    frame = dgrad_frame(g)
    volume = math.prod(g.size)
    counts = [m.positions for m in meetings]
    inside = _row_major([m.phase for m in meetings], counts, g.stride, g.size, device)
    tap = _row_major(
        [m.tap for m in meetings], [m.taps for m in meetings],
        [m.tap_step for m in meetings], g.kernel, device,
    )  # fmt: skip
    outputs = [
        m.first + b - count(m.taps, device) * m.output_step
        for m, b in zip(meetings, frame.before, strict=True)
    ]
    group, images = count(g.groups, device), count(g.batch, device)
    channels_out, channels_in = count(g.out_channels, device), count(g.in_channels, device)
    positions = outer_sum(channels_out * g.taps, tap)
    return Tables(
        batch=group * (g.out_channels * frame.channel_step),
        lanes=outer_sum(images * frame.image_step, frame.places(*grid(counts, (1, 1, 1), device))),
        steps=outer_sum(channels_out * frame.channel_step, frame.places(*outputs)),
        out_batch=group * (g.in_channels * volume),
        rows=channels_in * volume,
        cols=outer_sum(images * (g.groups * g.in_channels * volume), inside),
        row_keys=channels_in,
        col_keys=outer_sum(images * volume, inside),
        row_batch=group * g.in_channels,
        col_batch=group * 0,
        swapped=True,
        positions=None if len(tap) == g.taps else positions,
        length=g.out_channels * g.taps,
    )


def _row_major(
    first: Sequence[int],
    counts: Sequence[int],
    steps: Sequence[int],
    size: Sequence[int],
    device: torch.device,
) -> Tensor:
    """Flat indices into size of the positions first + i * step of each dimension."""
    lines = (size[1] * size[2], size[2], 1)
    axes = [
        (count(n, device) * step + at) * line
        for at, n, step, line in zip(first, counts, steps, lines, strict=True)
    ]
    return outer_sum(*axes)


def starts(product: Tables, chunk: int) -> Tensor | None:
    """`Sums.starts`: the first step of every chunk, where steps leave positions out."""
    if product.positions is None or chunk == 0:
        return None
    ends = count(-(-product.length // chunk) + 1, product.positions.device) * chunk
    return torch.searchsorted(product.positions, ends)


def by_input(w: Tensor, g: Geometry) -> Tensor:
    """w as (groups, C / groups, C_out / groups * taps), which makes dgrad's rows."""
    split = w.reshape(g.groups, g.out_channels, g.in_channels, g.taps)
    return split.transpose(1, 2).reshape(g.groups, g.in_channels, g.out_channels * g.taps)


@cached_by_stream
def _cached_tables(build: Builder, g: Geometry, device: torch.device) -> list[Tables]:
    return build(g, device)


#: Larger tables are built anew: their products take far longer, and a cache would fill the memory.
CACHED_COLUMNS = 1 << 20


def tables(build: Builder, g: Geometry, device: torch.device) -> list[Tables]:
    """build(g, device), cached for the next call; build is `fprop`, `dgrad` or `wgrad`."""
    large = g.batch * max(math.prod(g.size), math.prod(g.output)) > CACHED_COLUMNS
    return build(g, device) if large else _cached_tables(build, g, device)
