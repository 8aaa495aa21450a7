"""The operators of running ranges: the ends of a tensor's finite values, and their average."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from lpkernels.ops._operator import define, without_grad

_INFINITY = float("inf")


def _ends(x: Tensor) -> Tensor:
    if not x.numel():
        return x.new_tensor([_INFINITY, -_INFINITY], dtype=torch.float32)
    ends = torch.stack(torch.aminmax(x)).float()
    # Reading the flag would wait for another device; such a device looks at every value instead.
    if x.device.type == "cpu" and bool(ends.isfinite().all()):
        return ends
    finite = x.isfinite()
    low, high = torch.where(finite, x, _INFINITY), torch.where(finite, x, -_INFINITY)
    return torch.stack([low.amin(), high.amax()]).float()


def _finite_range_impl(x: Tensor) -> Tensor:
    return _ends(without_grad(x))


def _update_range_impl(x: Tensor, average: Tensor, weight: Tensor, momentum: float) -> Tensor:
    ends = _ends(without_grad(x))
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        ends[1].neg_()
        dist.all_reduce(ends, dist.ReduceOp.MIN)
        ends[1].neg_()
    # Where no value is finite there is no range to learn of.
    seen = ends[0] <= ends[1]
    average.copy_(torch.where(seen, average * momentum + ends * (1 - momentum), average))
    weight.copy_(torch.where(seen, weight * momentum + (1 - momentum), weight))
    return ends


def _fake(x: Tensor, *rest: object) -> Tensor:
    return x.new_empty(2, dtype=torch.float32)


_finite_range = define("_finite_range(Tensor x) -> Tensor", _fake, _finite_range_impl)
_update_range = define(
    "_update_range(Tensor x, Tensor(a!) average, Tensor(b!) weight, float momentum) -> Tensor",
    _fake,
    _update_range_impl,
)


def finite_range(x: Tensor) -> Tensor:
    """(lowest, highest) of the finite values of x as (2,) float32; (inf, -inf) if there is none."""
    return _finite_range(without_grad(x))


def update_range(x: Tensor, average: Tensor, weight: Tensor, momentum: float) -> Tensor:
    """`finite_range` of x, or of the x of all ranks where torch.distributed is initialised. It is
    taken into the average range (2,) and its weight (), unless no value is finite."""
    return _update_range(without_grad(x), average, weight, momentum)
