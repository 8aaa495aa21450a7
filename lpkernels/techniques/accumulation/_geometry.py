"""The products behind an operation y = op(x, w): their sums, lengths and number of multiply-adds.

Each geometry offers fprop(x, w), dgrad(g, w, x.shape) and wgrad(x, g, w.shape) in torch's own
arithmetic. All three are bilinear, so the same maps count, bound and square the products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lpkernels.arithmetic import NATIVE
from lpkernels.arithmetic.products import Lengths, conv_lengths, matmul_lengths, period
from lpkernels.functional.conv import ConvGeometry
from lpkernels.functional.layer import Sum
from lpkernels.functional.matmul import one_sum

_NATIVE = Sum(NATIVE)
GEMMS = ("fprop", "dgrad", "wgrad")


class Geometry(Protocol):
    def fprop(self, x: Tensor, w: Tensor) -> Tensor: ...

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size) -> Tensor: ...

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size) -> Tensor: ...

    def lengths(self, x: torch.Size, w: torch.Size, y: torch.Size) -> Lengths:
        """Products of the longest sum of fprop, dgrad and wgrad."""
        ...

    def products(self, x: torch.Size, w: torch.Size, y: torch.Size) -> int:
        """Multiply-adds of one pass, the same in all three; taps on padding are none."""
        ...

    def weights(self, w: Tensor) -> Iterator[Tensor]:
        """(sums, K): the weights that meet in one sum of fprop, for every sum with others."""
        ...


@dataclass(frozen=True)
class Matmul:
    """x (..., M, K) @ w (..., K, N); what was broadcast is summed in the gradients."""

    def fprop(self, x: Tensor, w: Tensor) -> Tensor:
        return torch.matmul(x, w)

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size) -> Tensor:
        left, right = one_sum(g, w.mT, shape)
        return torch.matmul(left, right)

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size) -> Tensor:
        left, right = one_sum(x.mT, g, shape)
        return torch.matmul(left, right)

    def lengths(self, x: torch.Size, w: torch.Size, y: torch.Size) -> Lengths:
        return matmul_lengths(x, w, y)

    def products(self, x: torch.Size, w: torch.Size, y: torch.Size) -> int:
        return math.prod(y) * x[-1]

    def weights(self, w: Tensor) -> Iterator[Tensor]:
        yield w.mT.flatten(0, -2)


@dataclass(frozen=True)
class Conv:
    """x (N, C_in, *) conv w (C_out, C_in / groups, *)."""

    layer: ConvGeometry

    def fprop(self, x: Tensor, w: Tensor) -> Tensor:
        return self.layer.fprop(x, w, None, _NATIVE)

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size) -> Tensor:
        return self.layer.dgrad(g, w, shape, _NATIVE)

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size) -> Tensor:
        return self.layer.wgrad(x, g, shape, _NATIVE)

    def lengths(self, x: torch.Size, w: torch.Size, y: torch.Size) -> Lengths:
        return conv_lengths(w, y, self.layer.stride, self.layer.dilation, self.layer.groups)

    def products(self, x: torch.Size, w: torch.Size, y: torch.Size) -> int:
        one_channel = ConvGeometry(self.layer.stride, self.layer.padding, self.layer.dilation, 1)
        image, kernel = (
            torch.ones(1, 1, *size[2:], dtype=torch.float32, device="cpu") for size in (x, w)
        )
        taps = one_channel.fprop(image, kernel, None, _NATIVE)
        return int(taps.sum(dtype=torch.float64)) * x[0] * w[0] * w[1]

    def weights(self, w: Tensor) -> Iterator[Tensor]:
        yield w.flatten(1)


@dataclass(frozen=True)
class ConvTranspose:
    """The dgrad of a convolution as a forward pass: x is its output's gradient, y its image."""

    conv: Conv
    size: tuple[int, ...]

    def fprop(self, x: Tensor, w: Tensor) -> Tensor:
        return self.conv.dgrad(x, w, torch.Size((x.shape[0], *self.size)))

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size) -> Tensor:
        return self.conv.fprop(g, w)

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size) -> Tensor:
        return self.conv.wgrad(g, x, shape)

    def lengths(self, x: torch.Size, w: torch.Size, y: torch.Size) -> Lengths:
        fprop, dgrad, wgrad = self.conv.lengths(y, w, x)
        return dgrad, fprop, wgrad

    def products(self, x: torch.Size, w: torch.Size, y: torch.Size) -> int:
        return self.conv.products(y, w, x)

    def weights(self, w: Tensor) -> Iterator[Tensor]:
        layer = self.conv.layer
        # (C_in, C_out / groups, *) -> (C_out, C_in / groups, *)
        w = w.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1)
        periods = [period(s, d) for s, d in zip(layer.stride, layer.dilation, strict=True)]
        for first in itertools.product(*map(range, periods)):
            met = w
            for dim, (start, step) in enumerate(zip(first, periods, strict=True), start=2):
                met = met.index_select(
                    dim, torch.arange(start, w.shape[dim], step, dtype=torch.int64, device=w.device)
                )
            yield met.flatten(1)


def sizes(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """`dims` ints from an int, or from one or `dims` ints."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values
