"""Emulated sums of many outputs at once, k by k, with chunks, bias and draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Accumulator
from lpkernels.reference.aligned import Aligned, Exponents, exponents_of
from lpkernels.reference.orders import InnerSum, Integers, Pairwise, Present, Rounds, inner_sum
from lpkernels.reference.values import Float64, widen
from lpkernels.rng import SITE_BIAS, SITE_OUTER

# The products of one k, which of them are present, and, where the accumulator aligns by operands,
# the exponents of their factors.
Product = tuple[Float64, Present] | tuple[Float64, Present, Exponents]


class Sums:
    """Running sums of many outputs in one Accumulator, fed the products of one k after another.

    inner: adds the products of one sum; None: the plain sums of the accumulator's order.
    """

    def __init__(self, shape: tuple[int, ...], rounds: Rounds, inner: InnerSum | None = None):
        self.acc, self.rounds = rounds.acc, rounds
        plain = inner_sum if self.acc.block is None else Aligned
        self.inner = plain(rounds, shape) if inner is None else inner
        # Sums by scale are closed by `scaled_products`, which knows where a scale changes.
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
            cast(Any, self.inner).total = total

    def push(self, product: Float64, present: Present, exponents: Exponents | None = None) -> None:
        """One exact product for every output; where ``present`` is False it only counts.

        exponents: the sum of its factors' exponents, for an accumulator with operands.
        """
        if present is None or present.any():
            product = self.rounds.product(product, self.k)
        if isinstance(self.inner, Aligned):
            self.inner.push(product, present, self.k, exponents)
        else:
            self.inner.push(product, present, self.k)
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
        products: for every k the float64 products, broadcastable to ``shape``, which are present
            (None: all) and, for an accumulator with operands, the exponents of their factors
            together, `exponents_of` both.
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
        sums.push(*product)
    return sums.result(None if bias is None else widen(bias))


def accumulate_tile(
    left: Float64,
    right: Float64,
    present: Present,
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
        present: (P, M) with P dividing K, row k % P saying which rows of the output have tap k;
            None: all.
    """
    groups, length, rows = left.shape
    exponents = None
    if acc.operands is not None:
        exponents = exponents_of(left, acc.operands[0]), exponents_of(right, acc.operands[1])

    def products() -> Iterator[Product]:
        for k in range(length):
            with np.errstate(invalid="ignore"):
                product = left[:, k, :, None] * right[:, k, None, :]
            here = None if present is None else present[k % len(present)][:, None]
            if exponents is None:
                yield product, here
            else:
                yield product, here, exponents[0][:, k, :, None] + exponents[1][:, k, None, :]

    shape = (groups, rows, right.shape[2])
    return accumulate(
        products(), shape, acc, seed=seed, row=row, col=col, bias=bias, initial=initial
    )


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
