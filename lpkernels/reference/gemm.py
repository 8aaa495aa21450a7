"""Matrix products, every output rounded step by step, k = 0..K-1 in order."""

from __future__ import annotations

import math

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.reference.sums import accumulate_tile, tiles
from lpkernels.reference.values import Float32, narrow, widen


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
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, length, cols = a.shape[-2], a.shape[-1], b.shape[-1]
    batch = math.prod(lead)
    left = np.broadcast_to(a, (*lead, rows, length)).reshape(batch, rows, length)
    if math.prod(b.shape[:-2]) == 1:
        # One right operand for all: the batch is more rows, with the same keys.
        left, right = left.reshape(1, batch * rows, length), b.reshape(1, length, cols)
    else:
        right = np.broadcast_to(b, (*lead, length, cols)).reshape(batch, length, cols)
    groups, group_rows = left.shape[:2]
    wide_right = widen(right)
    out = np.empty((groups, group_rows, cols), dtype=np.float32)
    starts = None
    if initial is not None:
        starts = np.broadcast_to(initial, (*lead, rows, cols)).reshape(out.shape)
    for tile in tiles(groups, group_rows, cols, length):
        row = (
            np.arange(groups)[:, None, None] * group_rows
            + np.arange(tile.start, tile.stop)[:, None]
        )
        wide_left = widen(np.swapaxes(left[:, tile], 1, 2))
        total = accumulate_tile(
            wide_left,
            wide_right,
            None,
            acc,
            seed=seed,
            row=row,
            col=np.arange(cols),
            bias=bias,
            initial=None if starts is None else starts[:, tile],
        )
        out[:, tile] = narrow(total)
    return out.reshape(*lead, rows, cols)
