"""The general path: any optimizer's step on one parameter at a time, whose master and states are
unpacked, stepped and packed again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten

from lpkernels.arithmetic import Quantizer
from lpkernels.techniques.loss_scaling.masters.codec import (
    COMPENSATION,
    COUNTS,
    MASTER,
    OWN,
    Layout,
    Purpose,
    here,
    is_codes,
    is_values,
    kept_format,
    rounded,
    state_key,
    whole,
)
from lpkernels.techniques.loss_scaling.masters.formats import Rule

Options = dict[str, Any]


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
            kind = type(self._optimizer).__name__
            raise NotImplementedError(
                f"MasterWeights: the step of {kind} changes {names} of its group in another way "
                "for each parameter, and masters are stepped one by one; use an optimizer that "
                "keeps them in the state of every parameter, such as torch.optim.Adam"
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
    shape, device = [2] * (first.dim() if dim is None else dim), first.device
    zeros = [torch.zeros(shape, dtype=torch.float32, device=device) for _ in range(count)]
    gradients = [torch.zeros_like(x) if with_gradient else None for x in zeros]
    return step_alone(optimizer, group, [(x, g, {}) for x, g in zip(zeros, gradients, strict=True)])


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
    alone = [nn.Parameter(values, requires_grad=True) for values, _, _ in parameters]
    for parameter, (_, gradient, _) in zip(alone, parameters, strict=True):
        parameter.grad = gradient
    groups, states, own = optimizer.param_groups, optimizer.state, _numbers(optimizer)
    options = {name: value for name, value in group.items() if name != "params"}
    during = _copy(options) | {"params": alone}
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
    del during["params"]
    changes = {
        name: value
        for name, value in during.items()
        if name not in options or not (value is options[name] or _same(value, options[name]))
    }
    return [dict(new.get(p, {})) for p in alone], changes


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
    """Tensors, lists and dicts may be changed in place; everything else is replaced."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return {key: _copy(x) for key, x in value.items()} if type(value) is dict else value


def _same(one: Any, other: Any) -> bool:
    """Whether two nested values have equal numbers and tensors at the same places."""
    (leaves, places), (others, other_places) = tree_flatten(one), tree_flatten(other)
    return places == other_places and all(map(_equal, leaves, others))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one is other or (type(one) is type(other) and bool(one == other))


def begin(
    parameter: Tensor, rule: Rule, states: Mapping[str, Any], seed: Tensor | None
) -> dict[str, Any]:
    """Makes the master of a parameter, which becomes its working copy; returns the tensors to keep,
    with the states that the optimizer had before."""
    clash = sorted(set(states) & set(OWN))
    if clash:
        raise NotImplementedError(
            f"MasterWeights: the optimizer has states {', '.join(clash)}, names that are used here"
        )
    layout, formats = Layout.of(parameter), rule.formats
    values = layout.whole(here(parameter))
    values = values if values.dtype == torch.float64 else values.float()
    master = rounded(values, formats.master, seed, Purpose.MASTER).float()
    working = rounded(master, formats.weight, seed, Purpose.WEIGHT)
    kept: dict[str, Any] = {}
    if not formats.working_is_master:
        # Codes of float32 may be the parameter's own memory.
        with _named(rule, MASTER):
            kept[MASTER] = layout.encoded(master, formats.master.fmt).clone()
    if formats.compensation is not None:
        nothing = torch.zeros_like(layout.part(master))
        kept[COMPENSATION] = layout.encoded_part(nothing, formats.compensation.fmt)
    kept[COUNTS] = torch.zeros(2, dtype=torch.int64, device=parameter.device)
    here(parameter).copy_(layout.part(working))
    for name, value in states.items():
        # Bare optimizers keep states in the parameter's dtype.
        value = whole(value).float() if is_values(name, value) else value
        kept[name] = _encoded_state(name, value, rule, layout, seed)
    return kept


def master_values(parameter: Tensor, rule: Rule, kept: Mapping[str, Any]) -> Tensor:
    """The whole master in float32, perhaps the memory that is kept itself; all processes must call
    this."""
    layout, formats = Layout.of(parameter), rule.formats
    if formats.working_is_master:
        return layout.whole(here(parameter).float())
    return layout.decoded(kept[MASTER], formats.master.fmt)


