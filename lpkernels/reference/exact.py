"""The definition of right results: every output is computed by itself, in order, in exact rational
numbers.

A finite non-zero number is a Fraction, so a product or a sum is never rounded except where the
Accumulator says so. Zeros, infinities and NaN are floats, because rationals have no -0, no infinity
and no NaN. Loops are allowed here, speed is not a goal; the vectorised twin is compared with this
file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.arithmetic.products import output_size
from lpkernels.reference.exact_quantize import quantize
from lpkernels.reference.exact_scaled_products import matmul_grouped, matmul_scaled
from lpkernels.reference.exact_sums import Summand, accumulate, add, product, summand
from lpkernels.reference.values import Float32, narrow, widen

__all__ = [
    "accumulate",
    "add",
    "conv_dgrad",
    "conv_fprop",
    "conv_wgrad",
    "matmul",
    "matmul_grouped",
    "matmul_scaled",
    "product",
    "quantize",
    "summand",
]

Sizes = Sequence[int]


def matmul(
    a: Float32,
    b: Float32,
    bias: Float32 | None,
    acc: Accumulator,
    *,
    seed: int = 0,
    initial: Float32 | None = None,
) -> Float32:
    """(..., M, K) @ (..., K, N) + bias (N,): k = 0..K-1; row = batch * M + m, col = n. float32.

    initial, broadcastable to the result: where the outermost sum starts; None: +0.
    """
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, length, cols = a.shape[-2], a.shape[-1], b.shape[-1]
    left, right = (
        np.broadcast_to(widen(x), (*lead, *x.shape[-2:])).reshape(math.prod(lead), *x.shape[-2:])
        for x in (a, b)
    )
    out = np.zeros((len(left), rows, cols))
    starts = None
    if initial is not None:
        starts = np.broadcast_to(widen(initial), (*lead, rows, cols)).reshape(out.shape)
    for i, m, n in np.ndindex(out.shape):
        terms = [summand(float(left[i, m, k]), float(right[i, k, n]), acc) for k in range(length)]
        start = None if starts is None else float(starts[i, m, n])
        out[i, m, n] = accumulate(
            terms, acc, seed=seed, row=i * rows + m, col=n, bias=_item(bias, n), initial=start
        )
    return narrow(out.reshape(*lead, rows, cols))


def _item(bias: Float32 | None, n: int) -> float | None:
    return None if bias is None else float(widen(bias)[n])


def _positions(size: Sizes) -> Iterator[tuple[int, ...]]:
    """All positions in row-major order."""
    return itertools.product(*map(range, size))


@dataclass(frozen=True)
class _Geometry:
    stride: Sizes
    padding: Sizes
    dilation: Sizes

    def source(self, at: Sizes, tap: Sizes, size: Sizes) -> tuple[int, ...] | None:
        """The input position that ``tap`` brings to output position ``at``; None on padding."""
        dims = zip(at, tap, self.stride, self.padding, self.dilation, strict=True)
        found = tuple(o * s - p + t * d for o, t, s, p, d in dims)
        inside = all(0 <= i < n for i, n in zip(found, size, strict=True))
        return found if inside else None

    def target(self, at: Sizes, tap: Sizes, size: Sizes) -> tuple[int, ...] | None:
        """The output position that reads input position ``at`` through ``tap``; None: none does."""
        dims = zip(at, tap, self.stride, self.padding, self.dilation, strict=True)
        found = tuple(Fraction(i + p - t * d, s) for i, t, s, p, d in dims)
        inside = all(o.denominator == 1 and 0 <= o < n for o, n in zip(found, size, strict=True))
        return tuple(int(o) for o in found) if inside else None


def conv_fprop(
    x: Float32,
    w: Float32,
    bias: Float32 | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    acc: Accumulator,
    *,
    seed: int = 0,
) -> Float32:
    """x (N, C, *size) convolved with w (C_out, C / groups, *kernel), + bias (C_out,).

    k = (c_in, tap) in the group; row = (n, position), col = c_out.
    """
    geometry = _Geometry(stride, padding, dilation)
    size, kernel = x.shape[2:], w.shape[2:]
    spatial = output_size(size, kernel, stride, padding, dilation)
    xs, ws = widen(x), widen(w)
    per_group_in, per_group_out = w.shape[1], w.shape[0] // groups
    out = np.zeros((x.shape[0], w.shape[0], *spatial))
    for row, (n, *at) in enumerate(_positions((x.shape[0], *spatial))):
        for co in range(w.shape[0]):
            first = co // per_group_out * per_group_in
            terms: list[Summand | None] = []
            for c, *tap in _positions((per_group_in, *kernel)):
                i = geometry.source(at, tap, size)
                value = (
                    None
                    if i is None
                    else summand(float(xs[(n, first + c, *i)]), float(ws[(co, c, *tap)]), acc)
                )
                terms.append(value)
            out[(n, co, *at)] = accumulate(
                terms, acc, seed=seed, row=row, col=co, bias=_item(bias, co)
            )
    return narrow(out)


def conv_dgrad(
    grad_output: Float32,
    w: Float32,
    input_shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    acc: Accumulator,
    *,
    seed: int = 0,
) -> Float32:
    """The gradient of conv_fprop for x, of shape input_shape.

    k = (c_out, tap) in the group; row = (n, input position), col = c_in.
    """
    geometry = _Geometry(stride, padding, dilation)
    spatial, kernel = grad_output.shape[2:], w.shape[2:]
    gs, ws = widen(grad_output), widen(w)
    per_group_in, per_group_out = w.shape[1], w.shape[0] // groups
    out = np.zeros(tuple(input_shape))
    for row, (n, *at) in enumerate(_positions((input_shape[0], *input_shape[2:]))):
        for ci in range(input_shape[1]):
            group, c = divmod(ci, per_group_in)
            terms: list[Summand | None] = []
            for o, *tap in _positions((per_group_out, *kernel)):
                co = group * per_group_out + o
                j = geometry.target(at, tap, spatial)
                value = (
                    None
                    if j is None
                    else summand(float(gs[(n, co, *j)]), float(ws[(co, c, *tap)]), acc)
                )
                terms.append(value)
            out[(n, ci, *at)] = accumulate(terms, acc, seed=seed, row=row, col=ci)
    return narrow(out)


def conv_wgrad(
    x: Float32,
    grad_output: Float32,
    weight_shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    acc: Accumulator,
    *,
    seed: int = 0,
) -> Float32:
    """The gradient of conv_fprop for w, of shape weight_shape.

    k = (n, output position); row = c_out, col = (c_in, tap) with c_in counted over all groups.
    """
    geometry = _Geometry(stride, padding, dilation)
    size, spatial, kernel = x.shape[2:], grad_output.shape[2:], tuple(weight_shape[2:])
    xs, gs = widen(x), widen(grad_output)
    per_group_in, per_group_out = weight_shape[1], weight_shape[0] // groups
    columns = list(_positions((x.shape[1], *kernel)))
    out = np.zeros(tuple(weight_shape))
    for co, c, *tap in _positions(weight_shape):
        ci = co // per_group_out * per_group_in + c
        terms: list[Summand | None] = []
        for n, *at in _positions((x.shape[0], *spatial)):
            i = geometry.source(at, tap, size)
            terms.append(
                None if i is None else summand(float(gs[(n, co, *at)]), float(xs[(n, ci, *i)]), acc)
            )
        col = columns.index((ci, *tap))
        out[(co, c, *tap)] = accumulate(terms, acc, seed=seed, row=co, col=col)
    return narrow(out)
