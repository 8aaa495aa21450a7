"""The state of a training, put back as it was after some steps."""

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from lpkernels.nn.observing.tracing import left_as_found


@contextmanager
def as_found(things: Sequence[Any]) -> Iterator[None]:
    """At its end, after an error too, modules, optimizers and other things with a state_dict are as
    they were at its start, and so are the global generators of torch, numpy and Python.

    Raises: TypeError: a thing without state_dict and load_state_dict.
    """
    # The global generator is what a user's data loading may draw from.
    numbers, own = np.random.get_state(), random.getstate()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices), ExitStack() as stack:
            # The first thing is put back first.
            for thing in reversed(things):
                stack.enter_context(_kept(thing))
            yield
    finally:
        np.random.set_state(numbers)  # noqa: NPY002
        random.setstate(own)


def _kept(thing: Any) -> AbstractContextManager[None]:
    if isinstance(thing, nn.Module):
        return _module(thing)
    return _generator(thing) if isinstance(thing, torch.Generator) else _state(thing)


@contextmanager
def _generator(generator: torch.Generator) -> Iterator[None]:
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)


@contextmanager
def _module(module: nn.Module) -> Iterator[None]:
    """Beside the state that `left_as_found` puts back: modules inside, all other attributes (a
    precision is one) and extra states. Tensors keep their places in memory."""
    own = [(m, dict(vars(m)), dict(m._modules), _extra(m)) for m in module.modules()]
    with left_as_found(module, []):
        try:
            yield
        finally:
            for each, attributes, modules, extra in own:
                vars(each).clear()
                vars(each).update(attributes)
                each._modules.clear()
                each._modules.update(modules)
                if extra is not None:
                    each.set_extra_state(extra)


def _extra(module: nn.Module) -> Any:
    has = type(module).get_extra_state is not nn.Module.get_extra_state
    return copy.deepcopy(module.get_extra_state()) if has else None


@contextmanager
def _state(thing: Any) -> Iterator[None]:
    """An optimizer, or anything else with a state_dict."""
    if not all(callable(getattr(thing, n, None)) for n in ("state_dict", "load_state_dict")):
        raise TypeError(
            "restore: expected models, optimizers and other things with state_dict and "
            f"load_state_dict, got {type(thing).__name__}"
        )
    state = copy.deepcopy(thing.state_dict())
    settings = [set(group) for group in getattr(thing, "param_groups", ())]
    try:
        yield
    finally:
        thing.load_state_dict(state)
        # An optimizer may keep settings that training has added to its groups.
        for group, before in zip(getattr(thing, "param_groups", ()), settings, strict=True):
            for name in group.keys() - before:
                del group[name]
