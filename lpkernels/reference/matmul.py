"""Matrix products, every output rounded step by step, k = 0..K-1 in order: of plain operands, and
of codes whose scales enter the outer sum or every block.

docs/contract.md, "Products of scaled operands" and "Groups with scales".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.reference.sums import (
    Product,
    Rounds,
    Sums,
    accumulate,
    accumulate_tile,
    exponents_from,
    factor_exponents,
    products_of,
    tiles,
)
from lpkernels.reference.values import Batch, Float32, Float64, narrow, product_to_odd, widen
from lpkernels.rng import SITE_OUTER

_NO_KEY = np.zeros((), np.int64)


def matmul(
    a: Float32,
    b: Float32,
    bias: Float32 | None,
    acc: Accumulator,
    *,
    seed: int = 0,
    initial: Float32 | None = None,
) -> Float32:
    """a @ b + bias in the accumulator.

    Args:
        a: (..., M, K) float32. b: (..., K, N) float32; leading dimensions broadcast as in
            torch.matmul.
        bias: (N,) float32, added last in the outermost accumulator, or None.
        acc: any order but "native". seed: already derived; used by stochastic modes only.
        initial: broadcastable to the result, where the outermost sum starts, or None: +0. Not with
            a tree without chunks.
    Returns: (..., M, N) float32. Draws are keyed (batch * M + m, n, k). K = 0 gives +0, or initial
        in the outermost format (plus the bias).
    """
    batch = Batch.of(a, b)
    count, rows, cols = batch.shape
    shared = math.prod(b.shape[:-2]) == 1
    if shared:
        # One right operand for all: the batch is more rows, with the same keys.
        count, rows = 1, count * rows
    right = widen(b.reshape(1, *b.shape[-2:])) if shared else batch.matrices(b)
    left = np.broadcast_to(a, (*batch.lead, *a.shape[-2:])).reshape(count, rows, batch.length)
    out, starts = np.empty((count, rows, cols)), batch.starts(initial)
    starts = None if starts is None else starts.reshape(out.shape)
    keys = np.arange(count * rows).reshape(count, rows, 1)
    for tile in tiles(*out.shape, batch.length):
        out[:, tile] = accumulate_tile(
            widen(np.swapaxes(left[:, tile], 1, 2)), right, None, acc, seed=seed,
            row=keys[:, tile], col=np.arange(cols), bias=bias,
            initial=None if starts is None else starts[:, tile],
        )  # fmt: skip
    return batch.result(out)


class Scales(NamedTuple):
    """The scales of both operands of a product a (..., M, K) @ b (..., K, N), float32.

    left: (..., M, segments of a), the scale of every `left_size` products of a row; right:
    (..., N, segments of b) of a column. A size of 0 means one segment. float32: whether a scale is
    of the format fp32, so that products of scales are rounded. least: the least exponent that a
    scale of a group counts with.
    """

    left: Float32
    right: Float32
    left_size: int
    right_size: int
    float32: bool
    least: int = -127

    def at(self, k: int) -> tuple[int, int]:
        """The segments of both sides that have position k."""
        return (
            k // self.left_size if self.left_size else 0,
            k // self.right_size if self.right_size else 0,
        )


def segments(length: int, *sizes: int) -> Iterator[tuple[int, int]]:
    """The stretches of 0 .. length in which no scale changes."""
    cuts = {0, length}.union(*(range(0, length, size) for size in sizes if size))
    yield from itertools.pairwise(sorted(cuts))


def matmul_scaled(
    a: Float32,
    b: Float32,
    scales: Scales,
    acc: Accumulator,
    *,
    seed: int = 0,
    initial: Float32 | None = None,
) -> Float32:
    """a @ b of codes, in an accumulator with chunk="scale" and any order but "native".

    Args:
        a: (..., M, K) float32. b: (..., K, N) float32; leading dimensions broadcast.
        initial: broadcastable to the result, where the outer sum starts.
    Returns: (..., M, N) float32. Draws are keyed (batch * M + m, n, k), of outer sums with the
        number of the segment for k.
    """
    batch = Batch.of(a, b)
    operands = (a, b, scales.left, scales.right)
    left, right, left_scale, right_scale = map(batch.matrices, operands)
    row = np.arange(math.prod(batch.shape[:2])).reshape(*batch.shape[:2], 1)
    rounds = Rounds(acc, seed, row, np.arange(batch.cols))
    sums, starts = Sums(batch.shape, rounds), batch.starts(initial)
    outer = np.zeros(batch.shape) if starts is None else rounds.initial(starts)
    products = products_of(np.swapaxes(left, 1, 2), right, acc)
    with np.errstate(invalid="ignore"):
        cuts = segments(batch.length, scales.left_size, scales.right_size)
        for number, (start, end) in enumerate(cuts):
            for product in itertools.islice(products, end - start):
                sums.push(product)
            at_left, at_right = scales.at(start)
            addend = scaled_sum(
                sums.inner.take(),
                left_scale[:, :, at_left, None],
                right_scale[:, None, :, at_right],
                acc.scale_order if scales.float32 else None,
            )
            outer = rounds.add_outermost(outer, addend, SITE_OUTER, number)
    return batch.result(outer)


def scaled_sum(c: Float64, left: Float64, right: Float64, order: str | None) -> Float64:
    """The sum of a segment times both scales; order: where a product of scales is rounded."""
    if order is None:
        # Of c 24 bits, and of the scales what is left of 53 (`functional.matmul` sees to it).
        return c * (left * right)
    if order == "product":
        return c * widen(_float32(left, right))
    first, second = (left, right) if order == "left" else (right, left)
    return widen(_float32(c, first)) * second


def _float32(x: Float64, y: Float64) -> Float32:
    """x * y, of float32 values, rounded to float32."""
    return narrow(product_to_odd(*np.broadcast_arrays(x, y)))


def matmul_grouped(
    a: Float32, b: Float32, scales: Scales, acc: Accumulator, *, initial: Float32 | None = None
) -> Float32:
    """a @ b of codes, in an accumulator with groups, in which no scale changes.

    Args:
        a: (..., M, K) float32. b: (..., K, N) float32; leading dimensions broadcast.
        initial: broadcastable to the result, where the sum starts.
    Returns: (..., M, N) float32.
    """
    batch, group = Batch.of(a, b), acc.group
    operands = (a, b, scales.left, scales.right)
    left, right, left_scale, right_scale = map(batch.matrices, operands)
    factors = factor_exponents(left, right, acc)
    assert group is not None and acc.block is not None and factors is not None

    def sums() -> Iterator[Product]:
        for k in range(0, batch.length, group):
            at_left, at_right = scales.at(k)
            x, y = left_scale[:, :, at_left, None], right_scale[:, None, :, at_right]
            exponents = exponents_from(x, scales.least) + exponents_from(y, scales.least)
            if group == 1:
                exponents = exponents + factors[0][:, :, k, None] + factors[1][:, k, None, :]
            with np.errstate(invalid="ignore"):
                # Codes of few bits: exact in any order.
                total = (left[:, :, k : k + group] @ right[:, k : k + group]) * (x * y)
            yield Product(total, exponents=exponents)

    unit = replace(acc, group=None, block=acc.block // group)
    starts = batch.starts(initial)
    total = accumulate(sums(), batch.shape, unit, row=_NO_KEY, col=_NO_KEY, initial=starts)
    return batch.result(total)
