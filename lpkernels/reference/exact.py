"""The definition of right results: every output is computed by itself, in order, in exact rational
numbers.

A finite non-zero number is a Fraction, so a product or a sum is never rounded except where the
Accumulator says so. Zeros, infinities and NaN are floats, because rationals have no -0, no infinity
and no NaN. Loops are allowed here, speed is not a goal; the vectorised twin is compared with this
file. Convolutions and products of scaled operands are sums of the same kind: tests gather their
operands, or their segments, and compare the twin with `accumulate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FloatFormat, Number
from lpkernels.reference.cores import (
    Factored,
    Real,
    block_of_core,
    flushed,
    without_rounding,
    zero_of,
)
from lpkernels.reference.exact_quantize import quantize
from lpkernels.reference.values import Batch, Float32, widen
from lpkernels.rng import SITE_BIAS, SITE_OUTER, SITE_PRODUCT, SITE_SUM, draw
from lpkernels.rounding import floor_log2, round_scalar

__all__ = ["accumulate", "add", "matmul", "product", "quantize", "summand"]

# A summand of an accumulator: Factored if the accumulator has operands.
Summand = Real | Factored
# A position and its summand; None is an absent tap.
Term = tuple[int, Summand | None]
RealTerm = tuple[int, Real | None]


def product(a: float, b: float) -> Real:
    """a * b without rounding: a Fraction, or a float where it is zero, infinite or NaN."""
    if a == 0 or b == 0 or not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    return Fraction(a) * Fraction(b)


def summand(a: float, b: float, acc: Accumulator) -> Summand:
    """a * b without rounding as acc takes it, the left factor first."""
    if acc.operands is None:
        return product(a, b)
    a, b = (flushed(x, fmt, acc) for x, fmt in zip((a, b), acc.operands, strict=True))
    value = product(a, b)
    if not isinstance(value, Fraction):
        return Factored(value, None)
    pairs = zip((a, b), acc.operands, strict=True)
    return Factored(value, sum(_exponent(Fraction(x), fmt) for x, fmt in pairs))


def _exponent(x: Fraction, fmt: FloatFormat) -> int:
    """floor(log2 |x|) of x != 0, at least the exponent of fmt's smallest normal value."""
    return max(floor_log2(abs(x)), fmt.emin)


