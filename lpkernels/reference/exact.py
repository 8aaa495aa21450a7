"""What right means: every output computed by itself, in order, in exact rational numbers.

A finite non-zero number is a Fraction, so a product or a sum is never rounded except where the
Accumulator says so. A zero, an infinity and NaN are floats: they carry what rationals cannot. Loops
are allowed here, speed is not a goal; the vectorised twin is compared with this file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.reference.exact_quantize import quantize
from lpkernels.reference.geometry import output_size
from lpkernels.reference.values import Float32, narrow, widen
from lpkernels.rng import SITE_BIAS, SITE_OUTER, SITE_PRODUCT, SITE_SUM, draw
from lpkernels.rounding import round_scalar

__all__ = [
    "accumulate",
    "add",
    "conv_dgrad",
    "conv_fprop",
    "conv_wgrad",
    "matmul",
    "product",
    "quantize",
]

Number = FloatFormat | FixedFormat
Real = Fraction | float
Sizes = Sequence[int]


def product(a: float, b: float) -> Real:
    """a * b without rounding: a Fraction, or a float where it is zero, infinite or NaN."""
    if a == 0 or b == 0 or not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    return Fraction(a) * Fraction(b)


def _sum(total: float, addend: Real, rounding: str) -> Real:
    """total + addend without rounding; inf - inf is NaN, an exact zero sum gets its sign here."""
    special = [v for v in (total, addend) if isinstance(v, float) and not math.isfinite(v)]
    if special:
        return sum(special[1:], special[0])
    exact = Fraction(total) + Fraction(addend)
    if exact != 0:
        return exact
    signs = {math.copysign(1.0, v) for v in (total, addend)}
    if total == 0 and len(signs) == 1:
        return total
    return -0.0 if rounding == "toward_negative" else 0.0


def add(
    total: float, addend: Real, fmt: Number, rounding: str, *, draw: int = 0, random_bits: int = 32
) -> float:
    """total + addend, rounded once to fmt: one step of every sum.

    Zeros of equal sign keep it, any other exact zero sum is +0 (-0 under toward_negative; a
    FixedFormat only has +0). An infinite sum becomes what fmt.overflow says.
    """
    exact = _sum(total, addend, rounding)
    return round_scalar(exact, fmt, rounding, draw=draw, random_bits=random_bits)


@dataclass(frozen=True)
class _Output:
    """One output element: its accumulator and the key of its draws."""

    acc: Accumulator
    seed: int
    row: int
    col: int

    def _draw(self, rounding: str, site: int, k: int) -> int:
        if rounding != "stochastic":
            return 0
        return draw(self.seed, site, self.row, self.col, k, self.acc.random_bits, self.acc.rng)

    def rounded_product(self, value: Real, k: int) -> Real:
        acc = self.acc
        if acc.product is None:
            return value
        bits = self._draw(acc.product_rounding, SITE_PRODUCT, k)
        return round_scalar(
            value, acc.product, acc.product_rounding, draw=bits, random_bits=acc.random_bits
        )

    def add(self, total: float, addend: Real, fmt: Number, site: int, k: int) -> float:
        acc = self.acc
        bits = self._draw(acc.rounding, site, k)
        return add(total, addend, fmt, acc.rounding, draw=bits, random_bits=acc.random_bits)

    def sum(self, terms: Iterable[tuple[int, Real | None]]) -> float:
        """Terms (k, product) from +0 in acc.fmt; None is an absent tap."""
        total = 0.0
        for k, value in terms:
            if value is not None:
                total = self.add(total, self.rounded_product(value, k), self.acc.fmt, SITE_SUM, k)
        return total


def accumulate(
    products: Sequence[Real | None],
    acc: Accumulator,
    *,
    seed: int = 0,
    row: int = 0,
    col: int = 0,
    bias: float | None = None,
) -> float:
    """One output element: the products in order, summed as ``acc`` says.

    Without a chunk: acc = +0, then acc = round(acc + p_k) for every k. With one: such a sum over
    every ``acc.chunk`` positions (the last may be short), each then added to an accumulator in
    ``acc.outer`` that starts at +0. The bias is one more addition in the outermost accumulator.
    Draws are keyed (seed, site, row, col, k); for a chunk k is its index.

    Args:
        products: exact products, see product(); None where a tap falls on padding or between
            strides: it adds nothing, but its position counts.
        acc: order "sequential". seed: already derived for its role. row, col: the output's key.
    """
    out = _Output(acc, seed, row, col)
    terms = list(enumerate(products))
    if acc.chunk is None:
        total = out.sum(terms)
    else:
        total = 0.0
        for index, start in enumerate(range(0, len(terms), acc.chunk)):
            partial = out.sum(terms[start : start + acc.chunk])
            total = out.add(total, partial, acc.outermost, SITE_OUTER, index)
    return total if bias is None else out.add(total, bias, acc.outermost, SITE_BIAS, 0)


def matmul(
    a: Float32, b: Float32, bias: Float32 | None, acc: Accumulator, *, seed: int = 0
) -> Float32:
    """(..., M, K) @ (..., K, N) + bias (N,): k = 0..K-1; row = batch * M + m, col = n. float32."""
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, length, cols = a.shape[-2], a.shape[-1], b.shape[-1]
    left, right = (
        np.broadcast_to(widen(x), (*lead, *x.shape[-2:])).reshape(math.prod(lead), *x.shape[-2:])
        for x in (a, b)
    )
    out = np.zeros((len(left), rows, cols))
    for i, m, n in np.ndindex(out.shape):
        terms = [product(float(left[i, m, k]), float(right[i, k, n])) for k in range(length)]
        out[i, m, n] = accumulate(
            terms, acc, seed=seed, row=i * rows + m, col=n, bias=_item(bias, n)
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
            terms: list[Real | None] = []
            for c, *tap in _positions((per_group_in, *kernel)):
                i = geometry.source(at, tap, size)
                value = (
                    None
                    if i is None
                    else product(float(xs[(n, first + c, *i)]), float(ws[(co, c, *tap)]))
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
            terms: list[Real | None] = []
            for o, *tap in _positions((per_group_out, *kernel)):
                co = group * per_group_out + o
                j = geometry.target(at, tap, spatial)
                value = (
                    None if j is None else product(float(gs[(n, co, *j)]), float(ws[(co, c, *tap)]))
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
        terms: list[Real | None] = []
        for n, *at in _positions((x.shape[0], *spatial)):
            i = geometry.source(at, tap, size)
            terms.append(
                None if i is None else product(float(xs[(n, ci, *i)]), float(gs[(n, co, *at)]))
            )
        col = columns.index((ci, *tap))
        out[(co, c, *tap)] = accumulate(terms, acc, seed=seed, row=co, col=col)
    return narrow(out)
