"""Emulated sums of many outputs at once, k by k, in each order an Accumulator knows.

docs/contract.md has the rules, exact.py the same one output at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpkernels import rng
from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FloatFormat, Number
from lpkernels.reference.addition import add
from lpkernels.reference.cores import Factored, block_of_core, flushed
from lpkernels.reference.values import Float64, widen
from lpkernels.rng import SITE_BIAS, SITE_OUTER, SITE_PRODUCT, SITE_SUM
from lpkernels.rounding import odd_double, round_array

Integers = NDArray[np.integer]
# Which outputs have a product: an array that broadcasts to their shape.
Present = NDArray[np.bool_]
Exponents = NDArray[np.int32]
Draws = NDArray[np.uint32] | None

ALL: Present = np.ones((), dtype=bool)


class Product(NamedTuple):
    """The products of one k, which broadcast to the outputs' shape.

    values: exact, or rounded to the format of products. present: which outputs have one; the others
    only count. exponents: of both factors together, for an accumulator with operands.
    """

    values: Float64
    present: Present = ALL
    exponents: Exponents | None = None


class Rounds:
    """The roundings of one Accumulator, with the draws of the outputs' keys.

    ``row`` and ``col`` are integer arrays that broadcast to the shape of the outputs.
    """

    def __init__(self, acc: Accumulator, seed: int, row: Integers, col: Integers):
        self.acc, self.seed, self.row, self.col = acc, seed, row, col

    def draws(self, rounding: str, site: int, k: int) -> Draws:
        if rounding != "stochastic":
            return None
        acc = self.acc
        return rng.draws(self.seed, site, self.row, self.col, k, acc.random_bits, acc.rng)

    def _rounded(
        self, exact: Float64, fmt: Number, rounding: str, site: int, k: int, **how: bool
    ) -> Float64:
        draws, bits = self.draws(rounding, site, k), self.acc.random_bits
        return round_array(exact, fmt, rounding, draws=draws, random_bits=bits, **how)

    def product(self, exact: Float64, k: int) -> Float64:
        acc = self.acc
        if acc.product is None:
            return exact
        return self._rounded(exact, acc.product, acc.product_rounding, SITE_PRODUCT, k)

    def round(self, exact: Float64, k: int) -> Float64:
        """A sum that float64 holds, in the inner accumulator."""
        how = {"always_overflows": self.acc.operands is not None}
        return self._rounded(exact, self.acc.fmt, self.acc.rounding, SITE_SUM, k, **how)

    def initial(self, values: Float64) -> Float64:
        """values rounded as the start of the outermost sum; the draws come behind the bias's."""
        acc = self.acc
        return self._rounded(values, acc.outermost, acc.outermost_rounding, SITE_BIAS, 1)

    def add(self, total: Float64, addend: Float64, k: int) -> Float64:
        """total + addend in the inner accumulator: values of it, or exact products."""
        acc = self.acc
        return self._added(total, addend, acc.fmt, acc.rounding, SITE_SUM, k)

    def add_outermost(self, total: Float64, addend: Float64, site: int, k: int) -> Float64:
        acc = self.acc
        return self._added(total, addend, acc.outermost, acc.outermost_rounding, site, k)

    def _added(
        self, left: Float64, right: Float64, fmt: Number, rounding: str, site: int, k: int
    ) -> Float64:
        draws, bits = self.draws(rounding, site, k), self.acc.random_bits
        return add(left, right, fmt, rounding, draws=draws, random_bits=bits)


class Sequential:
    """One sum of every output, of a chunk or of all of K: total = round(total + p), product by
    product. Other orders are its subclasses; all but trees hold the sum so far as ``total``."""

    def __init__(self, rounds: Rounds, shape: tuple[int, ...]):
        self.rounds, self.acc, self.shape = rounds, rounds.acc, shape
        self.total: Float64 = np.zeros(shape)

    def push(self, product: Product, k: int) -> None:
        """Adds the products at position k, which are rounded already."""
        if product.present.any():
            total = self.rounds.add(self.total, product.values, k)
            self.total = np.where(product.present, total, self.total)

    def take(self) -> Float64:
        """The sums; the next ones start at +0."""
        total, self.total = self.total, np.zeros(self.shape)
        return total


