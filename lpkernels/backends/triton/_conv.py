"""The three passes of a convolution: images framed, weights packed, products of both.

docs/contract.md says what they sum in which order; `_conv_tables` where everything lies. Draws are
keyed as there. An output without any tap is +0; so is all of a pass that sums over nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.arithmetic.products import output_size
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends._conv_geometry import geometry_of
from lpkernels.backends._conv_phases import dgrad, dgrad_frame, meets_all, starts
from lpkernels.backends._conv_tables import (
    by_input,
    fprop,
    fprop_frame,
    tables,
    wgrad,
    wgrad_frame,
)
from lpkernels.backends.triton._config import transposes
from lpkernels.backends.triton._layout import Operand, Sums
from lpkernels.backends.triton._products import products
from lpkernels.backends.triton.operands.conv import (
    gradient_frame,
    gradient_operand,
    image_operand,
    sums_of,
)
from lpkernels.backends.triton.operands.images import framed
from lpkernels.backends.triton.operands.pack import pack

Ints = tuple[int, ...]


def _turned(sums: Sums) -> Sums:
    """The same outputs with rows for columns."""
    matrices, m, n, k = sums.sizes
    return sums._replace(
        rows=sums.cols, cols=sums.rows, row_keys=sums.col_keys, col_keys=sums.row_keys,
        row_batch=sums.col_batch, col_batch=sums.row_batch, swapped=not sums.swapped,
        sizes=(matrices, n, m, k),
    )  # fmt: skip


def _run(
    left: Operand,
    right: Operand,
    sums: Sums,
    acc: Ints,
    seed: Tensor | None,
    role: int,
    result: Ints,
) -> None:
    """`products`, with the longer side of the outputs along the longer side of tiles."""
    _, m, n, _ = sums.sizes
    if transposes(m, n):
        left, right, sums = right, left, _turned(sums)
    products(left, right, sums, acc, seed, role, result)


def conv_fprop(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    acc: Ints,
    seed: Tensor | None,
    role: int,
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """`Backend.conv_fprop`."""
    spatial = output_size(x.shape[2:], w.shape[2:], stride, padding, dilation)
    out = torch.empty(x.shape[0], w.shape[0], *spatial, dtype=torch.float32, device=x.device)
    if out.numel() == 0:
        return out
    g = geometry_of(x.shape, w.shape, spatial, stride, padding, dilation, groups)
    matrices = w.reshape(groups, g.out_channels, g.in_channels * g.taps)
    left = pack(matrices, matrices.shape[:1], fused.right)
    image = framed(x, fprop_frame(g), fused.left)
    addend = None if bias is None else bias.contiguous()
    for product in tables(fprop, g, x.device):
        sums = sums_of(product, out, addend, None)
        _run(left, image_operand(product, image), sums, acc, seed, role, fused.result)
    return out


def conv_dgrad(
    grad_output: Tensor,
    w: Tensor,
    input_shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    acc: Ints,
    seed: Tensor | None,
    role: int,
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """`Backend.conv_dgrad`."""
    g = geometry_of(input_shape, w.shape, grad_output.shape[2:], stride, padding, dilation, groups)
    empty = grad_output.numel() == 0
    new = torch.zeros if empty or not meets_all(g) else torch.empty
    out = new(input_shape, dtype=torch.float32, device=w.device)
    if empty or out.numel() == 0:
        return out
    left = pack(by_input(w, g), torch.Size((groups,)), fused.right)
    image = framed(grad_output, dgrad_frame(g), fused.left)
    for product in tables(dgrad, g, w.device):
        sums = sums_of(product, out, None, starts(product, acc[InAccumulator.CHUNK]))
        weights = _at_positions(left, product.positions)
        _run(weights, image_operand(product, image), sums, acc, seed, role, fused.result)
    return out


def _at_positions(left: Operand, positions: Tensor | None) -> Operand:
    """Of all steps those at positions."""
    return left if positions is None else left._replace(steps=positions * left.step)


def conv_wgrad(
    x: Tensor,
    grad_output: Tensor,
    weight_shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    acc: Ints,
    seed: Tensor | None,
    role: int,
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """`Backend.conv_wgrad`."""
    if grad_output.numel() == 0:
        return torch.zeros(weight_shape, dtype=torch.float32, device=x.device)
    out = torch.empty(weight_shape, dtype=torch.float32, device=x.device)
    if out.numel() == 0:
        return out
    g = geometry_of(x.shape, weight_shape, grad_output.shape[2:], stride, padding, dilation, groups)
    gradient = framed(grad_output, gradient_frame(g), fused.right)
    left = gradient_operand(g, gradient.values, gradient.facts, fused.right)
    image = framed(x, wgrad_frame(g), fused.left)
    for product in tables(wgrad, g, x.device):
        sums = sums_of(product, out, None, None)
        _run(left, image_operand(product, image), sums, acc, seed, role, fused.result)
    return out
