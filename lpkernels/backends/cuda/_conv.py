"""A pass of a convolution: its image is framed, its rows are packed, and both are multiplied.

docs/contract.md has the order of the sums, and `_conv_tables` the places of all elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator, Ints
from lpkernels.backends import How
from lpkernels.backends._conv_geometry import Frame, three
from lpkernels.backends._conv_tables import Tables, gradient_frame, starts
from lpkernels.backends._gpu import Pass
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


def convolve(work: Pass, how: How) -> None:
    """`GpuBackend.convolve`."""
    with on_device(work.out):
        facts = new_facts(work.out.device)
        image = framed(work.image, work.frame, facts[0], how.fused.left)
        rows = _rows(work, facts[1], how.fused.right)
        for product in work.products():
            begins = starts(product, how.acc[InAccumulator.CHUNK])
            sums = _sums(product, work.out, work.bias, begins)
            left, right = _at_positions(rows, product.positions), _gathered(product, image)
            if product.swapped:
                left, right = right, left
            multiply(left, right, sums, how)


def _rows(work: Pass, facts: Tensor, quantizer: Ints) -> Operand:
    if not work.are_channels:
        return pack_matrices(work.rows, facts, quantizer)
    frame = gradient_frame(work.geometry)
    return framed(work.rows, frame, facts, quantizer)._replace(
        batch=every(work.geometry.out_channels), lanes=every(1), steps=every(frame.place_step)
    )


def framed(image: Tensor, frame: Frame, facts: Tensor, quantizer: Ints) -> Operand:
    """image (N, C, *spatial) float32, any strides, copied into its frame; the lines are still to be
    set."""
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


def _gathered(product: Tables, image: Operand) -> Operand:
    """The product's columns out of a framed image."""
    return image._replace(
        batch=_table(product.batch), lanes=_table(product.lanes), steps=_table(product.steps)
    )


def _at_positions(rows: Operand, positions: Tensor | None) -> Operand:
    """The steps at positions, out of all steps."""
    if positions is None:
        return rows
    return rows._replace(steps=_table(positions * rows.steps.step))


def _sums(product: Tables, out: Tensor, bias: Tensor | None, starts: Tensor | None) -> Sums:
    """Where the outputs of a product lie; its rows are the left operand's, except where swapped."""
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