# A node of a tree: its values, and which outputs have any.
Node = tuple[Float64, Present]


class Pairwise(Sequential):
    """A binary tree over the positions, as a binary counter: the left half of a node waits."""

    def __init__(self, rounds: Rounds, shape: tuple[int, ...]):
        super().__init__(rounds, shape)
        self._start(0)

    def _start(self, first: int) -> None:
        # waiting[level] covers 2^level positions; the bits of count say which there are.
        self.waiting: dict[int, Node] = {}
        self.first, self.count = first, 0

    def push(self, product: Product, k: int) -> None:
        if self.count == 0:
            self._start(k)
        node: Node = (np.broadcast_to(product.values, self.shape), product.present)
        level = 0
        while level in self.waiting:
            node = self._join(level, node)
            level += 1
        self.waiting[level] = node
        self.count += 1

    def take(self) -> Float64:
        node: Node | None = None
        for level in sorted(self.waiting):
            node = self._join(level, node)
        self._start(0)
        return np.zeros(self.shape) if node is None else np.where(node[1], node[0], 0.0)

    def _join(self, level: int, right: Node | None) -> Node:
        """The sum of the node that waits at a level and the one right of it, if there is one."""
        (a, in_a), (b, in_b) = self.waiting.pop(level), right or (np.zeros(self.shape), ~ALL)
        # The key of a node is the position where its right half begins.
        k = self.first + (self.count >> level << level)
        both = a if level > 0 and right is None else self.rounds.add(a, b, k)
        if level == 0 and not (in_a & in_b).all():
            # A product without a neighbour is rounded alone.
            a, b = (self.rounds.add(np.zeros(self.shape), alone, k) for alone in (a, b))
        return np.where(in_a & in_b, both, np.where(in_a, a, b)), in_a | in_b


class Compensated(Sequential):
    """Kahan's sum: the error of each addition is taken from the next product."""

    def __init__(self, rounds: Rounds, shape: tuple[int, ...]):
        super().__init__(rounds, shape)
        self.correction: Float64 = np.zeros(shape)

    def push(self, product: Product, k: int) -> None:
        add, present = self.rounds.add, product.present
        if not present.any():
            return
        addend = add(-self.correction, product.values, k)
        total = add(self.total, addend, k)
        correction = add(add(total, -self.total, k), -addend, k)
        self.total = np.where(present, total, self.total)
        self.correction = np.where(present, correction, self.correction)

    def take(self) -> Float64:
        self.correction = np.zeros(self.shape)
        return super().take()


# _ABSENT is the exponent of a zero, an infinity and NaN: added to any other exponent it stays below
# _NONE.
_ABSENT = -(1 << 20)
_NONE = _ABSENT // 2
# Below the exponent of every float64.
_LEAST = -(1 << 11)


def exponents_from(x: Float64, least: int) -> Exponents:
    """floor(log2 |x|), at least `least`; far below that where x is zero or not finite."""
    counts = (x != 0) & np.isfinite(x)
    exponent = np.maximum(np.frexp(np.where(counts, x, 1.0))[1] - 1, least)
    return np.where(counts, exponent, _ABSENT).astype(np.int32)


def factor_exponents(
    left: Float64, right: Float64, acc: Accumulator
) -> tuple[Exponents, Exponents] | None:
    """The exponents by which an accumulator with operands aligns: those of both sides, at least the
    exponent of the least normal value of the side's format."""
    if acc.operands is None:
        return None
    x, y = acc.operands
    return exponents_from(left, x.emin), exponents_from(right, y.emin)


