"""The tables of dgrad: one product for each phase of x.

Input position i and tap t meet output o where o * stride = i + padding - t * dilation. The phase of
a position, its remainder by the stride, decides which taps meet it. From one position of a phase to
the next, each tap brings the next output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.arithmetic.products import period
from lpkernels.backends._conv_geometry import (
    Frame,
    Geometry,
    count,
    grid,
    outer_sum,
    three,
)
from lpkernels.backends._conv_tables import Tables


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
