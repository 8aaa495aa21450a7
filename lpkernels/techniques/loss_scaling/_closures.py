"""Optimizer steps that evaluate the loss themselves, and what is undone when an evaluation is not
finite."""

import copy
from typing import Any

import torch
from torch import Tensor

from lpkernels.techniques.loss_scaling._gradients import parameters


class NotFinite(Exception):
    """Says that an evaluation had a gradient that is not finite; it ends the optimizer's step."""


class Before:
    """The weights, the state and the settings of an optimizer as they are now, copied."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._weights = [p.detach().clone() for p in parameters(optimizer)]
        self._state = {p: copy.deepcopy(state) for p, state in optimizer.state.items()}
        self._settings = [
            {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Puts everything back as it was, to the bit."""
        for parameter, weight in zip(parameters(self._optimizer), self._weights, strict=True):
            parameter.copy_(weight)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        for group, settings in zip(self._optimizer.param_groups, self._settings, strict=True):
            for name in set(group) - set(settings) - {"params"}:
                del group[name]
            for name, value in settings.items():
                group[name] = _put(group.get(name), value)


def _put(present: Any, value: Any) -> Any:
    """`value`; if a tensor is `present`, it takes the value, because others may hold that tensor
    too, as they may hold a learning rate."""
    if isinstance(present, Tensor) and isinstance(value, Tensor):
        return present.copy_(value)
    return value