class Update:
    """The step of one parameter that has a gradient, by any optimizer, in float32.

    kept: the parameter's tensors that are kept between steps; the update changes them.
    seed: the seed of its draws in this step; None where it draws nothing.
    scale: the number that the gradient is still multiplied by, on its device, or None.
    """

    def __init__(
        self, parameter: Tensor, rule: Rule, kept: dict[str, Any], seed: Tensor | None, scale: Any
    ) -> None:
        self.parameter, self.rule, self.kept = parameter, rule, kept
        self.seed, self.scale = seed, scale
        self.layout, self.formats = Layout.of(parameter), rule.formats

    def run(self, steps: GroupSteps, group: Options) -> None:
        """The order is this: the gradient is unscaled and rounded, the optimizer steps on the
        master, the master is rounded, the states are rounded, and the working copy is rounded from
        the master.

        Raises: ValueError: a value has no code in the format that it is kept in; nothing is
            changed.
        """
        layout, formats, kept = self.layout, self.formats, self.kept
        gradient = self._gradient()
        asked = gradient != 0
        before = master_values(self.parameter, self.rule, kept)
        after = before.clone()
        states = steps.step(group, after, gradient, self._states())
        moved = after != before
        asked |= moved
        del gradient
        master, left = self._rounded_master(before, after)
        working = rounded(master, formats.weight, self.seed, Purpose.WEIGHT)
        new: dict[str, Any] = {}
        if not formats.working_is_master:
            with _named(self.rule, MASTER):
                new[MASTER] = layout.encoded(master, formats.master.fmt)
        stayed = ~moved if master is after else master == before
        if left is not None:
            assert formats.compensation is not None
            stayed &= left == self._compensation(formats.compensation)
            new[COMPENSATION] = layout.encoded(left, formats.compensation.fmt)
        count = torch.stack([torch.count_nonzero(asked), torch.count_nonzero(asked & stayed)])
        new[COUNTS] = kept[COUNTS] + count
        for name, value in states.items():
            with _named(self.rule, name):
                new[name] = _encoded_state(name, value, self.rule, layout, self.seed)
        here(self.parameter).copy_(layout.part(working))
        for name, value in new.items():
            old = kept.get(name)
            if isinstance(value, Tensor) and isinstance(old, Tensor) and value.shape == old.shape:
                here(old).copy_(here(value))
            else:
                kept[name] = value

    def _gradient(self) -> Tensor:
        """The whole gradient in float32, unscaled and rounded."""
        assert self.parameter.grad is not None
        values = whole(self.parameter.grad.detach()).float()
        if self.scale is not None:
            values = values / self.scale
        return rounded(values, self.formats.grad, self.seed, Purpose.GRAD)

    def _states(self) -> dict[str, Any]:
        """The optimizer's states as the optimizer knows them, whole, and never the memory that is
        kept."""
        states = {}
        for name, value in self.kept.items():
            if name in OWN:
                continue
            states[name] = value
            if isinstance(value, Tensor):
                fmt = kept_format(name, value, self.formats)
                values = whole(value) if fmt is None else self.layout.decoded(value, fmt)
                states[name] = values.clone() if values is value else values
        return states

    def _rounded_master(self, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor | None]:
        """The master in its format, and the part of the update left for the next one, if it is
        kept.

        It is Kahan's sum, as Zamirai et al. 2020 (arXiv 2010.06192) use it for updates: the part
        that earlier updates left is added to the next. Differs: only the two results are rounded to
        formats, all else is float32.
        """
        formats = self.formats
        if formats.compensation is None:
            return rounded(after, formats.master, self.seed, Purpose.MASTER), None
        wanted = after - before + self._compensation(formats.compensation)
        master = rounded(before + wanted, formats.master, self.seed, Purpose.MASTER)
        left = wanted - (master - before)
        return master, rounded(left, formats.compensation, self.seed, Purpose.COMPENSATION)

    def _compensation(self, quantizer: Quantizer) -> Tensor:
        return self.layout.decoded(self.kept[COMPENSATION], quantizer.fmt)


def _encoded_state(name: str, value: Any, rule: Rule, layout: Layout, seed: Tensor | None) -> Any:
    """A state as it is kept: rounded, and as codes and in parts where it has the parameter's
    shape."""
    quantizer = rule.formats.of_state(name)
    if not is_values(name, value):
        if is_codes(value, quantizer.fmt):
            raise NotImplementedError(
                f"MasterWeights: state {name!r} of the optimizer is made of bytes, which cannot "
                f"be told from codes of {quantizer.fmt}; keep it in fp32"
            )
        return value
    values = rounded(value, quantizer, seed, state_key(name))
    return layout.encoded(values, quantizer.fmt) if value.shape == layout.shape else values


@contextmanager
def _named(rule: Rule, what: str) -> Iterator[None]:
    """A block whose errors name the parameter."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"MasterWeights: {what} of parameter {rule.name!r}: {error}; a loss scaler skips steps "
            "whose gradients are not finite, and a format that saturates or has infinities takes "
            "all others"
        ) from error
