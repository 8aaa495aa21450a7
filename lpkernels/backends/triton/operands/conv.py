"""The tables of a convolution (`_conv_tables`) as operands and sums of this backend's kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.backends import _conv_tables
from lpkernels.backends._conv_geometry import Frame, Geometry, count
from lpkernels.backends._conv_tables import Tables
from lpkernels.backends._tables import kept
from lpkernels.backends.triton._config import padded_lanes
from lpkernels.backends.triton._layout import Operand, Sums
from lpkernels.backends.triton.operands.images import Framed

# Below this many channels padding would more than double them, so parts are not padded.
_FEW_CHANNELS = 16


def image_operand(product: Tables, image: Framed) -> Operand:
    """The gathered right operand."""
    values, facts, absent, quantizer = image
    batch, lanes, steps = product.batch, product.lanes, product.steps
    return Operand(values, batch, lanes, steps, 0, facts, absent, quantizer)


def sums_of(product: Tables, out: Tensor, bias: Tensor | None, starts: Tensor | None) -> Sums:
    """The outputs of a product, with their places."""
    p = product
    return Sums(
        out, p.out_batch, p.rows, p.cols, p.row_keys, p.col_keys, p.row_batch, p.col_batch,
        p.swapped, bias, p.positions, starts, p.sizes,
    )  # fmt: skip


def gradient_frame(g: Geometry) -> Frame:
    """The frame of dy in wgrad; with many channels each group has a part of its own, with
    padding."""
    frame = _conv_tables.gradient_frame(g)
    if g.out_channels < _FEW_CHANNELS:
        return frame
    return frame._replace(parts=g.groups, width=padded_lanes(g.out_channels))


@kept
def _gradient_tables(g: Geometry, device: torch.device) -> tuple[Tensor, Tensor | None]:
    frame, group = gradient_frame(g), count(g.groups, device)
    if g.out_channels < _FEW_CHANNELS:
        return group * g.out_channels, count(g.out_channels, device)
    return group * (g.batch * frame.image_step), None


def gradient_operand(
    g: Geometry, values: Tensor, facts: Tensor, quantizer: tuple[int, ...]
) -> Operand:
    """The left operand of wgrad out of its frame."""
    batch, lanes = _gradient_tables(g, values.device)
    step = gradient_frame(g).place_step
    return Operand(values, batch, lanes, None, step, facts, False, quantizer)
