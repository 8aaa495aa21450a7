"""The three passes of a convolution as products of matrices whose left side is gathered from an
image.

    pass    rows (gathered)          columns   k
    fprop   (n, position) of y       c_out     (c_in, tap)        left x,  right w
    dgrad   (n, position) of dx      c_in      (c_out, tap)       left dy, right w
    wgrad   (c_in, tap)              c_out     (n, position) of y left x,  right dy

Positions and taps are row-major over one to three spatial dimensions. A tap on padding or between
strides is absent: it adds nothing, whatever the weight there, but its position counts for chunks
and draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Accumulator
from lpkernels.arithmetic.products import Convolution, output_size
from lpkernels.reference.sums import Present, accumulate_tile, tiles
from lpkernels.reference.values import Float32, Float64, narrow, widen

Sizes = Sequence[int]
Indices = NDArray[np.int64]
# Marks a tap that falls on padding or between strides.
ABSENT = -1


def _combine(per_dim: Sequence[Indices], size: Sequence[int], batch: int) -> Indices:
    """Flat indices (taps, batch * positions) into batch * size from the (taps_d, positions_d)
    indices of each dimension."""
    flat = np.arange(batch)[None, :]
    for index, n in zip(per_dim, size, strict=True):
        joined = flat[:, None, :, None] * n + index[None, :, None, :]
        absent = (flat[:, None, :, None] == ABSENT) | (index[None, :, None, :] == ABSENT)
        taps, positions = flat.shape[0] * index.shape[0], flat.shape[1] * index.shape[1]
        flat = np.where(absent, ABSENT, joined).reshape(taps, positions)
    return flat


def input_of_output(
    size: Sizes, output: Sizes, kernel: Sizes, conv: Convolution, batch: int
) -> Indices:
    """The input position that each tap brings to each output position, (taps, batch * outputs).

    Tap t of output o reads o * stride - padding + t * dilation in each dimension.
    """
    per_dim = []
    for n, o, k, s, p, d in zip(size, output, kernel, *conv[:3], strict=True):
        at = np.arange(o)[None, :] * s - p + np.arange(k)[:, None] * d
        per_dim.append(np.where((at >= 0) & (at < n), at, ABSENT))
    return _combine(per_dim, size, batch)


def output_of_input(
    size: Sizes, output: Sizes, kernel: Sizes, conv: Convolution, batch: int
) -> Indices:
    """The output position that takes each input position through each tap, (taps, batch * inputs).

    The inverse of input_of_output: o with o * stride = i + padding - t * dilation.
    """
    per_dim = []
    for n, o, k, s, p, d in zip(size, output, kernel, *conv[:3], strict=True):
        scaled = np.arange(n)[None, :] + p - np.arange(k)[:, None] * d
        at = scaled // s
        per_dim.append(np.where((scaled % s == 0) & (at >= 0) & (at < o), at, ABSENT))
    return _combine(per_dim, output, batch)


def _channels_first(x: NDArray[np.floating], groups: int) -> NDArray[np.floating]:
    """[N, C, *size] -> [groups, C / groups, N * positions]"""
    moved = np.moveaxis(x, 1, 0)
    return moved.reshape(groups, x.shape[1] // groups, x.shape[0] * math.prod(x.shape[2:]))


def _gather(image: Float32, channel: Indices, index: Indices) -> tuple[Float64, Present | None]:
    """Channels and positions, which broadcast, of an image [groups, channels, positions].

    Returns the values (groups, *index) and which are present (None: all).
    """
    present = index != ABSENT
    if image.shape[2] == 0:
        shape = np.broadcast_shapes(channel.shape, index.shape)
        return np.zeros((image.shape[0], *shape)), present
    # An absent tap reads position 0; its product is never used.
    values = widen(image[:, channel, np.where(present, index, 0)])
    return values, None if present.all() else present


def _image_pass(
    image: Float32,
    index: Indices,
    right: Float64,
    bias: Float32 | None,
    acc: Accumulator,
    seed: int,
) -> Float32:
    """Outputs [groups, rows, cols] of fprop or dgrad.

    image [groups, channels, positions]; index (taps, rows) into positions; right [groups, channels
    * taps, cols].
    """
    groups, length, cols = right.shape
    rows = index.shape[1]
    out = np.empty((groups, rows, cols), dtype=np.float32)
    col = (np.arange(groups)[:, None] * cols + np.arange(cols))[:, None, :]
    addend = None if bias is None else bias.reshape(groups, 1, cols)
    channels = np.arange(image.shape[1])[:, None, None]
    for tile in tiles(groups, rows, cols, length):
        values, present = _gather(image, channels, index[:, tile])
        left = values.reshape(groups, length, tile.stop - tile.start)
        row = np.arange(tile.start, tile.stop)[:, None]
        total = accumulate_tile(left, right, present, acc, seed=seed, row=row, col=col, bias=addend)
        out[:, tile] = narrow(total)
    return out


def _from_rows(out: Float32, batch: int, size: Sizes) -> Float32:
    """[groups, N * positions, C / groups] -> [N, C, *size]"""
    channels = out.shape[0] * out.shape[2]
    moved = out.transpose(0, 2, 1).reshape(channels, batch, *size)
    # A copy has row-major strides, where np.ascontiguousarray keeps those of dimensions of size 1.
    return np.moveaxis(moved, 0, 1).copy()


def conv_fprop(
    x: Float32,
    w: Float32,
    bias: Float32 | None,
    conv: Convolution,
    acc: Accumulator,
    *,
    seed: int = 0,
) -> Float32:
    """y = conv(x, w) + bias.

    Args:
        x: (N, C, *size) float32. w: (C_out, C / groups, *kernel) float32. bias: (C_out,) float32 or
            None.
        conv: of 1 to 3 spatial dimensions.
        acc: any order but "native". seed: already derived; used by stochastic modes only.
    Returns: (N, C_out, *output_size) float32. Draws are keyed ((n, position), c_out, k), k = (c_in,
        tap) in the group.
    """
    size, kernel = x.shape[2:], w.shape[2:]
    spatial = output_size(size, kernel, *conv[:3])
    index = input_of_output(size, spatial, kernel, conv, x.shape[0])
    length = w.shape[1] * math.prod(kernel)
    right = widen(w.reshape(conv.groups, -1, length).transpose(0, 2, 1))
    image = _channels_first(x, conv.groups)
    return _from_rows(_image_pass(image, index, right, bias, acc, seed), x.shape[0], spatial)


def conv_dgrad(
    grad_output: Float32,
    w: Float32,
    input_shape: Sizes,
    conv: Convolution,
    acc: Accumulator,
    *,
    seed: int = 0,
) -> Float32:
    """The gradient of conv_fprop for x, of shape input_shape (N, C, *size).

    Draws are keyed ((n, input position), c_in, k), k = (c_out, tap) in the group; c_in counts over
    all groups.
    """
    size, spatial, kernel = tuple(input_shape[2:]), grad_output.shape[2:], w.shape[2:]
    index = output_of_input(size, spatial, kernel, conv, input_shape[0])
    groups, taps = conv.groups, math.prod(kernel)
    per_group_in, per_group_out = w.shape[1], w.shape[0] // groups
    # [groups, C_out / groups, C / groups, taps] -> [groups, C_out / groups * taps, C / groups]
    right = w.reshape(groups, per_group_out, per_group_in, taps).transpose(0, 1, 3, 2)
    wide = widen(right.reshape(groups, per_group_out * taps, per_group_in))
    image = _channels_first(grad_output, groups)
    return _from_rows(_image_pass(image, index, wide, None, acc, seed), input_shape[0], size)


def conv_wgrad(
    x: Float32,
    grad_output: Float32,
    weight_shape: Sizes,
    conv: Convolution,
    acc: Accumulator,
    *,
    seed: int = 0,
) -> Float32:
    """The gradient of conv_fprop for w, of shape weight_shape (C_out, C / groups, *kernel).

    Draws are keyed (c_out, (c_in, tap), k), k = (n, output position); both channels count over all
    groups.
    """
    size, spatial, kernel = x.shape[2:], grad_output.shape[2:], tuple(weight_shape[2:])
    index = input_of_output(size, spatial, kernel, conv, x.shape[0])
    taps, length = index.shape
    groups = conv.groups
    per_group_in, per_group_out = weight_shape[1], weight_shape[0] // groups
    image = _channels_first(x, groups)
    right = widen(_channels_first(grad_output, groups).transpose(0, 2, 1))
    # x stands on the left here, and its format on the right.
    acc = acc.exchanged()
    group = np.arange(groups)[:, None, None]
    # The roles of row and column are exchanged: c_out, the row of the key, runs along the last
    # dimension here.
    row = group * per_group_out + np.arange(per_group_out)
    out = np.empty((groups, per_group_in * taps, per_group_out), dtype=np.float32)
    for tile in tiles(groups, out.shape[1], per_group_out, length):
        columns = np.arange(tile.start, tile.stop)
        channel, tap = np.divmod(columns, taps)
        values, present = _gather(image, channel, index[tap].T)
        col = group * out.shape[1] + columns[:, None]
        total = accumulate_tile(values, right, present, acc, seed=seed, row=row, col=col, bias=None)
        out[:, tile] = narrow(total)
    return np.ascontiguousarray(out.transpose(0, 2, 1)).reshape(*weight_shape)
