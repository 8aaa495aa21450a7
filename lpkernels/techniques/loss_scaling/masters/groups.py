"""An optimizer's step on one parameter at a time, and the values that it keeps in its groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Options = dict[str, Any]
States = list[dict[str, Any]]


class Groups:
    """The steps of an optimizer on single parameters, and its groups afterwards.

    Some optimizers count their steps in the group, or change its learning rate. Each parameter of a
    group is stepped with the group as it was before; the values that a step gives the group must be
    the same for all of them, and are written into the group at the end, once.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        # By a group's id: the group, and its values that this step changes.
        self._changes: dict[int, tuple[Options, Options]] = {}
        self._checked = False

    def of_step(self) -> Groups:
        """These groups, at the beginning of a step."""
        self._changes = {}
        return self

    def step(
        self,
        group: Options,
        values: Tensor,
        gradient: Tensor | None,
        state: Mapping[str, Any],
        again: Callable[[], tuple[Tensor, Tensor, Mapping[str, Any]]] | None = None,
    ) -> dict[str, Any]:
        """Makes the optimizer's step as if `values`, changed in place, were its one parameter;
        returns its new state. The optimizer's own groups and states are as before afterwards.

        again: makes copies of values, gradient and state as they are before the step.
        Raises: NotImplementedError: the step keeps something elsewhere than in the parameter's
            state, and not in the same way for every parameter.
        """
        (new,), changes = steps_alone(self.optimizer, group, [(values, gradient, state)])
        if changes and again is not None and not self._checked:
            # A count that grows with every parameter of a group shows in a group of two.
            _, of_two = steps_alone(self.optimizer, group, [again(), again()])
            self._check(changes, of_two)
            self._checked = True
        self._check(self._changes.setdefault(id(group), (group, changes))[1], changes)
        return new

    def keep(self) -> None:
        """Writes what the step changed into the groups."""
        for group in self.optimizer.param_groups:
            if group["params"] and all(p.grad is None for p in group["params"]):
                first = group["params"][0]
                zeros = torch.zeros([2] * first.dim(), dtype=torch.float32, device=first.device)
                self.step(group, zeros, None, {})
        for group, changes in self._changes.values():
            group.update(changes)

    def _check(self, one: Options, other: Options) -> None:
        if not _same(one, other):
            names = ", ".join(sorted(one.keys() | other.keys()))
            kind = type(self.optimizer).__name__
            raise NotImplementedError(
                f"MasterWeights: the step of {kind} changes {names} of its group in another way "
                "for each parameter, and masters are stepped one by one; use an optimizer that "
                "keeps them in the state of every parameter, such as torch.optim.Adam"
            )


def steps_alone(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    parameters: Sequence[tuple[Tensor, Tensor | None, Mapping[str, Any]]],
) -> tuple[States, Options]:
    """Makes the optimizer's step as if these values, changed in place, with their gradients and
    states were all its parameters; returns their new states, and the values that the step gives the
    group. Its hooks are not called.

    Raises: NotImplementedError: the step keeps numbers or tensors in the optimizer itself, or a
        state that is of no parameter.
    """
    alone = [nn.Parameter(values, requires_grad=True) for values, _, _ in parameters]
    for parameter, (_, gradient, _) in zip(alone, parameters, strict=True):
        parameter.grad = gradient
    groups, states, own = optimizer.param_groups, optimizer.state, _numbers(optimizer)
    during = {name: _copy(value) for name, value in group.items() if name != "params"}
    during["params"] = alone
    optimizer.param_groups = [during]
    optimizer.state = defaultdict(
        dict, {p: dict(state) for p, (_, _, state) in zip(alone, parameters, strict=True) if state}
    )
    step: Any = type(optimizer).step
    # torch wraps each class's step in a function that calls the hooks.
    unhooked = step.__wrapped__ if getattr(step, "hooked", False) else step
    try:
        with torch.no_grad():
            unhooked(optimizer)
        new = optimizer.state
    finally:
        optimizer.param_groups, optimizer.state = groups, states
    strange: list[Any] = [key for key in new if not isinstance(key, Tensor)]
    strange += [name for name, value in _numbers(optimizer).items() if own.get(name) != value]
    if strange:
        raise NotImplementedError(
            f"MasterWeights: {type(optimizer).__name__} keeps {', '.join(map(str, strange))} for "
            "all parameters together, and masters are stepped one by one; use an optimizer that "
            "keeps it in the state of every parameter or in its group, such as torch.optim.Adam"
        )
    changes = {
        name: value
        for name, value in during.items()
        if name != "params" and not (name in group and _same(value, group[name]))
    }
    return [dict(new.get(p, {})) for p in alone], changes


def _numbers(optimizer: Optimizer) -> dict[str, Any]:
    """The numbers among an optimizer's attributes, and the versions of its tensors."""
    found: dict[str, Any] = {
        name: value for name, value in vars(optimizer).items() if type(value) in (int, float)
    }
    tensors = {name: x for name, x in vars(optimizer).items() if isinstance(x, Tensor)}
    return found | {name: (id(x), x._version) for name, x in tensors.items()}


def _copy(value: Any) -> Any:
    """Tensors, lists and dicts may be changed in place; everything else is replaced."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list):
        return [_copy(each) for each in value]
    return {k: _copy(v) for k, v in value.items()} if type(value) is dict else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        both = isinstance(one, Tensor) and isinstance(other, Tensor)
        return both and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    return one is other or bool(one == other)