def _sum(total: Real, addend: Real, rounding: str) -> Real:
    """total + addend without rounding; inf - inf is NaN, an exact zero sum gets its sign here."""
    exact = without_rounding((total, addend))
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
    FixedFormat and a TableFormat only have +0). inf - inf is NaN; an infinite sum becomes what
    fmt.overflow says.
    """
    exact = _sum(total, addend, rounding)
    return round_scalar(exact, fmt, rounding, draw=draw, random_bits=random_bits)


@dataclass(frozen=True)
class Output:
    """One output element: its accumulator and the key of its draws."""

    acc: Accumulator
    seed: int
    row: int
    col: int

    def _rounded(
        self, value: Real, fmt: Number, rounding: str, site: int, k: int, beyond_max: bool = False
    ) -> float:
        """value rounded with the draw of position k; beyond_max: as `always_overflows`."""
        acc, bits = self.acc, 0
        if rounding == "stochastic":
            bits = draw(self.seed, site, self.row, self.col, k, acc.random_bits, acc.rng)
        return round_scalar(
            value,
            fmt,
            rounding,
            draw=bits,
            random_bits=acc.random_bits,
            always_overflows=beyond_max,
        )

    def _product(self, value: Real, k: int) -> Real:
        acc = self.acc
        if acc.product is None:
            return value
        return self._rounded(value, acc.product, acc.product_rounding, SITE_PRODUCT, k)

    def _round(self, exact: Real, k: int) -> float:
        """An exact sum in the inner accumulator."""
        acc = self.acc
        return self._rounded(exact, acc.fmt, acc.rounding, SITE_SUM, k, acc.operands is not None)

    def _add(self, total: Real, addend: Real, k: int) -> float:
        return self._round(_sum(total, addend, self.acc.rounding), k)

    def initial(self, value: float) -> float:
        """Where the outermost sum starts."""
        acc = self.acc
        return self._rounded(value, acc.outermost, acc.outermost_rounding, SITE_BIAS, 1)

    def add_outermost(self, total: float, addend: Real, site: int, k: int) -> float:
        acc, rounding = self.acc, self.acc.outermost_rounding
        return self._rounded(_sum(total, addend, rounding), acc.outermost, rounding, site, k)

    def sum(self, summands: Sequence[Term], start: float = 0.0) -> float:
        """Terms (k, product) of one sum in acc.fmt from start, in the accumulator's order."""
        if self.acc.block is not None:
            return self._aligned(summands, start)
        real = [(k, p) for k, p in summands if not isinstance(p, Factored)]
        terms = [(k, p if p is None else self._product(p, k)) for k, p in real]
        if self.acc.order == "pairwise":
            return self._pairwise(terms)
        if self.acc.order == "compensated":
            return self._compensated(terms, start)
        return self._sequential(terms, start)

    def _sequential(self, terms: Sequence[RealTerm], total: float) -> float:
        """round(total + p) for every product in turn."""
        for k, value in terms:
            if value is not None:
                total = self._add(total, value, k)
        return total

    def _pairwise(self, terms: Sequence[RealTerm]) -> float:
        """A tree: products 2i and 2i + 1, then neighbours of each level, until one node is left."""
        first = terms[0][0] if terms else 0
        nodes: list[float | None] = []
        for i in range(0, len(terms), 2):
            present = [value for _, value in terms[i : i + 2] if value is not None]
            left, right = [0.0, 0.0, *present][-2:]
            nodes.append(self._add(left, right, first + i + 1) if present else None)
        width = 2
        while len(nodes) > 1:
            pairs = [nodes[i : i + 2] for i in range(0, len(nodes), 2)]
            # The key of a node is where its right half begins.
            nodes = [self._join(pair, first + (2 * i + 1) * width) for i, pair in enumerate(pairs)]
            width *= 2
        return 0.0 if not nodes or nodes[0] is None else nodes[0]

    def _join(self, nodes: Sequence[float | None], k: int) -> float | None:
        present = [node for node in nodes if node is not None]
        if len(present) == 2:
            return self._add(present[0], present[1], k)
        return present[0] if present else None

    def _compensated(self, terms: Sequence[RealTerm], total: float) -> float:
        """Kahan's sum; x - y is x + (-y), zeros included."""
        correction = 0.0
        for k, value in terms:
            if value is not None:
                addend = self._add(-correction, value, k)
                following = self._add(total, addend, k)
                gained = self._add(following, -total, k)
                correction = self._add(gained, -addend, k)
                total = following
        return total

    def _aligned(self, terms: Sequence[Term], total: float) -> float:
        """round(total + the products of a block) for every block, all cut to a common place, added
        exactly, or as a matrix core of AMD adds them.

        With operands the blocks of a run may take turns.
        """
        acc = self.acc
        run = acc.turns * (acc.block or 1)
        for start in range(0, len(terms), run):
            for turn in range(acc.turns):
                places = enumerate(terms[start : start + run])
                block = [term for i, term in places if acc.turn_of(i) == turn]
                if any(value is not None for _, value in block):
                    total = self._round(self._block_sum(total, block), block[0][0])
                    # With operands every zero is +0, also one that a tiny sum was rounded to.
                    total = total if acc.operands is None else total or 0.0
        return total

    def _block_sum(self, total: float, block: Sequence[Term]) -> Real:
        """The sum of the total and the products of a block before it is rounded."""
        acc = self.acc
        terms = [None if p is None else self._factored(p, k) for k, p in block]
        if acc.has_core:
            return block_of_core(total, terms, acc)
        factored = [p for p in terms if p is not None]
        values = [total, *(p.value for p in factored)]
        exact = without_rounding(values)
        if not isinstance(exact, Fraction):
            return exact
        # Each is cut at a place below the largest.
        if isinstance(acc.fmt, FloatFormat) and acc.operands is not None:
            exponents = [p.exponent for p in factored if p.exponent is not None]
            exponents += [_exponent(Fraction(total), acc.fmt)] if total else []
        else:
            exponents = [floor_log2(abs(Fraction(v))) for v in values if v]
        if acc.least_exponent is not None:
            exponents.append(acc.least_exponent)
        unit = Fraction(2) ** (max(exponents, default=0) - (acc.aligned_bits or 0))
        # int() drops the fraction: toward zero.
        cut = [int(Fraction(v) / unit) * unit for v in values]
        return sum(cut, Fraction(0)) or zero_of(values, acc.rounding)

    def _factored(self, p: Summand, k: int) -> Factored:
        """The product at position k, rounded if there is a format of products."""
        return p if isinstance(p, Factored) else Factored(self._product(p, k))


def accumulate(
    products: Sequence[Summand | None],
    acc: Accumulator,
    *,
    seed: int = 0,
    row: int = 0,
    col: int = 0,
    bias: float | None = None,
    initial: float | None = None,
) -> float:
    """One output element: the products in order, summed as ``acc`` says.

    Without a chunk: one sum, see Output.sum. With one: such a sum over every ``acc.chunk``
    positions (the last may be short), each then added to an accumulator in ``acc.outer`` that
    starts at +0. The bias is one more addition in the outermost accumulator. Draws are keyed
    (seed, site, row, col, k); for a chunk k is its index.

    Args:
        products: exact products, see product(), with operands summand(); None where a tap falls on
            padding or between strides: it adds nothing, but its position counts.
        acc: any order but "native". seed: already derived for its role. row, col: the output's key.
        initial: where the outermost sum starts, rounded to its format first; None: +0. A tree that
            is the result has no such place.
    """
    out = Output(acc, seed, row, col)
    terms = list(enumerate(products))
    total = 0.0 if initial is None else out.initial(initial)
    if acc.chunk is None:
        total = out.sum(terms, total)
    else:
        assert isinstance(acc.chunk, int)
        for index, start in enumerate(range(0, len(terms), acc.chunk)):
            partial = out.sum(terms[start : start + acc.chunk])
            total = out.add_outermost(total, partial, SITE_OUTER, index)
    return total if bias is None else out.add_outermost(total, bias, SITE_BIAS, 0)


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
    batch = Batch.of(a, b)
    left, right = (batch.matrices(x).tolist() for x in (a, b))
    out, starts = np.zeros(batch.shape), batch.starts(initial)
    biases = [None] * batch.cols if bias is None else widen(bias).tolist()
    for i, m, n in np.ndindex(out.shape):
        terms = [summand(left[i][m][k], right[i][k][n], acc) for k in range(batch.length)]
        start = None if starts is None else float(starts[i, m, n])
        key = {"seed": seed, "row": i * batch.rows + m, "col": n}
        out[i, m, n] = accumulate(terms, acc, **key, bias=biases[n], initial=start)
    return batch.result(out)
