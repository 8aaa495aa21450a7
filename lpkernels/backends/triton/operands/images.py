"""Images copied into frames: rounded, with ABSENT around them, with the facts of their values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.backends._conv_geometry import Frame, three
from lpkernels.backends.planning.triton_tiles import power_of_two
from lpkernels.backends.triton._config import operand_tile
from lpkernels.backends.triton._launch import EXACT, on_device
from lpkernels.backends.triton._layout import ABSENT, PAD
from lpkernels.backends.triton.operands.facts import gather_facts
from lpkernels.backends.triton.operands.matrices import read_rule, rounded_operand

_ABSENT = tl.constexpr(ABSENT)
#: Integers that vary from call to call without another kernel.
SIZES = [
    "images", "channels", "width", "size_z", "size_y", "size_x", "before_z", "before_y", "before_x",
    "frame_z", "frame_y", "folds", "image_step", "channel_step", "step_z", "step_y", "step_x",
]  # fmt: skip


# Numbers of a tuple would be specialised, whatever this list says.
@triton.jit(do_not_specialize=SIZES)
def frame_kernel(
    x_ptr, out_ptr, facts_ptr, images, channels, width, size_z, size_y, size_x, before_z, before_y,
    before_x, frame_z, frame_y, folds, image_step, channel_step, step_z, step_y, step_x, N,
    R: tl.constexpr, FOLD: tl.constexpr, CHANNELS_LAST: tl.constexpr, LARGE: tl.constexpr,
    TC: tl.constexpr, TP: tl.constexpr,
):  # fmt: skip
    """The frame (`Frame`) of an image (images, parts * channels, z, y, x) with these steps: its
    values rounded, ABSENT around them, 0 in channels from ``channels`` to ``width``.

    Lines of the frame have ``folds`` columns for each of FOLD remainders; before_z .. before_x are
    negative where it leaves out the first positions. LARGE: places take 64 bits.
    Grid: one program for TC channels of TP places of one part of one image, places fastest.
    """
    places = tl.cast(frame_z, tl.int64) * frame_y * (folds * FOLD)
    across, down = tl.cdiv(places, TP), tl.cdiv(width, TC)
    tile = tl.cast(tl.program_id(0), tl.int64)
    place = tile % across * TP + tl.arange(0, TP)[None, :]
    channel = tile // across % down * TC + tl.arange(0, TC)[:, None]
    image = tile // across // down
    n, part = image % images, image // images

    at = place if LARGE else tl.cast(place, tl.int32)
    line, column = at // (folds * FOLD), at % (folds * FOLD)
    x = column % folds * FOLD + column // folds - before_x
    y = line % frame_y - before_y
    z = line // frame_y - before_z
    inside = (x >= 0) & (x < size_x) & (y >= 0) & (y < size_y) & (z >= 0) & (z < size_z)
    source = n * image_step + (part * channels + channel) * channel_step
    source += tl.cast(z, tl.int64) * step_z + tl.cast(y, tl.int64) * step_y
    source += tl.cast(x, tl.int64) * step_x
    values = tl.load(x_ptr + source, mask=inside & (channel < channels), other=0.0)
    values = rounded_operand(values, N, R)
    gather_facts(facts_ptr, values)

    absent = tl.cast(tl.full([TC, TP], _ABSENT, tl.int32), tl.float32, bitcast=True)
    values = tl.where(inside | (channel >= channels), values, absent)
    to = place * width + channel if CHANNELS_LAST else channel * places + place
    to += image * (places * width)
    tl.store(out_ptr + to, values, mask=(place < places) & (channel < width))


def framed(
    image: Tensor, frame: Frame, facts: Tensor, quantizer: tuple[int, ...]
) -> tuple[Tensor, bool]:
    """image (N, C, *spatial) float32, any strides, copied into its frame, and whether places around
    it are `ABSENT`; facts: of its operand."""
    images, channels = image.shape[:2]
    size = three(image.shape[2:], 1)
    # Memory behind the last lane may be read; its values go nowhere.
    values = torch.empty(
        images * frame.parts * frame.image_step + PAD, dtype=torch.float32, device=image.device
    )
    rule, numbers = read_rule(quantizer, image.device)
    tc, tp = operand_tile(frame.width, frame.positions)
    tc = min(tc, power_of_two(frame.width))
    parts = images * frame.parts
    programs = parts * triton.cdiv(frame.width, tc) * triton.cdiv(frame.positions, tp)
    if programs > 0:
        with on_device(image):
            frame_kernel[(programs,)](
                image, values, facts, images, channels // frame.parts, frame.width, *size,
                *frame.before, *frame.size[:2], frame.line // frame.fold, *image.stride()[:2],
                *three(image.stride()[2:], 0), numbers, R=rule, FOLD=frame.fold,
                CHANNELS_LAST=frame.channels_last, LARGE=frame.positions >= 2**31 - tp, TC=tc,
                TP=tp, **EXACT,
            )  # fmt: skip
    return values, frame.extends(size)
