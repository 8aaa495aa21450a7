"""Gradients of a product without the products that its sums lost: for matrices, and for layers in
the form of matrices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import Accumulator
from lpkernels.functional.conv import ConvGeometry
from lpkernels.techniques.accumulation._events import OVERFLOWED, SWAMPED, masked_gradients

MASKS = {"swamped": SWAMPED, "overflowed": OVERFLOWED}


class Rows(Protocol):
    """A layer as matrices, group by group along the columns: y (R, groups * O) from x (R, groups *
    K), where the columns of each group are multiplied with those of the same group in w (K, groups
    * O)."""

    def rows(self, x: Tensor, w: Tensor) -> Tensor: ...

    def columns(self, w: Tensor) -> Tensor: ...

    def outputs(self, g: Tensor) -> Tensor: ...

    def back(self, dx: Tensor, x: Tensor, w: Tensor) -> Tensor:
        """The gradient of x from the gradient of its rows."""
        ...


class LinearRows:
    """A linear layer as one product of rows (R, K) with columns (K, O)."""

    def rows(self, x: Tensor, w: Tensor) -> Tensor:
        return x.flatten(0, -2)

    def columns(self, w: Tensor) -> Tensor:
        return w.t()

    def outputs(self, g: Tensor) -> Tensor:
        return g.flatten(0, -2)

    def back(self, dx: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return dx.reshape(x.shape)


class ConvRows:
    """A convolution as one product: it has a row for each position, and k runs over (c_in,
    kernel)."""

    def __init__(self, geometry: ConvGeometry) -> None:
        self.geometry = geometry

    def rows(self, x: Tensor, w: Tensor) -> Tensor:
        sides = [side for pad in self.geometry.padding[::-1] for side in (pad, pad)]
        x = F.pad(x, sides).transpose(0, 1)
        taps = list(self._taps(x.shape[2:], w.shape[2:]))
        # (C, taps, N, *positions): a copy for each tap.
        result = torch.stack([x[(slice(None), slice(None), *of_tap)] for of_tap in taps], 1)
        return result.flatten(2).flatten(0, 1).t()

    def _taps(self, image: Sequence[int], kernel: Sequence[int]) -> Iterator[tuple[slice, ...]]:
        """For each tap of the kernel, the elements of a padded image that it meets."""
        of = self.geometry
        along = [
            [slice(i * d, i * d + (n - 1 - d * (k - 1)) // s * s + 1, s) for i in range(k)]
            for n, k, s, d in zip(image, kernel, of.stride, of.dilation, strict=True)
        ]
        return itertools.product(*along)

    def columns(self, w: Tensor) -> Tensor:
        return w.flatten(1).t()

    def outputs(self, g: Tensor) -> Tensor:
        return self.geometry.rows(g, g.shape[1:2])

    def back(self, dx: Tensor, x: Tensor, w: Tensor) -> Tensor:
        padding, sizes = self.geometry.padding, x.shape[2:]
        padded = [n + 2 * pad for n, pad in zip(sizes, padding, strict=True)]
        image = x.new_zeros(*x.shape[:2], *padded)
        taps = list(self._taps(padded, w.shape[2:]))
        positions = image[(slice(None), slice(None), *taps[0])].shape[2:] if taps else ()
        # (N, *positions, C, taps) -> (taps, N, C, *positions)
        parts = dx.reshape(x.shape[0], *positions, x.shape[1], len(taps)).movedim((-1, -2), (0, 2))
        for of_tap, part in zip(taps, parts, strict=True):
            image[(slice(None), slice(None), *of_tap)] += part
        inside = [slice(pad, pad + n) for n, pad in zip(sizes, padding, strict=True)]
        return image[(slice(None), slice(None), *inside)]


def masked_products(
    left: Tensor,
    right: Tensor,
    g: Tensor,
    acc: Accumulator,
    seed: Tensor | None,
    masks: Sequence[str],
    recursive: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of left (R, groups * K) and right (K, groups * O) by g (R, groups * O), from
    the products that none of the masks takes out, in float32 sums.
    """
    groups = max(1, left.shape[1] // max(1, len(right)))
    bits = sum(MASKS[name] for name in masks)
    d_left, d_right = [], []
    parts = zip(*(x.chunk(groups, 1) for x in (left, right, g)), strict=True)
    for group, (rows, columns, top) in enumerate(parts):
        # Draws are keyed by the column among those of all groups.
        found = masked_gradients(
            rows, columns, top, acc, seed,
            first_col=group * columns.shape[1], bits=bits, recursive=recursive,
        )  # fmt: skip
        d_left.append(found[0])
        d_right.append(found[1])
    if groups == 1:
        return d_left[0], d_right[0]
    return torch.cat(d_left, 1), torch.cat(d_right, 1)
