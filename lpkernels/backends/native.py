"""Accumulators of order "native" with chunks: torch sums each chunk, a backend rounds the outer
additions.

The k axis of every product is made explicit (columns for convolutions), cut into chunks of
``acc.chunk``, and each chunk is one torch.matmul in float32, whose order of summation is torch's
own. The outer accumulator starts at +0 and receives the chunks in ascending k; these additions, and
the bias, are rounded by the backend, to the bit.

Inside a chunk padding is multiplied as zero: an infinite or NaN weight gives NaN on padding, as it
may in torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lpkernels.arithmetic import accumulator_from_ints
from lpkernels.arithmetic.products import Convolution
from lpkernels.backends import Backend, DrawKey, How, Product, broadcast_shapes
from lpkernels.rng import SITE_BIAS, SITE_OUTER

__all__ = ["multiply"]

# Marks a tap that falls on padding or between strides: the zero behind an image's values.
_ABSENT = -1


class _Adder(NamedTuple):
    """A backend that adds the chunks of a product in the outer format of ``how.acc``."""

    backend: Backend
    how: How

    def product(
        self, a: Tensor, b: Tensor, bias: Tensor | None = None, row: int = 0, col: int = 0
    ) -> Tensor:
        """The chunked sum of a (..., rows, K) times b (..., K, cols), plus bias. Draws are keyed
        from row and col on."""
        chunk = accumulator_from_ints(self.how.acc).chunk_length
        if chunk is None:
            raise ValueError("native sums without chunks are torch's own function, no operator")
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        result = a.new_zeros(*batch, a.shape[-2], b.shape[-1])
        total = result.view(-1, b.shape[-1])
        with torch.no_grad(), torch.autocast(total.device.type, enabled=False):
            for index, start in enumerate(range(0, a.shape[-1], chunk)):
                part = torch.matmul(a[..., start : start + chunk], b[..., start : start + chunk, :])
                key = DrawKey(row, col, SITE_OUTER, index)
                self.backend.accumulate(total, part.reshape(total.shape), self.how, key)
            if bias is not None:
                key = DrawKey(row, col, SITE_BIAS, 0)
                self.backend.accumulate(total, bias.expand(total.shape), self.how, key)
        return result


def multiply(backend: Backend, product: Product, how: How) -> Tensor:
    """As `Backend.multiply`, for order "native" with chunks, whose sums the backend adds."""
    adder = _Adder(backend, how)
    if product.conv is None:
        return adder.product(product.left, product.right, product.bias)
    return _convolve(adder, product, product.conv)


def _convolve(adder: _Adder, product: Product, conv: Convolution) -> Tensor:
    """Group by group the product of gathered values of the left image and of w, or in wgrad of the
    gradient and of these values."""
    right, shape, index = product.right, tuple(product.shape), _taps(product, conv)
    image = F.pad(product.left.movedim(1, 0).flatten(1), (0, 1))
    channels, outputs = len(image) // conv.groups, product.images()[1][0] // conv.groups
    parts = []
    for g in range(conv.groups):
        columns = image.narrow(0, g * channels, channels)[:, index].flatten(0, 1)
        if product.kind == "conv_wgrad":
            rows = right.narrow(1, g * outputs, outputs).movedim(1, 0).flatten(1)
            first = g * len(columns)
            parts.append(adder.product(rows, columns.t(), row=g * outputs, col=first))
            continue
        weights, bias = right.narrow(0, g * outputs, outputs).flatten(2), product.bias
        if product.kind == "conv_fprop":
            weights = weights.flatten(1).t()
        else:
            weights = weights.transpose(1, 2).flatten(0, 1)
        share = None if bias is None else bias.narrow(0, g * outputs, outputs)
        parts.append(adder.product(columns.t(), weights, share, col=g * weights.shape[1]))
    if product.kind == "conv_wgrad":
        return torch.cat(parts).view(shape)
    # A clone has row-major strides, where contiguous() keeps those of dimensions of size 1.
    whole = torch.cat(parts, dim=1).view(shape[0], *shape[2:], shape[1])
    return whole.movedim(-1, 1).clone(memory_format=torch.contiguous_format)


def _taps(product: Product, conv: Convolution) -> Tensor:
    """The place in a channel of the left image, samples one behind the other, that each tap brings
    to each position of the other image: (taps, N * positions)."""
    x, w, y = product.images()
    kind: Any = {"dtype": torch.int64, "device": product.left.device}
    index = torch.arange(x[0], **kind)[None, :]
    for n, out, taps, stride, padding, dilation in zip(x[2:], y[2:], w[2:], *conv[:3], strict=True):
        tap = torch.arange(taps, **kind)[:, None] * dilation
        if product.kind == "conv_dgrad":
            size, gap, place = out, stride, torch.arange(n, **kind) + padding - tap
        else:
            size, gap, place = n, 1, torch.arange(out, **kind) * stride - padding + tap
        between = place % gap != 0
        place //= gap
        outside = between | (place < 0) | (place >= size)
        first, last = index[:, None, :, None], torch.where(outside, _ABSENT, place)[None, :, None]
        joined = torch.where((first < 0) | (last < 0), _ABSENT, first * size + last)
        index = joined.flatten(2).flatten(0, 1)
    return index
