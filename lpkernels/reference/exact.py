"""The definition of right results: every output is computed by itself, in order, in exact rational
numbers.

A finite non-zero number is a Fraction, so a product or a sum is never rounded except where the
Accumulator says so. Zeros, infinities and NaN are floats, because rationals have no -0, no infinity
and no NaN. Loops are allowed here, speed is not a goal; the vectorised twin is compared with this
file. Convolutions and products of scaled operands are sums of the same kind: tests gather their
operands, or their segments, and compare the twin with the sums of exact_sums.py.
"""

from __future__ import annotations

import math

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.reference.exact_quantize import quantize
from lpkernels.reference.exact_sums import accumulate, add, product, summand
from lpkernels.reference.values import Float32, matrices, narrow, widen

__all__ = ["accumulate", "add", "matmul", "product", "quantize", "summand"]


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
    left, right = (matrices(x, lead).tolist() for x in (a, b))
    out = np.zeros((math.prod(lead), rows, cols))
    biases = [None] * cols if bias is None else widen(bias).tolist()
    starts = None
    if initial is not None:
        starts = np.broadcast_to(widen(initial), (*lead, rows, cols)).reshape(out.shape).tolist()
    for i, m, n in np.ndindex(out.shape):
        terms = [summand(left[i][m][k], right[i][k][n], acc) for k in range(length)]
        start = None if starts is None else starts[i][m][n]
        key = {"seed": seed, "row": i * rows + m, "col": n}
        out[i, m, n] = accumulate(terms, acc, **key, bias=biases[n], initial=start)
    return narrow(out.reshape(*lead, rows, cols))
