"""The three passes of a convolution: images framed, weights packed, products of both.

docs/contract.md says what they sum in which order; `_conv_tables` where everything lies. An output
without any tap is +0; so is all of a pass that sums over nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.arithmetic.products import output_size
from lpkernels.backends import Fused
from lpkernels.backends._conv_geometry import Frame, geometry_of, three
from lpkernels.backends._conv_phases import dgrad, dgrad_frame, meets_all, starts
from lpkernels.backends._conv_tables import (
    Product,
    by_input,
    fprop,
    fprop_frame,
    gradient_frame,
    tables,
    wgrad,
    wgrad_frame,
)
from lpkernels.backends.cuda._launch import module, on_device, stream
from lpkernels.backends.cuda._products import (
    Line,
    Operand,
    Sums,
    every,
    multiply,
    new_facts,
    pack_matrices,
)

Ints = tuple[int, ...]


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
    fused: Fused,
) -> Tensor:
    """`Backend.conv_fprop`."""
    spatial = output_size(x.shape[2:], w.shape[2:], stride, padding, dilation)
    out = torch.empty(x.shape[0], w.shape[0], *spatial, dtype=torch.float32, device=x.device)
    if out.numel() == 0:
        return out
    g = geometry_of(x.shape, w.shape, spatial, stride, padding, dilation, groups)
    addend = None if bias is None else bias.contiguous()
    with on_device(x):
        facts = new_facts(x.device)
        image = framed(x, fprop_frame(g), facts[0], fused.left)
        matrices = w.reshape(groups, g.out_channels, g.in_channels * g.taps)
        weights = pack_matrices(matrices, facts[1], fused.right)
        for product in tables(fprop, g, x.device):
            sums = _sums(product, out, addend, None)
            multiply(_gathered(product, image), weights, sums, acc, fused.result, seed, role)
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
    fused: Fused,
) -> Tensor:
    """`Backend.conv_dgrad`."""
    g = geometry_of(input_shape, w.shape, grad_output.shape[2:], stride, padding, dilation, groups)
    empty = grad_output.numel() == 0
    new = torch.zeros if empty or not meets_all(g) else torch.empty
    out = new(input_shape, dtype=torch.float32, device=w.device)
    if empty or out.numel() == 0:
        return out
    with on_device(w):
        facts = new_facts(w.device)
        image = framed(grad_output, dgrad_frame(g), facts[0], fused.left)
        weights = pack_matrices(by_input(w, g), facts[1], fused.right)
        for product in tables(dgrad, g, w.device):
            sums = _sums(product, out, None, starts(product, acc[InAccumulator.CHUNK]))
            right = _at_positions(weights, product.positions)
            multiply(_gathered(product, image), right, sums, acc, fused.result, seed, role)
    return out


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
    fused: Fused,
) -> Tensor:
    """`Backend.conv_wgrad`."""
    if grad_output.numel() == 0:
        return torch.zeros(weight_shape, dtype=torch.float32, device=x.device)
    out = torch.empty(weight_shape, dtype=torch.float32, device=x.device)
    if out.numel() == 0:
        return out
    g = geometry_of(x.shape, weight_shape, grad_output.shape[2:], stride, padding, dilation, groups)
    with on_device(x):
        facts = new_facts(x.device)
        frame = gradient_frame(g)
        gradient = framed(grad_output, frame, facts[0], fused.right)._replace(
            batch=every(g.out_channels), lanes=every(1), steps=every(frame.place_step)
        )
        image = framed(x, wgrad_frame(g), facts[1], fused.left)
        for product in tables(wgrad, g, x.device):
            sums = _sums(product, out, None, None)
            multiply(gradient, _gathered(product, image), sums, acc, fused.result, seed, role)
    return out


def framed(image: Tensor, frame: Frame, facts: Tensor, quantizer: Ints) -> Operand:
    """image (N, C, *spatial) float32, any strides, copied into its frame: where, lines must say."""
    size = three(image.shape[2:], 1)
    values = torch.empty(
        image.shape[0] * frame.image_step, dtype=torch.float32, device=image.device
    )
    run = frame.line // frame.fold
    if values.numel():
        module().cuda_frame(
            source=image.data_ptr(),
            sizes=[*image.shape[:2], *size, *frame.before, *frame.size[:2], frame.fold, run],
            strides=[*image.stride()[:2], *three(image.stride()[2:], 0)],
            channels_last=frame.channels_last,
            to=values.data_ptr(),
            facts=facts.data_ptr(),
            quantizer=list(quantizer),
            stream=stream(image),
        )
    return Operand(values, facts, frame.extends(size), every(0), every(0), every(0))


def _table(offsets: Tensor) -> Line:
    return Line(offsets, 0)


def _gathered(product: Product, image: Operand) -> Operand:
    """The product's columns out of a framed image."""
    return image._replace(
        batch=_table(product.batch), lanes=_table(product.lanes), steps=_table(product.steps)
    )


def _at_positions(weights: Operand, positions: Tensor | None) -> Operand:
    """Of all steps those at positions."""
    if positions is None:
        return weights
    return weights._replace(steps=_table(positions * weights.steps.step))


def _sums(product: Product, out: Tensor, bias: Tensor | None, starts: Tensor | None) -> Sums:
    """Where the outputs of a product lie; its rows are the left operand's but where swapped."""
    p = product
    matrices, m, n, k = p.sizes
    rows = (_table(p.rows), _table(p.row_batch), _table(p.row_keys))
    cols = (_table(p.cols), _table(p.col_batch), _table(p.col_keys))
    if p.swapped:
        rows, cols, m, n = cols, rows, n, m
    return Sums(
        out=out,
        batch=_table(p.out_batch),
        rows=rows[0],
        cols=cols[0],
        row_batch=rows[1],
        row_keys=rows[2],
        col_batch=cols[1],
        col_keys=cols[2],
        bias=bias,
        positions=p.positions,
        starts=starts,
        sizes=(matrices, m, n, k),
    )
