"""Products of scaled operands, one output at a time in Python rationals: the definition."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FP32
from lpkernels.reference.exact_sums import Output, Real, summand
from lpkernels.reference.scaled_products import Scales, segments
from lpkernels.reference.values import Float32, narrow, widen
from lpkernels.rng import SITE_OUTER
from lpkernels.rounding import round_scalar


def matmul_scaled(
    a: Float32,
    b: Float32,
    scales: Scales,
    acc: Accumulator,
    *,
    seed: int = 0,
    initial: Float32 | None = None,
) -> Float32:
    """As `reference.scaled_products.matmul_scaled`."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, length, cols = a.shape[-2], a.shape[-1], b.shape[-1]
    out = np.zeros((*lead, rows, cols))

    def spread(x: Float32) -> list[Any]:
        """Matrices by row-major batch; leading dimensions of one broadcast."""
        return np.broadcast_to(widen(x), (*lead, *x.shape[-2:])).reshape(-1, *x.shape[-2:]).tolist()

    left, right = spread(a), spread(b)
    left_scale, right_scale = spread(scales.left), spread(scales.right)
    starts = None if initial is None else np.broadcast_to(widen(initial), out.shape)
    cuts = list(segments(length, scales.left_size, scales.right_size))
    order = acc.scale_order if scales.float32 else None
    flat = out.reshape(-1, rows, cols)
    for i, m, n in np.ndindex(flat.shape):
        cell = Output(acc, seed, i * rows + m, n)
        total = 0.0 if starts is None else cell.initial(float(starts.reshape(flat.shape)[i, m, n]))
        for number, (start, end) in enumerate(cuts):
            terms = [(k, summand(left[i][m][k], right[i][k][n], acc)) for k in range(start, end)]
            x = left_scale[i][m][start // scales.left_size if scales.left_size else 0]
            y = right_scale[i][n][start // scales.right_size if scales.right_size else 0]
            addend = _scaled(cell.sum(terms), x, y, order)
            total = cell.add_outermost(total, addend, SITE_OUTER, number)
        flat[i, m, n] = total
    return narrow(out)


def _scaled(c: float, left: float, right: float, order: str | None) -> Real:
    if order is None:
        return _product(c, left, right)
    if order == "product":
        return _product(c, _float32(left, right))
    first, second = (left, right) if order == "left" else (right, left)
    return _product(_float32(c, first), second)


def _product(*factors: float) -> Real:
    """The exact product; a float where it is a zero, an infinity or NaN."""
    if not all(map(math.isfinite, factors)) or 0 in factors:
        return math.prod(factors)
    return math.prod(map(Fraction, factors), start=Fraction(1))


def _float32(*factors: float) -> float:
    return round_scalar(_product(*factors), FP32, "nearest_even")
