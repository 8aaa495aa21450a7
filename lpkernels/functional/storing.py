"""Hooks for the results inside a function of several operations, at the points where they would be
stored."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

# (the result, the name of the operation within the call) -> what is computed with from there on.
Stores = Callable[[Tensor, str], Tensor]


class _Local(threading.local):
    stores: Stores | None = None


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
