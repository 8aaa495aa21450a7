"""Calls of torch's own products from inside the functions that emulate them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch


class Watcher(Protocol):
    """A TorchFunctionMode that is told of what `own` computes, since it cannot take the call."""

    def see(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        compute: Callable[..., Any],
    ) -> Any:
        """Returns compute(*args, **kwargs), possibly with other arguments."""
        ...


_watchers: list[Watcher] = []


def own(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs) by torch itself: no TorchFunctionMode takes the call.

    ``lpkernels.nn.convert`` enters such a mode, which emulates the products that a model calls as
    functions; the calls by which an emulated function asks torch to compute are none of these. The
    modes that are `watching` are told of it.
    """
    if torch._C._is_torch_function_mode_enabled():
        return _unseen(function, function, args, kwargs)
    return function(*args, **kwargs)


def own_instead(
    function: Callable[..., Any],
    emulated: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """As `own`, emulated(*args, **kwargs); the modes are told that it is a call of function."""
    if torch._C._is_torch_function_mode_enabled():
        return _unseen(function, emulated, args, kwargs)
    return emulated(*args, **kwargs)


def _unseen(
    function: Callable[..., Any],
    computing: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    with torch._C.DisableTorchFunction():
        if not _watchers:
            return computing(*args, **kwargs)
        count = torch._C._len_torch_function_stack()
        entered = [id(torch._C._get_function_stack_at(i)) for i in range(count)]
        compute: Callable[..., Any] = computing
        # The modes of this thread; the innermost comes last and is told first.
        for watcher in _watchers:
            if id(watcher) in entered:
                compute = partial(_told, watcher, function, compute)
        return compute(*args, **kwargs)


def _told(
    watcher: Watcher,
    function: Callable[..., Any],
    compute: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    return watcher.see(function, args, kwargs, compute)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """A context around the `with` that enters the mode."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
