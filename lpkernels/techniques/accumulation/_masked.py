"""Gradients of a product without what its sums lost: as matrices, and for layers as matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import Accumulator
from lpkernels.functional.conv import ConvGeometry
from lpkernels.techniques.accumulation._events import OVERFLOWED, SWAMPED, bits_of

MASKS = {"swamped": SWAMPED, "overflowed": OVERFLOWED}
# Multiply-adds whose masks are held at a time: what passes them fits a cache of 2 MiB.
PIECE = 1 << 18


class Rows(Protocol):
    """A layer as matrices, group by group along the columns: y (R, groups * O) from x
    (R, groups * K), each group's times the same columns of w (K, groups * O)."""

    def rows(self, x: Tensor, w: Tensor) -> Tensor: ...

    def columns(self, w: Tensor) -> Tensor: ...

    def outputs(self, g: Tensor) -> Tensor: ...

    def back(self, dx: Tensor, x: Tensor, w: Tensor) -> Tensor:
        """The gradient of x from that of its rows."""
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
    """A convolution as the same: a row for each position, k over (c_in, kernel)."""

    def __init__(self, geometry: ConvGeometry) -> None:
        self.geometry = geometry

    def rows(self, x: Tensor, w: Tensor) -> Tensor:
        of = self.geometry
        x = F.pad(x, [side for pad in of.padding[::-1] for side in (pad, pad)])
        sizes = zip(w.shape[2:], of.stride, of.dilation, strict=True)
        for dim, (taps, stride, dilation) in enumerate(sizes, start=2):
            x = x.unfold(dim, dilation * (taps - 1) + 1, stride)[..., ::dilation]
        # (N, C, *positions, *kernel)
        x = x.movedim(1, w.dim() - 1)
        return x.flatten(w.dim() - 1).flatten(0, -2)

    def columns(self, w: Tensor) -> Tensor:
        return w.flatten(1).t()

    def outputs(self, g: Tensor) -> Tensor:
        return self.geometry.rows(g, g.shape[1:2])

    def back(self, dx: Tensor, x: Tensor, w: Tensor) -> Tensor:
        with torch.enable_grad():
            image = torch.zeros_like(x, requires_grad=True)
            return torch.autograd.grad(self.rows(image, w), image, dx)[0]


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
        first = group * columns.shape[1] if acc.is_stochastic else 0
        found = _one_group(rows, columns, top, acc, seed, first, bits, recursive)
        d_left.append(found[0])
        d_right.append(found[1])
    return torch.cat(d_left, 1), torch.cat(d_right, 1)


def _one_group(
    left: Tensor,
    right: Tensor,
    g: Tensor,
    acc: Accumulator,
    seed: Tensor | None,
    first: int,
    bits: int,
    recursive: bool,
) -> tuple[Tensor, Tensor]:
    d_left, d_right = torch.zeros_like(left), torch.zeros_like(right)
    numbered = torch.cat([right.new_zeros(len(right), first), right], 1) if first else right
    step = max(1, PIECE // max(1, numbered.numel()))
    for start in range(0, len(left), step):
        part = slice(start, start + step)
        products, chunks = bits_of(left[part], numbered, acc, seed, start)
        products = products[..., first:]
        chunks = None if chunks is None else chunks[..., first:]
        passes = _passes(products, chunks, bits, acc.chunk, recursive)
        passed = passes.float().mul_(g[part].unsqueeze(1))
        d_left[part] = (passed * right).sum(2)
        d_right += passed.mul_(left[part].unsqueeze(2)).sum(0)
    return d_left, d_right


def _passes(
    products: Tensor, chunks: Tensor | None, bits: int, chunk: int | None, recursive: bool
) -> Tensor:
    """1 for the products (R, K, O) that pass a gradient, from the bits of their additions, else 0.

    uint8 throughout: torch converts to and from bool at a tenth of the speed.
    """
    lost = products & bits
    recursive = recursive and bool(bits & OVERFLOWED)
    length = products.shape[1]
    if recursive:
        for start in range(0, length, chunk or length):
            part = slice(start, start + (chunk or length))
            lost[:, part] |= _before(products[:, part] & OVERFLOWED)
    if chunks is not None and chunk is not None:
        outer = chunks & bits
        if recursive:
            outer |= _before(chunks & OVERFLOWED)
        lost |= outer.repeat_interleave(chunk, dim=1)[:, :length]
    return lost.eq_(0)


def _before(over: Tensor) -> Tensor:
    """Whether an overflow came at the step or after it."""
    return over.flip(1).cummax(1).values.flip(1)
