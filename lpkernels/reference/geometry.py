"""Which input position meets which output position in a convolution, for every tap of the kernel.

Sizes are per spatial dimension (1 to 3 of them), positions and taps are flat row-major indices.
ABSENT marks a tap that falls on padding or between strides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

ABSENT = -1


def _combine(per_dim: Sequence[Indices], size: Sequence[int]) -> Indices:
    """Flat indices (taps, positions) from the (taps_d, positions_d) indices of each dimension."""
    flat = np.zeros((1, 1), dtype=np.int64)
    for index, n in zip(per_dim, size, strict=True):
        joined = flat[:, None, :, None] * n + index[None, :, None, :]
        absent = (flat[:, None, :, None] == ABSENT) | (index[None, :, None, :] == ABSENT)
        taps, positions = flat.shape[0] * index.shape[0], flat.shape[1] * index.shape[1]
        flat = np.where(absent, ABSENT, joined).reshape(taps, positions)
    return flat


def input_of_output(
    size: Sequence[int],
    output: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Indices:
    """The input position that each tap brings to each output position, (taps, outputs).

    Tap t of output o reads o * stride - padding + t * dilation in each dimension.
    """
    per_dim = []
    for n, o, k, s, p, d in zip(size, output, kernel, stride, padding, dilation, strict=True):
        at = np.arange(o)[None, :] * s - p + np.arange(k)[:, None] * d
        per_dim.append(np.where((at >= 0) & (at < n), at, ABSENT))
    return _combine(per_dim, size)


def output_of_input(
    size: Sequence[int],
    output: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Indices:
    """The output position that takes each input position through each tap, (taps, inputs).

    The inverse of input_of_output: o with o * stride = i + padding - t * dilation.
    """
    per_dim = []
    for n, o, k, s, p, d in zip(size, output, kernel, stride, padding, dilation, strict=True):
        scaled = np.arange(n)[None, :] + p - np.arange(k)[:, None] * d
        at = scaled // s
        per_dim.append(np.where((scaled % s == 0) & (at >= 0) & (at < o), at, ABSENT))
    return _combine(per_dim, output)


def over_batch(index: Indices, batch: int, positions: int) -> Indices:
    """``index`` (taps, rows) for every sample: (taps, batch * rows) into batch * positions."""
    shift = np.arange(batch)[None, :, None] * positions
    moved = np.where(index[:, None, :] == ABSENT, ABSENT, index[:, None, :] + shift)
    return moved.reshape(index.shape[0], batch * index.shape[1])
