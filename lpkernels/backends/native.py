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

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lpkernels.arithmetic import accumulator_from_ints
from lpkernels.arithmetic.products import output_size
from lpkernels.backends import Backend, DrawKey, How, Product, broadcast_shapes
from lpkernels.rng import SITE_BIAS, SITE_OUTER

__all__ = ["multiply"]


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
    return _PRODUCTS[product.kind](_Adder(backend, how), product)


def _matmul(adder: _Adder, product: Product) -> Tensor:
    return adder.product(product.left, product.right, product.bias)


def _fprop(adder: _Adder, product: Product) -> Tensor:
    x, w, conv, bias = product.left, product.right, product.conv, product.bias
    assert conv is not None
    kernel = list(w.shape[2:])
    padded = F.pad(x, _pairs(conv.padding, conv.padding))
    windows = _windows(padded, kernel, conv.stride, conv.dilation)
    c_in, c_out = w.shape[1], w.shape[0] // conv.groups
    parts = []
    for g in range(conv.groups):
        columns = _columns(windows.narrow(1, g * c_in, c_in), len(kernel))
        weights = w.narrow(0, g * c_out, c_out).reshape(c_out, -1).t()
        share = None if bias is None else bias.narrow(0, g * c_out, c_out)
        parts.append(adder.product(columns, weights, share, col=g * c_out))
    return _channels_first(parts, x.shape[0], windows.shape[2 : 2 + len(kernel)])


def _dgrad(adder: _Adder, product: Product) -> Tensor:
    gradient, w, shape, conv = product[1:5]
    assert conv is not None
    kernel = list(w.shape[2:])
    stride, padding, dilation, groups = conv
    spread = _spread(gradient, stride)
    # Input position p meets tap t at p + padding - t * dilation of the spread gradient.
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    sizes = zip(shape[2:], padding, spread.shape[2:], strict=True)
    after = [n + p - size for n, p, size in sizes]
    windows = _windows(F.pad(spread, _pairs(before, after)), kernel, [1] * len(kernel), dilation)
    c_in, c_out, taps = w.shape[1], w.shape[0] // groups, tuple(range(-len(kernel), 0))
    parts = []
    for g in range(groups):
        columns = _columns(windows.narrow(1, g * c_out, c_out).flip(taps), len(kernel))
        weights = w.narrow(0, g * c_out, c_out).transpose(0, 1).reshape(c_in, -1).t()
        parts.append(adder.product(columns, weights, col=g * c_in))
    return _channels_first(parts, shape[0], torch.Size(shape[2:]))


def _wgrad(adder: _Adder, product: Product) -> Tensor:
    x, gradient, shape, conv = product[1:5]
    assert conv is not None
    kernel = list(shape[2:])
    padded = F.pad(x, _pairs(conv.padding, conv.padding))
    windows = _windows(padded, kernel, conv.stride, conv.dilation, gradient.shape[2:])
    c_in, c_out = shape[1], shape[0] // conv.groups
    rows = gradient.movedim(1, 0).reshape(shape[0], -1)
    parts = []
    for g in range(conv.groups):
        columns = _columns(windows.narrow(1, g * c_in, c_in), len(kernel))
        share = rows.narrow(0, g * c_out, c_out)
        parts.append(adder.product(share, columns, row=g * c_out, col=g * columns.shape[1]))
    return torch.cat(parts).view(tuple(shape))


_PRODUCTS = {"matmul": _matmul, "conv_fprop": _fprop, "conv_dgrad": _dgrad, "conv_wgrad": _wgrad}


def _windows(
    x: Tensor,
    kernel: list[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    count: torch.Size | None = None,
) -> Tensor:
    """The windows of x (N, C, *spatial) as a view (N, C, *positions, *taps)."""
    if count is None:
        sizes = (x.shape[2:], kernel, stride, [0] * len(kernel), dilation)
        count = torch.Size(output_size(*sizes))
    steps = x.stride()[2:]
    shape = (*x.shape[:2], *count, *kernel)
    strides = [step * s for step, s in zip(steps, stride, strict=True)]
    strides += [step * d for step, d in zip(steps, dilation, strict=True)]
    return x.as_strided(shape, (*x.stride()[:2], *strides), x.storage_offset())


def _columns(windows: Tensor, spatial: int) -> Tensor:
    """(N, C, *positions, *taps) as the matrix of rows (n, *positions) and columns (c, *taps)."""
    length = windows.shape[1] * math.prod(windows.shape[2 + spatial :])
    rows = windows.shape[0] * math.prod(windows.shape[2 : 2 + spatial])
    return windows.movedim(1, 1 + spatial).reshape(rows, length)


def _spread(grad_output: Tensor, stride: Sequence[int]) -> Tensor:
    """grad_output with stride - 1 zeros between its elements along each spatial axis."""
    sizes = [(n - 1) * s + 1 for n, s in zip(grad_output.shape[2:], stride, strict=True)]
    result = grad_output.new_zeros((*grad_output.shape[:2], *sizes))
    view = result
    for dim, s in enumerate(stride, start=2):
        view = view[(slice(None),) * dim + (slice(None, None, s),)]
    view.copy_(grad_output)
    return result


def _channels_first(parts: list[Tensor], n: int, spatial: torch.Size) -> Tensor:
    """The matrices ((n, *spatial), channels of one group) as one contiguous (N, C, *spatial).

    A clone has row-major strides, where contiguous() keeps those of dimensions of size 1.
    """
    channels = sum(part.shape[1] for part in parts)
    whole = torch.cat(parts, dim=1).view(n, *spatial, channels)
    return whole.movedim(-1, 1).clone(memory_format=torch.contiguous_format)


def _pairs(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """F.pad's argument, which starts at the last axis."""
    return [amount for pair in reversed(list(zip(before, after, strict=True))) for amount in pair]
