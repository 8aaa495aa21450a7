"""A pass of a convolution: its rows are packed, its image is framed, and both are multiplied.

docs/contract.md has the order of the sums and the keys of the draws, and `_conv_tables` the places
of all elements.
"""

from __future__ import annotations

from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator, Ints
from lpkernels.backends import How
from lpkernels.backends._conv_phases import starts
from lpkernels.backends._gpu import Pass
from lpkernels.backends.triton._config import transposes
from lpkernels.backends.triton._layout import Operand, Sums
from lpkernels.backends.triton._products import products
from lpkernels.backends.triton.operands.conv import (
    gradient_frame,
    gradient_operand,
    image_operand,
    sums_of,
)
from lpkernels.backends.triton.operands.facts import new_facts
from lpkernels.backends.triton.operands.images import framed
from lpkernels.backends.triton.operands.matrices import pack_operand


def convolve(work: Pass, how: How) -> None:
    """`GpuBackend.convolve`."""
    facts = new_facts(work.out.device)
    rows = _rows(work, facts[0], how.fused.right)
    image = framed(work.image, work.frame, facts[1], how.fused.left)
    for product in work.products():
        begins = starts(product, how.acc[InAccumulator.CHUNK])
        sums = sums_of(product, work.out, work.bias, begins)
        left, right = _at_positions(rows, product.positions), image_operand(product, image)
        # The longer side of the outputs lies along the longer side of tiles.
        if transposes(*sums.sizes[1:3]):
            left, right, sums = right, left, _turned(sums)
        products(left, right, sums, how)


def _rows(work: Pass, facts: Tensor, quantizer: Ints) -> Operand:
    if not work.are_channels:
        return pack_operand(work.rows, work.rows.shape[:1], facts, quantizer)
    gradient = framed(work.rows, gradient_frame(work.geometry), facts, quantizer)
    return gradient_operand(work.geometry, gradient.values, gradient.facts, quantizer)


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
