"""A pass of a convolution: its rows are packed, its image is framed, and both are multiplied.

docs/contract.md has the order of the sums and the keys of the draws, and `_conv_tables` the places
of all elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator, Ints
from lpkernels.backends import How, _conv_tables
from lpkernels.backends._conv_geometry import Frame, Geometry, count
from lpkernels.backends._conv_tables import starts
from lpkernels.backends._gpu import Pass
from lpkernels.backends._tables import cached_by_stream
from lpkernels.backends.planning.triton_tiles import transposes
from lpkernels.backends.triton._config import padded_lanes
from lpkernels.backends.triton._layout import Operand, Sums
from lpkernels.backends.triton._products import products
from lpkernels.backends.triton.operands.facts import new_facts
from lpkernels.backends.triton.operands.images import framed
from lpkernels.backends.triton.operands.matrices import pack_operand

# Below this many channels padding would more than double them, so parts are not padded.
_FEW_CHANNELS = 16


def convolve(work: Pass, how: How) -> None:
    """`GpuBackend.convolve`."""
    facts = new_facts(work.out.device)
    rows = _rows(work, facts[0], how.fused.right)
    image, absent = framed(work.image, work.frame, facts[1], how.fused.left)
    for product in work.products():
        begins = starts(product, how.acc[InAccumulator.CHUNK])
        sums = Sums(
            work.out, product.out_batch, product.rows, product.cols, product.row_keys,
            product.col_keys, product.row_batch, product.col_batch, product.swapped, work.bias,
            product.positions, begins, product.sizes,
        )  # fmt: skip
        left = _at_positions(rows, product.positions)
        right = Operand(
            image, product.batch, product.lanes, product.steps, 0, facts[1], absent, how.fused.left
        )
        # The longer side of the outputs lies along the longer side of tiles.
        if transposes(*sums.sizes[1:3]):
            left, right, sums = right, left, _turned(sums)
        products(left, right, sums, how)


def _rows(work: Pass, facts: Tensor, quantizer: Ints) -> Operand:
    if not work.are_channels:
        return pack_operand(work.rows, work.rows.shape[:1], facts, quantizer)
    frame = _gradient_frame(work.geometry)
    values, _ = framed(work.rows, frame, facts, quantizer)
    batch, lanes = _gradient_tables(work.geometry, values.device)
    return Operand(values, batch, lanes, None, frame.place_step, facts, False, quantizer)


def _gradient_frame(g: Geometry) -> Frame:
    """The frame of dy in wgrad; with many channels each group has a part of its own, with
    padding."""
    frame = _conv_tables.gradient_frame(g)
    if g.out_channels < _FEW_CHANNELS:
        return frame
    return frame._replace(parts=g.groups, width=padded_lanes(g.out_channels))


@cached_by_stream
def _gradient_tables(g: Geometry, device: torch.device) -> tuple[Tensor, Tensor | None]:
    frame, group = _gradient_frame(g), count(g.groups, device)
    if g.out_channels < _FEW_CHANNELS:
        return group * g.out_channels, count(g.out_channels, device)
    return group * (g.batch * frame.image_step), None


def _at_positions(rows: Operand, positions: Tensor | None) -> Operand:
    """The steps at positions, out of all steps."""
    return rows if positions is None else rows._replace(steps=positions * rows.step)


def _turned(sums: Sums) -> Sums:
    """The same outputs with rows and columns exchanged."""
    matrices, m, n, k = sums.sizes
    return sums._replace(
        rows=sums.cols, cols=sums.rows, row_keys=sums.col_keys, col_keys=sums.row_keys,
        row_batch=sums.col_batch, col_batch=sums.row_batch, swapped=not sums.swapped,
        sizes=(matrices, n, m, k),
    )  # fmt: skip
