"""What the tests of loss scaling share: a parameter with given gradients."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

INF = float("inf")


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values or (1.0,)))


def backward(scaler: Any, parameters: Iterable[nn.Parameter], gradient: float = 1.0) -> None:
    """Leaves `gradient` times the scale in every parameter, as a loss would."""
    parameters = list(parameters)
    for each in parameters:
        each.grad = None
    scaler.scale(torch.stack([(p * gradient).sum() for p in parameters]).sum()).backward()


def take(scaler: Any, optimizer: torch.optim.Optimizer, gradient: float = 1.0) -> None:
    """One iteration: backward, step and update."""
    backward(scaler, (p for group in optimizer.param_groups for p in group["params"]), gradient)
    scaler.step(optimizer)
    scaler.update()


def state_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Weights and state, copied, in order."""
    found: list[Any] = []
    for group in optimizer.param_groups:
        for each in group["params"]:
            found.append(each.detach().clone())
            for name, value in sorted(optimizer.state[each].items()):
                found += [name, copy.deepcopy(value)]
    return found


def same(one: Any, two: Any) -> bool:
    """Whether two values are equal; they may be lists or tensors."""
    if isinstance(one, list):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return torch.equal(one, two) if isinstance(one, Tensor) else one == two
