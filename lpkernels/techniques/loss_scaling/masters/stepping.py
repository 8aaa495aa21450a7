"""An optimizer's step on single parameters: the optimizers that can step so, the step, and the
values that it gives their groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.utils._pytree import tree_flatten, tree_map

from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques.loss_scaling.masters.codec import is_values
from lpkernels.techniques.loss_scaling.masters.formats import WeightFormats

Options = dict[str, Any]

_REFUSED = {
    LBFGS: "it evaluates the loss again within a step, and all parameters are one vector to it",
    SparseAdam: "it takes sparse gradients",
}


def check_optimizer(optimizer: Any) -> None:
    """Checks that an optimizer's update of a parameter depends on that parameter alone.

    Raises: TypeError: it is no optimizer.  NotImplementedError: it is known to work otherwise.
        ValueError: it is wrapped already.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            "MasterWeights: optimizer must be a torch.optim.Optimizer, got "
            f"{type(optimizer).__name__}; make it first: "
            "MasterWeights(torch.optim.SGD(model.parameters(), lr=0.1), weight='fp16')"
        )
    kind = type(optimizer).__name__
    if getattr(optimizer.step, "__func__", None) is _refuse_step:
        raise ValueError(
            f"MasterWeights: this {kind} is wrapped already; make another one, or use that wrapper"
        )
    reasons = [why for refused, why in _REFUSED.items() if isinstance(optimizer, refused)]
    strange = [str(key) for key in optimizer.state if not isinstance(key, Tensor)]
    if strange:
        reasons.append(f"it keeps states of no parameter ({', '.join(strange)})")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        reasons.append("rounding has no gradient here; leave differentiable=True out")
    if reasons:
        raise NotImplementedError(
            f"MasterWeights: {kind} cannot be wrapped: {reasons[0]}; masters are stepped one by "
            "one, as by SGD or Adam"
        )


def guard(optimizer: Optimizer) -> None:
    """Makes the optimizer's own step an error from now on."""
    setattr(optimizer, "step", MethodType(_refuse_step, optimizer))  # noqa: B010


def _refuse_step(optimizer: Optimizer, closure: Any = None) -> None:
    raise RuntimeError(
        f"MasterWeights: the step of the wrapped {type(optimizer).__name__} was called, which "
        "would change the working copies and no master; call the wrapper's step"
    )


def check_states(optimizer: Optimizer, formats: Iterable[WeightFormats]) -> None:
    """Raises: ValueError: a format is given by name to a state that the optimizer does not have."""
    wanted = {name for own in formats for name in own.states}
    names = _state_names(optimizer) if wanted else set()
    strange = sorted(wanted - names)
    if strange:
        kind = type(optimizer).__name__
        listed = nearest(strange[0], sorted(names), "the optimizer's state lists all")
        raise ValueError(
            f"MasterWeights: state: {kind} has no state {', '.join(strange)} with these options; "
            + (f"its states are {listed}" if names else "it keeps none")
        )


def _state_names(optimizer: Optimizer) -> set[str]:
    """The names of the optimizer's states of elements: the states that it has, or else the states
    that a step on small parameters of zeros makes, with the options of each group."""
    states = list(optimizer.state.values())
    if not any(is_values(name, value) for state in states for name, value in state.items()):
        for group in optimizer.param_groups:
            for dim in {max(p.dim(), 1) for p in group["params"]}:
                states += step_on_zeros(optimizer, group, 1, dim=dim)[0]
    return {name for state in states for name, value in state.items() if is_values(name, value)}


class GroupSteps:
    """One step of an optimizer, made on single parameters, and its groups afterwards.

    Some optimizers count their steps in the group, or change its learning rate. Each parameter of a
    group is stepped with the group as it was before; the values that a step gives the group must be
    the same for all of them, and are written into the group at the end, once.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        # By a group's id: the group, and its values that this step changes.
        self._changes: dict[int, tuple[Options, Options]] = {}

    def step(
        self, group: Options, values: Tensor, gradient: Tensor, state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Makes the optimizer's step as if `values`, changed in place, were its one parameter;
        returns its new state. The optimizer's own groups and states are as before afterwards.

        Raises: NotImplementedError: the step keeps something elsewhere than in the parameter's
            state, and not in the same way for every parameter.
        """
        (new,), changes = step_alone(self._optimizer, group, [(values, gradient, state)])
        if changes and id(group) not in self._changes:
            # A count that grows with every parameter of a group shows in a group of two.
            one, two = (step_on_zeros(self._optimizer, group, count)[1] for count in (1, 2))
            self._check(one, two)
        self._check(self._changes.setdefault(id(group), (group, changes))[1], changes)
        return new

    def finish(self) -> None:
        """Writes what the step changed into every group, with gradients or without."""
        for group in self._optimizer.param_groups:
            if group["params"] and all(p.grad is None for p in group["params"]):
                _, changes = step_on_zeros(self._optimizer, group, 1, with_gradient=False)
                self._changes[id(group)] = group, changes
        for group, changes in self._changes.values():
            group.update(changes)

    def _check(self, one: Options, other: Options) -> None:
        if not _same(one, other):
            names = ", ".join(sorted(one.keys() | other.keys()))
            raise NotImplementedError(
                f"MasterWeights: the step of {type(self._optimizer).__name__} changes {names} of "
                "its group in another way for each parameter, and masters are stepped one by one; "
                "use an optimizer that keeps them in the state of every parameter, such as "
                "torch.optim.Adam"
            )


