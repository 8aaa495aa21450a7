"""Shapes of products whose leading dimensions broadcast."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import ops


def one_sum(left: Tensor, right: Tensor, target: torch.Size) -> tuple[Tensor, Tensor]:
    """Two factors. Their product, reshaped to target, is left @ right, summed over the dimensions
    in which target was broadcast.

    These dimensions move, in order, in front of the summed axis and become one with it. Views where
    the strides allow it.
    """
    batch = ops.broadcast_batch(left, right)
    dims = len(batch)
    padded = (1,) * (dims + 2 - len(target)) + tuple(target)
    summed = [i for i in range(dims) if padded[i] != batch[i]]
    if not summed:
        return left, right
    kept = [i for i in range(dims) if i not in summed]
    left = left.reshape((1,) * (dims + 2 - left.dim()) + left.shape)
    right = right.reshape((1,) * (dims + 2 - right.dim()) + right.shape)
    left = left.permute(*kept, dims, *summed, dims + 1).flatten(len(kept) + 1)
    right = right.permute(*kept, *summed, dims, dims + 1).flatten(len(kept), -2)
    return left, right


def result_shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    if a.dim() == 0 or b.dim() == 0:
        raise ValueError(
            f"matmul: a has shape {tuple(a.shape)} and b {tuple(b.shape)}; both need at least one "
            "dimension; "
            "for a product with a scalar use *"
        )
    left, right = a.shape, b.shape
    if len(left) == len(right) == 2 and left[1] == right[0]:
        return (left[0], right[1])
    inner = b.shape[-2] if b.dim() > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError(
            f"matmul: a has K={a.shape[-1]} but b has K={inner} (shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}); "
            "a must be (..., M, K) and b (..., K, N)"
        )
    try:
        batch = ops.broadcast_batch(a, b)
    except RuntimeError:
        raise ValueError(
            f"matmul: the leading dimensions {tuple(a.shape[:-2])} of a and {tuple(b.shape[:-2])} "
            "of b do not "
            "broadcast; each pair must be equal or one of them 1"
        ) from None
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.dim() > 1 else ()))
