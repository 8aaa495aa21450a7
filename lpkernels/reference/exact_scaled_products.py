"""Products of scaled operands, one output at a time in Python rationals: the definition."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FP32
from lpkernels.reference.exact_sums import (
    Factored,
    Output,
    Real,
    Summand,
    accumulate,
    product,
    summand,
)
from lpkernels.reference.scaled_products import Scales, flat, segments
from lpkernels.reference.values import Float32, narrow, widen
from lpkernels.rng import SITE_OUTER
from lpkernels.rounding import floor_log2, round_scalar


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
    parts = (a, b, scales.left, scales.right)
    left, right, left_scale, right_scale = (_spread(x, lead) for x in parts)
    starts = None if initial is None else np.broadcast_to(widen(initial), out.shape)
    cuts = list(segments(length, scales.left_size, scales.right_size))
    order = acc.scale_order if scales.float32 else None
    results = out.reshape(-1, rows, cols)
    for i, m, n in np.ndindex(results.shape):
        cell = Output(acc, seed, i * rows + m, n)
        total = (
            0.0 if starts is None else cell.initial(float(starts.reshape(results.shape)[i, m, n]))
        )
        for number, (start, end) in enumerate(cuts):
            terms = [(k, summand(left[i][m][k], right[i][k][n], acc)) for k in range(start, end)]
            at_left, at_right = scales.at(start)
            x, y = left_scale[i][m][at_left], right_scale[i][n][at_right]
            addend = _scaled(cell.sum(terms), x, y, order)
            total = cell.add_outermost(total, addend, SITE_OUTER, number)
        results[i, m, n] = total
    return narrow(out)


def matmul_grouped(
    a: Float32, b: Float32, scales: Scales, acc: Accumulator, *, initial: Float32 | None = None
) -> Float32:
    """As `reference.grouped_products.matmul_grouped`."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, length, cols = a.shape[-2], a.shape[-1], b.shape[-1]
    out = np.zeros((*lead, rows, cols))
    parts = (a, b, scales.left, scales.right)
    left, right, left_scale, right_scale = (_spread(x, lead) for x in parts)
    starts = None if initial is None else np.broadcast_to(widen(initial), out.shape)
    assert acc.group is not None and acc.block is not None
    unit = replace(acc, group=None, block=acc.block // acc.group)
    results = out.reshape(-1, rows, cols)
    for i, m, n in np.ndindex(results.shape):
        addends: list[Summand | None] = []
        for start in range(0, length, acc.group):
            at_left, at_right = scales.at(start)
            both = left_scale[i][m][at_left], right_scale[i][n][at_right]
            ks = range(start, min(start + acc.group, length))
            addends.append(_group([(left[i][m][k], right[i][k][n]) for k in ks], both, scales, acc))
        begin = None if starts is None else float(starts.reshape(results.shape)[i, m, n])
        results[i, m, n] = accumulate(addends, unit, initial=begin)
    return narrow(out)


def _group(
    pairs: list[tuple[float, float]], both: tuple[float, float], scales: Scales, acc: Accumulator
) -> Factored:
    """The sum of a group times its scales, and the exponent that it is aligned by."""
    products = [product(x, y) for x, y in pairs]
    special = [p for p in products if isinstance(p, float) and p != 0]
    total = sum((Fraction(p) for p in products), Fraction(0)) if not special else Fraction(0)
    if special or not all(map(math.isfinite, both)) or 0 in both:
        return Factored(sum(special, float(total)) * both[0] * both[1], None)
    exponent: int | None = sum(max(floor_log2(Fraction(s)), scales.least) for s in both)
    if acc.group == 1:
        code = summand(*pairs[0], acc)
        assert isinstance(code, Factored) and exponent is not None
        exponent = None if code.exponent is None else code.exponent + exponent
    return Factored(total * Fraction(both[0]) * Fraction(both[1]), exponent)


def _spread(x: Float32, lead: tuple[int, ...]) -> list[Any]:
    """Matrices by row-major batch; leading dimensions of one broadcast."""
    return flat(x, lead).tolist()


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
