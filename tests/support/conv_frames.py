"""Convolutions whose phases differ, and images as backends lay them out for a convolution."""

from typing import Any

import numpy as np

from tests.cases import CONV_CASES, ConvCase

#: csrc/cuda/product/sums.h has the same value.
ABSENT = 0x7FC0DEAD

#: Convolutions whose phases differ in their taps, reach no output or have no taps.
_PHASES: dict[str, ConvCase] = {
    "stride_beyond_kernel": ConvCase((2, 3, 9, 8), (5, 3, 1, 2), (2, 3), (0, 1), (1, 1)),
    "stride_4_dilation_2": ConvCase((1, 2, 11, 13), (3, 2, 3, 3), (4, 4), (3, 2), (2, 2)),
    "stride_3_dilation_2": ConvCase((1, 2, 11, 10), (3, 2, 3, 4), (3, 2), (3, 2), (2, 3)),
    "stride_beyond_image": ConvCase((1, 2, 3, 4), (3, 2, 3, 3), (5, 7), (1, 1), (1, 1)),
    "padding_beyond_stride": ConvCase((1, 2, 3, 3), (3, 2, 2, 2), (2, 1), (5, 4), (1, 1)),
    "many_channels": ConvCase((2, 2, 3), (34, 1, 2), (1,), (0,), (1,), 2),
    "groups_stride": ConvCase((2, 6, 5, 6), (9, 2, 2, 3), (2, 2), (1, 0), (1, 1), 3),
}
ALL_CASES = CONV_CASES | _PHASES


def in_frame(image: np.ndarray, frame: Any) -> np.ndarray:
    """An image as backends lay it out, element by element."""
    channels, step = image.shape[1] // frame.parts, frame.line // frame.fold
    out = np.full(image.shape[0] * frame.parts * frame.image_step, ABSENT, np.int32)
    volume = image.reshape(*image.shape[:2], *(1,) * (5 - image.ndim), *image.shape[2:])
    for (n, c, *at), value in np.ndenumerate(volume):
        z, y, x = (a + b for a, b in zip(at, frame.before, strict=True))
        if not all(0 <= a < size for a, size in zip((z, y, x), frame.size, strict=True)):
            continue
        place = (z * frame.size[1] + y) * frame.line + x % frame.fold * step + x // frame.fold
        part = (c // channels * image.shape[0] + n) * frame.image_step
        to = part + c % channels * frame.channel_step + place * frame.place_step
        assert out[to] == ABSENT
        out[to] = np.float32(value).view(np.int32)
    return out
