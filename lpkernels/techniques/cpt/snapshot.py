"""Everything that training changes: it is kept, and put back to the bit."""

import copy
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class RandomStates:
    """The states of torch's, numpy's and Python's global generators."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        # The global generator is what a user's data loading may draw from.
        self._numpy = np.random.get_state()  # noqa: NPY002
        self._python = random.getstate()

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)


class _Module:
    """Parameters, buffers (those that no state_dict holds among them), gradients, modes, and what
    else modules and their state_dict have: tensors keep their places in memory."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        tensors = [*module.parameters(), *module.buffers()]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._gradients = [(p, p.grad, _cloned(p.grad)) for p in module.parameters()]
        self._own = [(m, dict(vars(m)), _dicts(m), _extra(m)) for m in module.modules()]

    def restore(self) -> None:
        for module, own, dicts, extra in self._own:
            vars(module).clear()
            vars(module).update(own)
            for name, entries in dicts.items():
                own[name].clear()
                own[name].update(entries)
            if extra is not None:
                module.set_extra_state(copy.deepcopy(extra))
        with torch.no_grad():
            for tensor, value in self._tensors:
                tensor.copy_(value)
            for parameter, gradient, kept in self._gradients:
                parameter.grad = gradient
                if gradient is not None and kept is not None:
                    gradient.copy_(kept)


def _cloned(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _dicts(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Which parameters, buffers and modules it has: a forward pass may register some."""
    return {name: dict(vars(module)[name]) for name in ("_parameters", "_buffers", "_modules")}


def _extra(module: nn.Module) -> Any:
    has = type(module).get_extra_state is not nn.Module.get_extra_state
    return copy.deepcopy(module.get_extra_state()) if has else None


class _Groups:
    """The settings of an optimizer's groups; settings that training adds are removed."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        groups = optimizer.param_groups
        # Parameters stay themselves, wherever something refers to one.
        self._memo = {id(p): p for group in groups for p in group["params"]}
        self._settings = [self.copied(_settings(group)) for group in groups]

    def copied(self, value: Any) -> Any:
        return copy.deepcopy(value, dict(self._memo))

    def restore(self, optimizer: torch.optim.Optimizer) -> None:
        for group, settings in zip(optimizer.param_groups, self._settings, strict=True):
            for name in group.keys() - settings.keys() - {"params"}:
                del group[name]
            group.update(self.copied(settings))


class _Optimizer:
    """State and settings as they are: torch's load_state_dict would change dtypes. An optimizer
    with a state_dict of its own keeps more than its state, or keeps it elsewhere, and loads it
    itself."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self._groups = optimizer, _Groups(optimizer)
        self._plain = type(optimizer).__module__.startswith("torch.optim.")
        state = dict(optimizer.state) if self._plain else optimizer.state_dict()
        self._state = self._groups.copied(state)

    def restore(self) -> None:
        state = self._groups.copied(self._state)
        if self._plain:
            self._optimizer.state.clear()
            self._optimizer.state.update(state)
        else:
            self._optimizer.load_state_dict(state)
        self._groups.restore(self._optimizer)


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


class _Stateful:
    """Anything with a state_dict."""

    def __init__(self, thing: Any) -> None:
        self._thing, self._state = thing, copy.deepcopy(thing.state_dict())

    def restore(self) -> None:
        self._thing.load_state_dict(copy.deepcopy(self._state))


class Snapshot:
    """What modules, optimizers and other things with a state_dict hold, and the random states.

    Raises: TypeError: a thing without state_dict and load_state_dict.
    """

    def __init__(self, things: Iterable[Any]) -> None:
        self._parts = [_kept(thing) for thing in things]
        self._random = RandomStates()

    def restore(self) -> None:
        """Puts everything back; any number of times."""
        for part in self._parts:
            part.restore()
        self._random.restore()


def _kept(thing: Any) -> _Module | _Optimizer | _Stateful:
    if isinstance(thing, nn.Module):
        return _Module(thing)
    if isinstance(thing, torch.optim.Optimizer):
        return _Optimizer(thing)
    if not all(callable(getattr(thing, n, None)) for n in ("state_dict", "load_state_dict")):
        raise TypeError(
            "restore: expected models, optimizers and other things with state_dict and "
            f"load_state_dict, got {type(thing).__name__}"
        )
    return _Stateful(thing)
