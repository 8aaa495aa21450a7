"""The operator of the ranges that layers keep: the ends of a tensor's finite values, and their
average."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lpkernels.ops._operator import define, is_direct, refuse_mapped, without_grad

_INFINITY = float("inf")


def finite_range(x: Tensor) -> Tensor:
    """(lowest, highest) of the finite values of x as (2,) float32; (inf, -inf) if there is none."""
    x = without_grad(x)
    if not x.numel():
        return x.new_tensor([_INFINITY, -_INFINITY], dtype=torch.float32)
    # Reading the flag would wait for another device; such a device looks at every value instead.
    if is_direct(x) and x.is_cpu:
        ends = torch.stack(torch.aminmax(x)).float()
        if ends.isfinite().all():
            return ends
    finite = x.isfinite()
    low, high = torch.where(finite, x, _INFINITY), torch.where(finite, x, -_INFINITY)
    return torch.stack([low.amin(), high.amax()]).float()


def _updated_range(a: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, average, weight, momentum = a
    ends = finite_range(x)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        ends[1].neg_()
        dist.all_reduce(ends, dist.ReduceOp.MIN)
        ends[1].neg_()
    # Where no value is finite there is no range to learn of.
    seen = ends[0] <= ends[1]
    new_average = torch.where(seen, average * momentum + ends * (1 - momentum), average)
    return ends, new_average, torch.where(seen, weight * momentum + (1 - momentum), weight)


# Compilers would contract the products and sums of an average.
_update_range = define(
    "_update_range(x, Tensor average, Tensor weight, float momentum) -> (Tensor, Tensor, Tensor)",
    lambda a: (
        a.x.new_empty(2, dtype=torch.float32), torch.empty_like(a.average),
        torch.empty_like(a.weight),
    ),
    _updated_range,
)  # fmt: skip


def update_range(x: Tensor, average: Tensor, weight: Tensor, momentum: float) -> Tensor:
    """`finite_range` of x, or of the x of all ranks where torch.distributed is initialised. It is
    taken into the average range (2,) and its weight (), unless no value is finite."""
    refuse_mapped(x, average, weight)
    ends, new_average, new_weight = _update_range(without_grad(x), average, weight, momentum)
    average.copy_(new_average)
    weight.copy_(new_weight)
    return ends


def largest(x: Tensor) -> Tensor:
    """The largest magnitude of a tensor's values, 0-d float32: NaN if one is NaN, 0 of none."""
    if not x.numel():
        return x.new_zeros((), dtype=torch.float32)
    low, high = torch.aminmax(x)
    return torch.maximum(low.abs(), high.abs()).float()
