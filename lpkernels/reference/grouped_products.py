"""Matrix products of codes whose scales enter every block, many outputs at once.

docs/contract.md, "Groups with scales".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.reference.aligned import exponents_from, exponents_of
from lpkernels.reference.scaled_products import Scales
from lpkernels.reference.sums import Product, accumulate
from lpkernels.reference.values import Float32, matrices, narrow

_NO_KEY = np.zeros((), np.int64)


def matmul_grouped(
    a: Float32, b: Float32, scales: Scales, acc: Accumulator, *, initial: Float32 | None = None
) -> Float32:
    """a @ b of codes, in an accumulator with groups, in which no scale changes.

    Args:
        a: (..., M, K) float32. b: (..., K, N) float32; leading dimensions broadcast.
        initial: broadcastable to the result, where the sum starts.
    Returns: (..., M, N) float32.
    """
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    parts = (a, b, scales.left, scales.right)
    left, right, left_scale, right_scale = (matrices(x, lead) for x in parts)
    shape, group = (math.prod(lead), a.shape[-2], b.shape[-1]), acc.group
    assert group is not None and acc.block is not None and acc.operands is not None
    factors = exponents_of(left, acc.operands[0]), exponents_of(right, acc.operands[1])

    def sums() -> Iterator[Product]:
        for k in range(0, left.shape[-1], group):
            at_left, at_right = scales.at(k)
            x, y = left_scale[:, :, at_left, None], right_scale[:, None, :, at_right]
            exponents = exponents_from(x, scales.least) + exponents_from(y, scales.least)
            if group == 1:
                exponents = exponents + factors[0][:, :, k, None] + factors[1][:, k, None, :]
            with np.errstate(invalid="ignore"):
                # Codes of few bits: exact in any order.
                total = (left[:, :, k : k + group] @ right[:, k : k + group]) * (x * y)
            yield total, None, exponents

    unit = replace(acc, group=None, block=acc.block // group)
    start = None if initial is None else np.broadcast_to(initial, (*lead, *shape[1:]))
    start = None if start is None else start.reshape(shape)
    result = accumulate(sums(), shape, unit, row=_NO_KEY, col=_NO_KEY, initial=start)
    return narrow(result).reshape(*lead, *shape[1:])