class Aligned(Sequential):
    """total = round(total + the products of a block), all cut to a common place first, as in tensor
    cores, added exactly, or as a matrix core of AMD adds them.

    With operands the blocks of a run take turns, and every zero is +0.
    """

    def __init__(self, rounds: Rounds, shape: tuple[int, ...]):
        super().__init__(rounds, shape)
        fmt, by_operands = self.acc.fmt, self.acc.operands is not None
        self.least = fmt.emin if by_operands and isinstance(fmt, FloatFormat) else _LEAST
        self.run = self.acc.turns * (self.acc.block or 1)
        self.terms: list[Product] = []
        self.first = 0

    def push(self, product: Product, k: int) -> None:
        if not self.terms:
            self.first = k
        if product.exponents is None:
            product = product._replace(exponents=exponents_from(product.values, _LEAST))
        self.terms.append(product)
        if len(self.terms) == self.run:
            self._close_run()

    def take(self) -> Float64:
        self._close_run()
        return super().take()

    def _close_run(self) -> None:
        turn_of, add = self.acc.turn_of, self._add_in_core if self.acc.has_core else self._sum
        for turn in range(self.acc.turns):
            block = [term for i, term in enumerate(self.terms) if turn_of(i) == turn]
            filled = ~ALL
            for term in block:
                filled = filled | term.present
            if filled.any():
                total = self.rounds.round(add(block), self.first + 2 * turn)
                if self.acc.operands is not None:
                    # Also a zero that a tiny sum was rounded to.
                    total = np.where(total == 0, 0.0, total)
                self.total = np.where(filled, total, self.total)
        self.terms = []

    def _add_in_core(self, block: list[Product]) -> Float64:
        """The exact sums made odd, one output after the other: the rule is written once."""
        sums = np.empty(self.shape)
        columns = [
            [np.broadcast_to(x, self.shape) for x in (p.present, p.values, p.exponents)]  # type: ignore[arg-type]
            for p in block
        ]
        for at in np.ndindex(self.shape):
            terms = [
                Factored(float(value[at]), int(exponent[at]) if value[at] else None)
                if present[at]
                else None
                for present, value, exponent in columns
            ]
            sums[at] = odd_double(block_of_core(float(self.total[at]), terms, self.acc))
        return sums

    def _sum(self, terms: list[Product]) -> Float64:
        """Exact: at most 257 integers of 43 bits. -0 adds nothing, not even a sign."""
        # The largest exponent of the total and of the products that are there.
        exponent = exponents_from(self.total, self.least)
        for term in terms:
            assert term.exponents is not None
            exponent = np.maximum(exponent, np.where(term.present, term.exponents, _ABSENT))
        if self.acc.least_exponent is not None:
            exponent = np.maximum(exponent, self.acc.least_exponent)
        place = np.where(exponent < _NONE, 0, exponent) - (self.acc.aligned_bits or 0)
        total, negative = np.trunc(np.ldexp(self.total, -place)), np.signbit(self.total)
        with np.errstate(invalid="ignore"):
            for product, present, _ in terms:
                total = total + np.where(present, np.trunc(np.ldexp(product, -place)), -0.0)
                negative = negative | (np.signbit(product) & present)
        if self.acc.rounding == "toward_negative":
            total = np.where((total == 0) & negative, -0.0, total)
        return np.ldexp(total, place)


_ORDERS = {"pairwise": Pairwise, "compensated": Compensated}


class Sums:
    """Running sums of many outputs in one Accumulator, fed the products of one k after another.

    inner: adds the products of one sum; None: the plain sums of the accumulator's order.
    """

    def __init__(self, shape: tuple[int, ...], rounds: Rounds, inner: Sequential | None = None):
        self.acc, self.rounds = rounds.acc, rounds
        kind = Aligned if self.acc.block is not None else _ORDERS.get(self.acc.order, Sequential)
        self.inner = kind(rounds, shape) if inner is None else inner
        # Sums by scale are closed by `products`, which knows where a scale changes.
        self.chunk = self.acc.chunk_length
        self.outer: Float64 = np.zeros(shape)
        self.k = 0

    def start(self, initial: Float64) -> None:
        """Sets the start of the outermost sum, rounded to its format, before any product.

        Raises: ValueError: a tree, which has no running sum.
        """
        total = np.broadcast_to(self.rounds.initial(initial), self.outer.shape).copy()
        if self.acc.chunk is not None:
            self.outer = total
        elif isinstance(self.inner, Pairwise):
            raise ValueError("a sum of order 'pairwise' has nothing that could start elsewhere")
        else:
            self.inner.total = total

    def push(self, product: Product) -> None:
        """Adds the next products, which are exact."""
        if product.present.any():
            product = product._replace(values=self.rounds.product(product.values, self.k))
        self.inner.push(product, self.k)
        self.k += 1
        if self.chunk is not None and self.k % self.chunk == 0:
            self._close_chunk()

    def _close_chunk(self) -> None:
        chunk = (self.k - 1) // (self.chunk or 1)
        self.outer = self.rounds.add_outermost(self.outer, self.inner.take(), SITE_OUTER, chunk)

    def result(self, bias: Float64 | None) -> Float64:
        """The sums, the last short chunk and the bias included."""
        if self.chunk is not None and self.k % self.chunk:
            self._close_chunk()
        total = self.inner.take() if self.acc.chunk is None else self.outer
        return total if bias is None else self.rounds.add_outermost(total, bias, SITE_BIAS, 0)


