"""Matrix products of codes whose scales enter the outer sum, many outputs at once.

docs/contract.md, "Products of scaled operands". Scales that enter every block: grouped_products.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.reference.aligned import exponents_of
from lpkernels.reference.orders import Rounds
from lpkernels.reference.sums import Sums
from lpkernels.reference.values import Float32, Float64, matrices, narrow, product_to_odd, widen
from lpkernels.rng import SITE_OUTER


class Scales(NamedTuple):
    """The scales of both operands of a product a (..., M, K) @ b (..., K, N), float32.

    left: (..., M, segments of a), the scale of every `left_size` products of a row; right:
    (..., N, segments of b) of a column. A size of 0 means one segment. float32: whether a scale is
    of the format fp32, so that products of scales are rounded. least: the least exponent that a
    scale of a group counts with.
    """

    left: Float32
    right: Float32
    left_size: int
    right_size: int
    float32: bool
    least: int = -127

    def at(self, k: int) -> tuple[int, int]:
        """The segments of both sides that have position k."""
        return (
            k // self.left_size if self.left_size else 0,
            k // self.right_size if self.right_size else 0,
        )


def segments(length: int, *sizes: int) -> Iterator[tuple[int, int]]:
    """The stretches of 0 .. length in which no scale changes."""
    cuts = {0, length}.union(*(range(0, length, size) for size in sizes if size))
    ends = sorted(cuts)
    yield from itertools.pairwise(ends)


def matmul_scaled(
    a: Float32,
    b: Float32,
    scales: Scales,
    acc: Accumulator,
    *,
    seed: int = 0,
    initial: Float32 | None = None,
) -> Float32:
    """a @ b of codes, in an accumulator with chunk="scale" and any order but "native".

    Args:
        a: (..., M, K) float32. b: (..., K, N) float32; leading dimensions broadcast.
        initial: broadcastable to the result, where the outer sum starts.
    Returns: (..., M, N) float32. Draws are keyed (batch * M + m, n, k), of outer sums with the
        number of the segment for k.
    """
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, length, cols = a.shape[-2], a.shape[-1], b.shape[-1]
    shape = (math.prod(lead), rows, cols)
    parts = (a, b, scales.left, scales.right)
    left, right, left_scale, right_scale = (matrices(x, lead) for x in parts)
    row = (np.arange(shape[0])[:, None] * rows + np.arange(rows))[:, :, None]
    rounds = Rounds(acc, seed, row, np.arange(cols))
    sums = Sums(shape, rounds)
    outer = np.zeros(shape)
    if initial is not None:
        starts = np.broadcast_to(initial, (*lead, rows, cols)).reshape(shape)
        outer = rounds.initial(widen(starts))
    exponents = None
    if acc.operands is not None:
        exponents = exponents_of(left, acc.operands[0]), exponents_of(right, acc.operands[1])
    with np.errstate(invalid="ignore"):
        cuts = segments(length, scales.left_size, scales.right_size)
        for number, (start, end) in enumerate(cuts):
            for k in range(start, end):
                together = None
                if exponents is not None:
                    together = exponents[0][:, :, k, None] + exponents[1][:, k, None, :]
                sums.push(left[:, :, k, None] * right[:, k, None, :], None, together)
            at_left, at_right = scales.at(start)
            addend = scaled_sum(
                sums.inner.take(),
                left_scale[:, :, at_left, None],
                right_scale[:, None, :, at_right],
                acc.scale_order if scales.float32 else None,
            )
            outer = rounds.add_outermost(outer, addend, SITE_OUTER, number)
    return narrow(outer).reshape(*lead, rows, cols)


def scaled_sum(c: Float64, left: Float64, right: Float64, order: str | None) -> Float64:
    """The sum of a segment times both scales; order: where a product of scales is rounded."""
    if order is None:
        # Of c 24 bits, and of the scales what is left of 53 (`functional.matmul` sees to it).
        return c * (left * right)
    if order == "product":
        return c * widen(_float32(left, right))
    first, second = (left, right) if order == "left" else (right, left)
    return widen(_float32(c, first)) * second


def _float32(x: Float64, y: Float64) -> Float32:
    """x * y, of float32 values, rounded to float32."""
    return narrow(product_to_odd(*np.broadcast_arrays(x, y)))
