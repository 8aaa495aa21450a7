"""Images copied into frames: rounded, with ABSENT around them, with the facts of their values."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.backends.triton._config import pack_tile, power_of_two
from lpkernels.backends.triton._conv_geometry import Frame, three
from lpkernels.backends.triton._facts import gather_facts, new_facts
from lpkernels.backends.triton._launch import EXACT, on_device
from lpkernels.backends.triton._layout import ABSENT
from lpkernels.backends.triton._operands import read_rule, rounded_operand

_ABSENT = tl.constexpr(ABSENT)


class Strides(NamedTuple):
    """Of the image, in elements."""

    image: int
    channel: int
    z: int
    y: int
    x: int


class Placing(NamedTuple):
    """The sizes and the place of an image (channels, z, y, x) in its frame (parts of width
    channels, lines of folds columns)."""

    images: int
    channels: int
    width: int
    z: int
    y: int
    x: int
    before_z: int
    before_y: int
    before_x: int
    frame_z: int
    frame_y: int
    folds: int


@triton.jit
def _source(x_ptr, P, S, n, part, channel, place, FOLD: tl.constexpr):
    """Pointers to the elements at these places of the frame, and which of them the image has."""
    line = place // (P.folds * FOLD)
    column = place % (P.folds * FOLD)
    x = column % P.folds * FOLD + column // P.folds - P.before_x
    y = line % P.frame_y - P.before_y
    z = line // P.frame_y - P.before_z
    inside = (x >= 0) & (x < P.x) & (y >= 0) & (y < P.y) & (z >= 0) & (z < P.z)
    at = n * S.image + (part * P.channels + channel) * S.channel + z * S.z + y * S.y + x * S.x
    return x_ptr + at, inside


@triton.jit
def frame_kernel(
    x_ptr, out_ptr, facts_ptr, P, S, N,
    R: tl.constexpr, FOLD: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    TC: tl.constexpr, TP: tl.constexpr,
):  # fmt: skip
    """The frame of an image: its rounded values, ABSENT around them, 0 behind its channels.

    Grid: one program for TC channels of TP places of one part of one image, places fastest.
    """
    places = tl.cast(P.frame_z, tl.int64) * P.frame_y * (P.folds * FOLD)
    across, down = tl.cdiv(places, TP), tl.cdiv(P.width, TC)
    tile = tl.cast(tl.program_id(0), tl.int64)
    place = tile % across * TP + tl.arange(0, TP)[None, :]
    channel = tile // across % down * TC + tl.arange(0, TC)[:, None]
    image = tile // across // down
    n, part = image % P.images, image // P.images

    from_ptr, inside = _source(x_ptr, P, S, n, part, channel, place, FOLD)
    there = channel < P.channels
    x = rounded_operand(tl.load(from_ptr, mask=inside & there, other=0.0), N, R)
    gather_facts(facts_ptr, x)
    absent = tl.full([TC, TP], _ABSENT, tl.int32)
    x = tl.where(inside | (channel >= P.channels), x, tl.cast(absent, tl.float32, bitcast=True))
    if CHANNELS_LAST:
        at = place * P.width + channel
    else:
        at = channel * places + place
    to = out_ptr + image * (places * P.width) + at
    tl.store(to, x, mask=(place < places) & (channel < P.width))


class Framed(NamedTuple):
    """What an Operand needs of an image."""

    values: Tensor
    facts: Tensor
    absent: bool


def framed(image: Tensor, frame: Frame, quantizer: tuple[int, ...]) -> Framed:
    """image (N, C, *spatial) float32, any strides, copied into its frame."""
    images, channels = image.shape[:2]
    size = three(image.shape[2:], 1)
    values = torch.empty(
        images * frame.parts * frame.image_step, dtype=torch.float32, device=image.device
    )
    facts, (rule, numbers) = new_facts(image.device), read_rule(quantizer)
    folds = frame.line // frame.fold
    placing = Placing(
        images, channels // frame.parts, frame.width, *size, *frame.before, *frame.size[:2], folds
    )
    strides = Strides(*image.stride()[:2], *three(image.stride()[2:], 0))
    tc, tp = pack_tile(frame.width, frame.positions)
    tc = min(tc, power_of_two(frame.width))
    programs = (
        images * frame.parts * triton.cdiv(frame.width, tc) * triton.cdiv(frame.positions, tp)
    )
    if programs > 0:
        with on_device(image):
            frame_kernel[(programs,)](
                image, values, facts, placing, strides, numbers,
                R=rule, FOLD=frame.fold, CHANNELS_LAST=frame.channels_last, TC=tc, TP=tp, **EXACT,
            )  # fmt: skip
    return Framed(values, facts, frame.extends(size))
