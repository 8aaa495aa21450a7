"""Hooks inside a function of several operations: on its results, where separate operations would
store them, and on the tensors that a recipe's quantizers round."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.rng import Role

# (the result, the name of the operation within the call) -> the tensor to go on with.
Stores = Callable[[Tensor, str], Tensor]

# (the tensor before it is rounded, its quantizer, its role) -> None.
Sees = Callable[[Tensor, Quantizer, Role], None]


class _Local(threading.local):
    stores: Stores | None = None
    # Makes the function that is shown the tensors of the next product.
    opens: Callable[[], Sees] | None = None
    sees: Sees | None = None


_local = _Local()


def stored(result: Tensor, part: str) -> Tensor:
    """The result, changed by the function of `storing`; outside of `storing` the result itself."""
    return result if _local.stores is None else _local.stores(result, part)


@contextmanager
def storing(stores: Stores) -> Iterator[None]:
    """A context around a call, in this thread: `stored` passes results through the function."""
    before, _local.stores = _local.stores, stores
    try:
        yield
    finally:
        _local.stores = before


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """scores + mask, or scores where a bool mask is True. They are stored as "scores" without the
    infinities that the mask adds."""
    if mask.dtype == torch.bool:
        return stored(scores, "scores").masked_fill(~mask, -math.inf)
    if _local.stores is None:
        return scores + mask
    hidden = mask == -math.inf
    scores = stored(scores + mask.masked_fill(hidden, 0), "scores")
    return scores.masked_fill(hidden, -math.inf)


@contextmanager
def rounding_seen(opens: Callable[[], Sees]) -> Iterator[None]:
    """A context around a call, in this thread: every tensor that a recipe's quantizer rounds, in
    the call or its backward pass, is shown before it is rounded. No bit changes.

    opens: makes the function that is shown the tensors of a product. It is called once for the
        call, and again for each product of a layer in it.
    """
    before, _local.opens, _local.sees = (_local.opens, _local.sees), opens, opens()
    try:
        yield
    finally:
        _local.opens, _local.sees = before


@contextmanager
def seen_again(sees: Sees) -> Iterator[None]:
    """A context around a backward pass; sees: returned by `seeing` in the forward pass."""
    before, _local.sees = _local.sees, sees
    try:
        yield
    finally:
        _local.sees = before


def new_product() -> Sees | None:
    """The function that is shown the tensors of a new product; None outside of `rounding_seen`."""
    if _local.opens is not None:
        _local.sees = _local.opens()
    return _local.sees


def seeing() -> Sees | None:
    """The function that is shown the tensors rounded now, or None."""
    return _local.sees