def accumulate(
    products: Iterable[Product],
    shape: tuple[int, ...],
    acc: Accumulator,
    *,
    seed: int = 0,
    row: Integers,
    col: Integers,
    bias: NDArray[np.floating] | None = None,
    initial: NDArray[np.floating] | None = None,
) -> Float64:
    """Sums of exact products, k by k, every output at once: the twin of exact.accumulate.

    Args:
        products: for every k the exact products, with the sum of their two `factor_exponents` for
            an accumulator with operands.
        shape: of the outputs. acc: any order but "native". seed: already derived for its role.
        row, col: the outputs' keys for draws, broadcastable to ``shape``.
        bias: float32 values broadcastable to ``shape``, one more addition in the outermost
            accumulator.
        initial: float32 values broadcastable to ``shape``, where the outermost sum starts.
    Returns: float64 array of ``shape`` holding values of the outermost format.
    """
    sums = Sums(shape, Rounds(acc, seed, row, col))
    if initial is not None:
        sums.start(widen(initial))
    for product in products:
        sums.push(product)
    return sums.result(None if bias is None else widen(bias))


def products_of(
    left: Float64, right: Float64, acc: Accumulator, present: Present | None = None
) -> Iterator[Product]:
    """The exact products left[g, k, m] * right[g, k, n] of every k, for acc.

    present: (P, M) with P dividing K, row k % P saying which m have tap k; None: all.
    """
    exponents = factor_exponents(left, right, acc)
    if acc.operands is not None:
        left, right = flushed(left, acc.operands[0], acc), flushed(right, acc.operands[1], acc)
    for k in range(left.shape[1]):
        with np.errstate(invalid="ignore"):
            values = left[:, k, :, None] * right[:, k, None, :]
        together = None
        if exponents is not None:
            together = exponents[0][:, k, :, None] + exponents[1][:, k, None, :]
        yield Product(
            values, ALL if present is None else present[k % len(present)][:, None], together
        )


def accumulate_tile(
    left: Float64,
    right: Float64,
    present: Present | None,
    acc: Accumulator,
    *,
    seed: int,
    row: Integers,
    col: Integers,
    bias: NDArray[np.floating] | None,
    initial: NDArray[np.floating] | None = None,
) -> Float64:
    """Outputs (G, M, N) of G products of matrices, sum over k of left[g, k, m] * right[g, k, n].

    Args:
        left, right: (G, K, M) and (G, K, N), float32 values in float64.
        present: which rows of the output have a tap, as of `products_of`.
    """
    products = products_of(left, right, acc, present)
    shape = (left.shape[0], left.shape[2], right.shape[2])
    return accumulate(products, shape, acc, seed=seed, row=row, col=col, bias=bias, initial=initial)


# Elements of an output tile: a few arrays of that many float64 fit in a second-level cache. Results
# do not depend on it.
_TILE_OUTPUTS = 1 << 15
# Elements of the gathered operand of a tile.
_TILE_OPERAND = 1 << 23


def tiles(groups: int, rows: int, cols: int, length: int) -> Iterator[slice]:
    """Slices of the rows of outputs (groups, rows, cols), sums of ``length`` terms, per tile."""
    by_outputs = _TILE_OUTPUTS // max(1, groups * cols)
    by_operand = _TILE_OPERAND // max(1, groups * length)
    step = max(1, min(by_outputs, by_operand))
    for start in range(0, rows if groups and cols else 0, step):
        yield slice(start, min(start + step, rows))
