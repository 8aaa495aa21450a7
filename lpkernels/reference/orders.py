"""One sum of products of many outputs at once, in each order an Accumulator knows.

docs/contract.md has the rules, exact_sums.py the same one output at a time.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lpkernels import rng
from lpkernels.arithmetic import Accumulator
from lpkernels.formats import Number
from lpkernels.reference.addition import add, add_products
from lpkernels.reference.values import Float64
from lpkernels.rng import SITE_BIAS, SITE_PRODUCT, SITE_SUM
from lpkernels.rounding import round_array

Integers = NDArray[np.integer]
# Which outputs have a product; None: all.
Present = NDArray[np.bool_] | None
Draws = NDArray[np.uint32] | None


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
        bits = self.draws(rounding, site, k)
        return round_array(
            exact, fmt, rounding, draws=bits, random_bits=self.acc.random_bits, **how
        )

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
        """total, a value of the inner accumulator, plus a product or another value of it."""
        acc = self.acc
        bits = self.draws(acc.rounding, SITE_SUM, k)
        return add(total, addend, acc.fmt, acc.rounding, draws=bits, random_bits=acc.random_bits)

    def add_products(self, left: Float64, right: Float64, k: int) -> Float64:
        acc = self.acc
        bits = self.draws(acc.rounding, SITE_SUM, k)
        return add_products(
            left, right, acc.fmt, acc.rounding, draws=bits, random_bits=acc.random_bits
        )

    def add_outermost(self, total: Float64, addend: Float64, site: int, k: int) -> Float64:
        acc, rounding = self.acc, self.acc.outermost_rounding
        bits = self.draws(rounding, site, k)
        return add(total, addend, acc.outermost, rounding, draws=bits, random_bits=acc.random_bits)


class InnerSum(Protocol):
    """One sum of every output: of a chunk, or of all of K.

    All but trees hold the sum so far as ``total``.
    """

    def push(self, product: Float64, present: Present, k: int) -> None:
        """The products at position k, rounded already; absent ones only count."""
        ...

    def take(self) -> Float64:
        """The sums; the next ones start at +0."""
        ...


def inner_sum(rounds: Rounds, shape: tuple[int, ...]) -> InnerSum:
    """Steps of products one by one; `aligned.py` has the steps of blocks."""
    acc = rounds.acc
    if acc.order == "pairwise":
        return Pairwise(rounds, shape)
    if acc.order == "compensated":
        return Compensated(rounds, shape)
    return Sequential(rounds, shape)


class Sequential:
    """total = round(total + p), product by product."""

    def __init__(self, rounds: Rounds, shape: tuple[int, ...]):
        self.rounds = rounds
        self.total: Float64 = np.zeros(shape)

    def push(self, product: Float64, present: Present, k: int) -> None:
        if present is not None and not present.any():
            return
        total = self.rounds.add(self.total, product, k)
        self.total = total if present is None else np.where(present, total, self.total)

    def take(self) -> Float64:
        total, self.total = self.total, np.zeros_like(self.total)
        return total


# A node of the tree: its values, and which outputs have any.
Node = tuple[Float64, Present]


class Pairwise:
    """A binary tree over the positions, as a binary counter: the left half of a node waits."""

    def __init__(self, rounds: Rounds, shape: tuple[int, ...]):
        self.rounds, self.shape = rounds, shape
        self._start(0)

    def _start(self, first: int) -> None:
        # waiting[level] covers 2^level positions; the bits of count say which there are.
        self.waiting: dict[int, Node] = {}
        self.first, self.count = first, 0

    def push(self, product: Float64, present: Present, k: int) -> None:
        if self.count == 0:
            self._start(k)
        node: Node = (np.broadcast_to(product, self.shape), present)
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
        if node is None:
            return np.zeros(self.shape)
        return np.where(mask(node[1]), node[0], 0.0)

    def _join(self, level: int, right: Node | None) -> Node:
        """The sum of the node that waits at a level and the one right of it, if there is one."""
        left = self.waiting.pop(level)
        # The key of a node is the position where its right half begins.
        k = self.first + (self.count >> level << level)
        if level == 0:
            return self._leaf(left, right, k)
        if right is None:
            return left
        (a, in_a), (b, in_b) = left, right
        return self._either(self.rounds.add(a, b, k), a, in_a, b, in_b)

    def _leaf(self, left: Node, right: Node | None, k: int) -> Node:
        (a, in_a), (b, in_b) = left, right or (np.zeros(self.shape), np.zeros((), dtype=bool))
        both, zero = self.rounds.add_products(a, b, k), np.zeros(self.shape)
        if in_a is None and in_b is None:
            return both, None
        return self._either(
            both, self.rounds.add(zero, a, k), in_a, self.rounds.add(zero, b, k), in_b
        )

    @staticmethod
    def _either(both: Float64, a: Float64, in_a: Present, b: Float64, in_b: Present) -> Node:
        if in_a is None and in_b is None:
            return both, None
        has_a, has_b = mask(in_a), mask(in_b)
        return np.where(has_a & has_b, both, np.where(has_a, a, b)), has_a | has_b


def mask(present: Present) -> NDArray[np.bool_]:
    return np.ones((), dtype=bool) if present is None else present


class Compensated:
    """Kahan's sum: the error of each addition is taken from the next product."""

    def __init__(self, rounds: Rounds, shape: tuple[int, ...]):
        self.rounds = rounds
        self.total: Float64 = np.zeros(shape)
        self.correction: Float64 = np.zeros(shape)

    def push(self, product: Float64, present: Present, k: int) -> None:
        if present is not None and not present.any():
            return
        add = self.rounds.add
        addend = add(-self.correction, product, k)
        total = add(self.total, addend, k)
        correction = add(add(total, -self.total, k), -addend, k)
        here = mask(present)
        self.total = np.where(here, total, self.total)
        self.correction = np.where(here, correction, self.correction)

    def take(self) -> Float64:
        total = self.total
        self.total, self.correction = np.zeros_like(total), np.zeros_like(total)
        return total
