"""Hooks inside a function of several operations: for the results, at the points where they would be
stored, and for the tensors that the quantizers of a recipe round."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.rng import Role

# (the result, the name of the operation within the call) -> what is computed with from there on.
Stores = Callable[[Tensor, str], Tensor]

# (the tensor as it is before it is rounded, its quantizer, what it is) -> None.
Sees = Callable[[Tensor, Quantizer, Role], None]


class _Local(threading.local):
    stores: Stores | None = None
    # Makes what sees the tensors of the next product.
    opens: Callable[[], Sees] | None = None
    sees: Sees | None = None


_local = _Local()


def stored(result: Tensor, part: str) -> Tensor:
    """What `storing` makes of the result; itself outside of it."""
    return result if _local.stores is None else _local.stores(result, part)


@contextmanager
def storing(stores: Stores) -> Iterator[None]:
    """A context around a call, in this thread: `stored` gives its results to the function."""
    before, _local.stores = _local.stores, stores
    try:
        yield
    finally:
        _local.stores = before


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """scores + mask, or scores where a bool mask is True, stored as "scores": what the mask hides
    is no value of them."""
    if mask.dtype == torch.bool:
        return stored(scores, "scores").masked_fill(~mask, -math.inf)
    if _local.stores is None:
        return scores + mask
    hidden = mask == -math.inf
    scores = stored(scores + mask.masked_fill(hidden, 0), "scores")
    return scores.masked_fill(hidden, -math.inf)


@contextmanager
def rounding_seen(opens: Callable[[], Sees]) -> Iterator[None]:
    """A context around a call, in this thread: what the quantizers of a recipe round in it, and in
    its backward pass, is shown before it is rounded, and no bit of it changes.

    opens: makes what sees the tensors of a product; it is called once for the call, and again for
        each product of a layer in it.
    """
    before, _local.opens, _local.sees = (_local.opens, _local.sees), opens, opens()
    try:
        yield
    finally:
        _local.opens, _local.sees = before


@contextmanager
def seen_again(sees: Sees) -> Iterator[None]:
    """A context around the backward pass of what `seeing` returned in the forward pass."""
    before, _local.sees = _local.sees, sees
    try:
        yield
    finally:
        _local.sees = before


def new_product() -> Sees | None:
    """What sees the tensors of the product that begins; None outside of `rounding_seen`."""
    if _local.opens is not None:
        _local.sees = _local.opens()
    return _local.sees


def seeing() -> Sees | None:
    """What sees the tensors that are rounded now."""
    return _local.sees


def seen(x: Tensor, quantizer: Quantizer | None, role: Role) -> None:
    """x is about to be rounded, if there is a quantizer."""
    if _local.sees is not None and quantizer is not None:
        _local.sees(x, quantizer, role)
