"""Products of scaled operands, one output at a time in Python rationals: the definition."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FP32
from lpkernels.reference.exact_sums import Output, Real, summand
from lpkernels.reference.scaled_products import Scales, segments
from lpkernels.reference.values import Float32, narrow, widen
from lpkernels.rng import SITE_BIAS, SITE_OUTER
from lpkernels.rounding import round_scalar


def matmul_scaled(
    a: Float32,
    b: Float32,
    scales: Scales,
    bias: Float32 | None,
    acc: Accumulator,
    *,
    seed: int = 0,
    initial: Float32 | None = None,
) -> Float32:
    """As `reference.scaled_products.matmul_scaled`."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, length, cols = a.shape[-2], a.shape[-1], b.shape[-1]
    out = np.zeros((*lead, rows, cols))

    def at(x: Float32, *where: int) -> float:
        """An element of an operand or of its scales; leading dimensions of one broadcast."""
        wide = np.broadcast_to(widen(x), (*lead, *x.shape[len(x.shape) - len(where) :]))
        return float(wide[(*index[:-2], *where)])

    cuts = list(segments(length, scales.left_size, scales.right_size))
    order = acc.scale_order if scales.float32 else None
    for index in np.ndindex(out.shape):
        m, n = index[-2:]
        batch = int(np.ravel_multi_index(index[:-2], lead)) if lead else 0
        cell = Output(acc, seed, batch * rows + m, n)
        total = 0.0
        if initial is not None:
            total = cell.initial(float(np.broadcast_to(widen(initial), out.shape)[index]))
        for number, (start, end) in enumerate(cuts):
            terms = [(k, summand(at(a, m, k), at(b, k, n), acc)) for k in range(start, end)]
            left = at(scales.left, m, start // scales.left_size if scales.left_size else 0)
            right = at(scales.right, n, start // scales.right_size if scales.right_size else 0)
            addend = _scaled(cell.sum(terms), left, right, order)
            total = cell.add_outermost(total, addend, SITE_OUTER, number)
        if scales.has_total:
            last = [
                at(total_scale, i if total_scale.shape[-1] > 1 else 0)
                for total_scale, i in ((scales.left_total, m), (scales.right_total, n))
            ]
            total = _float32(total, _float32(*last))
        if bias is not None:
            total = cell.add_outermost(total, float(widen(bias)[n]), SITE_BIAS, 0)
        out[index] = total
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
