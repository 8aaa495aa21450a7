"""Matrix products: operands packed, tables made, sums in the batch that broadcasting gives.

Scales of codes enter the outer sums of products by scale, whose chunks are their segments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.backends import How, Scales
from lpkernels.backends._gpu import Matrices
from lpkernels.backends._tables import offsets
from lpkernels.backends.planning.triton_tiles import transposes
from lpkernels.backends.triton._layout import (
    COLS_FIRST,
    EXACT_SCALES,
    ROWS_FIRST,
    Scaling,
    Sums,
)
from lpkernels.backends.triton._products import products
from lpkernels.backends.triton.operands.facts import new_facts
from lpkernels.backends.triton.operands.matrices import pack_operand
from lpkernels.reference.matmul import segments


def multiply_matrices(work: Matrices, how: How, scales: Scales | None) -> None:
    """`GpuBackend.multiply_matrices`. Draws are keyed (batch * M + m, n, k). With scales the chunks
    of the sums are segments."""
    left, right, batch = work.left, work.right, work.batch
    sums = _sums(work)
    if scales is not None:
        cuts = tuple(segments(left.shape[-1], scales.left_size, scales.right_size))
        longest = max((end - start for start, end in cuts), default=1)
        acc, at = how.acc, InAccumulator
        order = acc[at.SCALE_ORDER] if scales.float32 else EXACT_SCALES
        sums = _with_scales(sums, cuts, scales, order, work.out.shape)
        how = how._replace(acc=(*acc[: at.CHUNK], longest, *acc[at.CHUNK + 1 :]))
    facts = new_facts(left.device)
    rows = pack_operand(left, batch, facts[0], how.fused.left)
    cols = pack_operand(right.mT, batch, facts[1], how.fused.right)
    products(*((cols, rows) if sums.swapped else (rows, cols)), sums, how)


def _with_scales(
    sums: Sums, cuts: Sequence[tuple[int, int]], scales: Scales, order: int, shape: torch.Size
) -> Sums:
    """The sums of a product of this shape, with segments for chunks."""
    starts = [start for start, _ in cuts]
    # One matrix may be a batch as more rows.
    batch = shape[:-2] if sums.sizes[0] > 1 else torch.Size()
    left = scales.left.expand(*shape[:-1], scales.left.shape[-1])
    right = scales.right.expand(*batch, *scales.right.shape[-2:])
    rows, cols = (
        _by_chunk(scale, sums.sizes[0], starts, size)
        for scale, size in ((left, scales.left_size), (right, scales.right_size))
    )
    if sums.swapped:
        rows, cols = cols, rows
        order = {ROWS_FIRST: COLS_FIRST, COLS_FIRST: ROWS_FIRST}.get(order, order)
    ends = [*starts, cuts[-1][1] if cuts else 0]
    table = torch.tensor(ends, dtype=torch.int64, device=sums.out.device)
    return sums._replace(starts=table, scaling=Scaling(rows, cols, order))


def _by_chunk(scale: Tensor, matrices: int, starts: Sequence[int], size: int) -> Tensor:
    """(matrices, chunks, lanes) of scales (..., lanes, segments) of ``size`` products, 0: all."""
    segment = [start // size if size else 0 for start in starts]
    index = torch.tensor(segment, dtype=torch.int64, device=scale.device)
    lanes = math.prod(scale.shape[:-1]) // matrices
    return scale.index_select(-1, index).reshape(matrices, lanes, len(starts)).mT.contiguous()


def _sums(work: Matrices) -> Sums:
    """The outputs of a contiguous (batch, m, n), in tiles whose long side is n or, swapped, m."""

    def steps(size: int, stride: int) -> Tensor:
        return offsets((size,), (stride,), work.out.device)

    matrices, m, n, k = work.sizes
    rows, row_keys, row_batch = steps(m, n), steps(m, 1), steps(matrices, m)
    cols, col_keys, col_batch = steps(n, 1), steps(n, 1), steps(matrices, 0)
    swapped = transposes(m, n)
    if swapped:
        m, n = n, m
        rows, row_keys, row_batch, cols, col_keys, col_batch = (
            cols, col_keys, col_batch, rows, row_keys, row_batch,
        )  # fmt: skip
    return Sums(
        work.out, steps(matrices, m * n), rows, cols, row_keys, col_keys, row_batch, col_batch,
        swapped, work.bias, None, None, (matrices, m, n, k), work.initial,
    )  # fmt: skip
