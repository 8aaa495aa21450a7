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
StoreHook = Callable[[Tensor, str], Tensor]

# (the tensor before it is rounded, its quantizer, its role) -> None.
RoundingHook = Callable[[Tensor, Quantizer, Role], None]


class _Hooks(threading.local):
    store: StoreHook | None = None
    rounding: RoundingHook | None = None
    # Makes the rounding hook of the next product.
    make_rounding: Callable[[], RoundingHook] | None = None


_hooks = _Hooks()


def store(result: Tensor, part: str) -> Tensor:
    """The result as the store hook returns it; without one the result itself."""
    return result if _hooks.store is None else _hooks.store(result, part)


@contextmanager
def store_hook(hook: StoreHook) -> Iterator[None]:
    """A context around a call, in this thread: `store` passes results through the hook."""
    before, _hooks.store = _hooks.store, hook
    try:
        yield
    finally:
        _hooks.store = before


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """scores + mask, or scores where a bool mask is True. They are stored as "scores" without the
    infinities that the mask adds."""
    if mask.dtype == torch.bool:
        return store(scores, "scores").masked_fill(~mask, -math.inf)
    if _hooks.store is None:
        return scores + mask
    hidden = mask == -math.inf
    scores = store(scores + mask.masked_fill(hidden, 0), "scores")
    return scores.masked_fill(hidden, -math.inf)


@contextmanager
def rounding_hooks(make: Callable[[], RoundingHook]) -> Iterator[None]:
    """A context around a call, in this thread: every tensor that a recipe's quantizer rounds, in
    the call or its backward pass, is shown to a hook before it is rounded. No bit changes.

    make: makes the hook of a product. It is called once for the call, and again for each product of
        a layer in it.
    """
    before = _hooks.make_rounding, _hooks.rounding
    _hooks.make_rounding, _hooks.rounding = make, make()
    try:
        yield
    finally:
        _hooks.make_rounding, _hooks.rounding = before


@contextmanager
def rounding_hook(hook: RoundingHook) -> Iterator[None]:
    """A context around a backward pass; hook: `current_rounding_hook` in the forward pass."""
    before, _hooks.rounding = _hooks.rounding, hook
    try:
        yield
    finally:
        _hooks.rounding = before


def new_rounding_hook() -> RoundingHook | None:
    """The rounding hook of a new product; None outside of `rounding_hooks`."""
    if _hooks.make_rounding is not None:
        _hooks.rounding = _hooks.make_rounding()
    return _hooks.rounding


def current_rounding_hook() -> RoundingHook | None:
    """The hook of the tensors that are rounded now, or None."""
    return _hooks.rounding
