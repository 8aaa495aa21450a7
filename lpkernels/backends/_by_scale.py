"""Products of scaled operands, out of products of their segments and scaled additions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator, Ints
from lpkernels.backends._protocol import How, Product, Scales, matmul_of
from lpkernels.reference.scaled_products import segments

if TYPE_CHECKING:
    from lpkernels.backends.cpu import CpuBackend


def inner_sums(acc: Ints) -> Ints:
    """The accumulator of the sum of one segment."""
    at = InAccumulator
    inner = list(acc)
    inner[at.CHUNK], inner[at.HAS_OUTER] = 0, 0
    inner[at.OUTER], inner[at.OUTER_ROUNDING] = acc[at.FORMAT], acc[at.ROUNDING]
    return tuple(inner)


def outer_sum(acc: Ints) -> Ints:
    """The accumulator of the outer sum alone."""
    at = InAccumulator
    outer = list(acc[: at.PLAIN])
    outer[at.CHUNK] = 1
    return tuple(outer)


def by_scale(backend: CpuBackend, product: Product, scales: Scales, how: How) -> Tensor:
    """`Backend.multiply_scaled`; inner sums draw no random bits.

    A segment's sums are a matmul of its codes. They are then added to the outer sums, times their
    scales, in one rounding.
    """
    left, right, shape = product.left, product.right, tuple(product.shape)
    rows, cols = shape[-2:]
    batch = math.prod(shape[:-2])
    outer = how._replace(acc=outer_sum(how.acc))
    if product.initial is None:
        total = left.new_zeros(shape)
    else:
        # A sum of no product is where it starts.
        empty = matmul_of(left[..., :0], right[..., :0, :], initial=product.initial)
        total = backend.multiply(empty, outer)
    if total.numel() == 0:
        return total
    order = -how.acc[InAccumulator.CHUNK] if scales.float32 else 0
    inner = how._replace(acc=inner_sums(how.acc))
    # Scales by segment. With one right operand for the batch, the batch is more rows.
    of_rows = scales.left.expand(*shape[:-1], -1).flatten(0, -2).t().contiguous()
    shared = scales.right.dim() == 2
    of_cols = scales.right if shared else scales.right.expand(*shape[:-2], cols, -1)
    of_cols = of_cols.reshape(-1, cols, of_cols.shape[-1]).movedim(-1, 0).contiguous()
    parts = 1 if shared else batch
    tall = batch * rows // parts
    into = total.view(parts, tall, cols)
    for number, (start, end) in enumerate(
        segments(left.shape[-1], scales.left_size, scales.right_size)
    ):
        codes = matmul_of(left[..., start:end], right[..., start:end, :])
        sums = backend.multiply(codes, inner).view(into.shape)
        row_scales = of_rows[start // scales.left_size if scales.left_size else 0]
        col_scales = of_cols[start // scales.right_size if scales.right_size else 0]
        for i in range(parts):
            first = i * tall
            there = (row_scales[first : first + tall], col_scales[i])
            backend.add_scaled(into[i], sums[i], *there, order, outer, first, number)
    return total