def step_on_zeros(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    count: int,
    *,
    dim: int | None = None,
    with_gradient: bool = True,
) -> tuple[list[dict[str, Any]], Options]:
    """`step_alone` on so many small parameters of zeros, with dim dimensions or as many as the
    group's first parameter."""
    first = group["params"][0]
    shape = [2] * (first.dim() if dim is None else dim)
    zeros = torch.zeros([2, count, *shape], dtype=torch.float32, device=first.device)
    gradients = zeros[1] if with_gradient else [None] * count
    return step_alone(
        optimizer, group, [(x, g, {}) for x, g in zip(zeros[0], gradients, strict=True)]
    )


def step_alone(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    parameters: Sequence[tuple[Tensor, Tensor | None, Mapping[str, Any]]],
) -> tuple[list[dict[str, Any]], Options]:
    """Makes the optimizer's step as if these values, changed in place, with their gradients and
    states were all its parameters; returns their new states, and the values that the step gives the
    group. Its hooks are not called.

    Raises: NotImplementedError: the step keeps numbers or tensors in the optimizer itself, or a
        state that is of no parameter.
    """
    own, options = _numbers(optimizer), {k: x for k, x in group.items() if k != "params"}
    during = {k: _copy(x) if isinstance(x, Tensor | list | dict) else x for k, x in options.items()}
    alone = [nn.Parameter(values) for values, _, _ in parameters]
    states: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
    for parameter, (_, gradient, state) in zip(alone, parameters, strict=True):
        parameter.grad = gradient
        if state:
            states[parameter] = dict(state)
    before = optimizer.param_groups, optimizer.state
    optimizer.param_groups, optimizer.state = [during], states
    during["params"] = alone
    step: Any = type(optimizer).step
    # torch wraps each class's step in a function that calls the hooks.
    unhooked = step.__wrapped__ if getattr(step, "hooked", False) else step
    try:
        with torch.no_grad():
            unhooked(optimizer)
        states = optimizer.state
    finally:
        optimizer.param_groups, optimizer.state = before
    strange: list[Any] = [key for key in states if not isinstance(key, Tensor)]
    strange += [name for name, value in _numbers(optimizer).items() if own.get(name) != value]
    if strange:
        raise NotImplementedError(
            f"MasterWeights: {type(optimizer).__name__} keeps {', '.join(map(str, strange))} for "
            "all parameters together, and masters are stepped one by one; use an optimizer that "
            "keeps it in the state of every parameter or in its group, such as torch.optim.Adam"
        )
    del during["params"]
    changes = {
        name: value
        for name, value in during.items()
        if name not in options or not (value is options[name] or _same(value, options[name]))
    }
    return [dict(states.get(p, {})) for p in alone], changes


def _numbers(optimizer: Optimizer) -> dict[str, Any]:
    """The numbers among an optimizer's attributes, and the versions of its tensors."""
    numbers: dict[str, Any] = {}
    for name, value in vars(optimizer).items():
        if type(value) in (int, float):
            numbers[name] = value
        elif isinstance(value, Tensor):
            numbers[name] = id(value), value._version
    return numbers


def _copy(value: Any) -> Any:
    """A copy of what an optimizer may change in place."""
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, value)


def _same(one: Any, other: Any) -> bool:
    """Whether two nested values have equal numbers and tensors at the same places."""
    (leaves, places), (others, other_places) = tree_flatten(one), tree_flatten(other)
    return places == other_places and all(map(_equal, leaves, others))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one is other or (type(one) is type(other) and bool(one == other))
