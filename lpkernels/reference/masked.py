"""Gradients of a matrix product without the products that its sums lost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Accumulator
from lpkernels.reference.events import OVERFLOWED, SWAMPED, Bits, Events, Mask, matmul_events
from lpkernels.reference.values import Float32, widen


def passing(found: Events, chunk: int | None, bits: int, recursive: bool) -> Mask:
    """Which products (M, K, N) pass a gradient: neither the product nor its chunk's addition has
    one of the bits. recursive: an overflow also stops the products before it in the same sum.
    """
    if found.products is None:
        raise ValueError("passing: the events were found without bits")
    products, chunks = found.products, found.chunks
    if recursive and bits & OVERFLOWED:
        products = products.copy()
        for start in range(0, products.shape[1], chunk or products.shape[1]):
            part = products[:, start : start + (chunk or products.shape[1])]
            part |= _before(part)
        chunks = None if chunks is None else chunks | _before(chunks)
    lost = (products & bits) != 0
    if chunks is not None and chunk is not None:
        lost |= np.repeat((chunks & bits) != 0, chunk, axis=1)[:, : products.shape[1]]
    return ~lost


def _before(bits: Bits) -> Bits:
    """OVERFLOWED where an overflow came at the step or after it."""
    over = np.flip(bits & OVERFLOWED, 1)
    return np.flip(np.maximum.accumulate(over, axis=1), 1)


def masked_gradients(
    a: Float32,
    b: Float32,
    g: Float32,
    acc: Accumulator,
    *,
    seed: int = 0,
    row: NDArray[np.integer] | None = None,
    first_col: int = 0,
    bits: int = SWAMPED | OVERFLOWED,
    recursive: bool = False,
) -> tuple[Float32, Float32]:
    """The gradients of a (M, K) and b (K, N) by g (M, N) from the products of `passing`.

    Sums in float64, rounded to float32. The rest as in `matmul_events`.
    """
    found = matmul_events(a, b, acc, seed=seed, row=row, first_col=first_col, bits=True)
    passed = np.where(passing(found, acc.chunk_length, bits, recursive), widen(g)[:, None, :], 0.0)
    left = np.einsum("mkn,kn->mk", passed, widen(b))
    right = np.einsum("mkn,mk->kn", passed, widen(a))
    return left.astype(np.float32), right.astype(np.float32)
