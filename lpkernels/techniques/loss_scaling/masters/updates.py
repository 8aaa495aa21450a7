"""One parameter's update: its master and states are unpacked, stepped and packed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpkernels.techniques.loss_scaling.masters.formats import Rule
from lpkernels.techniques.loss_scaling.masters.groups import Groups
from lpkernels.techniques.loss_scaling.masters.stored import (
    COMPENSATION,
    COUNTS,
    MASTER,
    OWN,
    Layout,
    decoded,
    decoded_states,
    encoded,
    encoded_state,
    here,
    is_values,
    rounded,
    whole,
)


class Stagnation(NamedTuple):
    """Updates of a parameter's elements.

    Attributes:
        asked: how many were asked for.
        unchanged: how many of these changed nothing.
    """

    asked: int
    unchanged: int

    @property
    def share(self) -> float:
        """The part of the updates asked for that changed nothing; 0 if none was asked for."""
        return self.unchanged / self.asked if self.asked else 0.0


class Purpose(IntEnum):
    """The purpose of a draw; a state's key is `state_key`, above all of these."""

    GRAD = 1
    MASTER = 2
    WEIGHT = 3
    COMPENSATION = 4


@dataclass(frozen=True, eq=False)
class Update:
    """A parameter to update, which has a gradient.

    groups, group: of the optimizer whose step it is, and the options of the parameter's group.
    kept: the parameter's tensors that are kept between steps; the update changes them.
    seed: the seed of its draws in this step; None where it draws nothing.
    scale: the number that the gradient is still multiplied by, on its device, or None.
    """

    groups: Groups
    group: dict[str, Any]
    parameter: Tensor
    rule: Rule
    kept: dict[str, Any]
    seed: Tensor | None = None
    scale: Tensor | None = None


def begin(parameter: Tensor, rule: Rule, seed: Tensor | None) -> dict[str, Any]:
    """Makes the master of a parameter, which becomes its working copy; returns the tensors to
    keep."""
    layout, formats = Layout.of(parameter), rule.formats
    values = layout.whole(here(parameter))
    if values.dtype != torch.float64:
        values = values.float()
    master = rounded(values, formats.master, seed, Purpose.MASTER).float()
    working = rounded(master, formats.weight, seed, Purpose.WEIGHT)
    kept: dict[str, Any] = {}
    if not formats.working_is_master:
        # Codes of float32 may be the parameter's own memory.
        kept[MASTER] = _encoded_master(rule, layout, master).clone()
    if formats.compensation is not None:
        nothing = torch.zeros_like(layout.part(master))
        kept[COMPENSATION] = encoded(nothing, formats.compensation.fmt)
    kept[COUNTS] = torch.zeros(2, dtype=torch.int64, device=parameter.device)
    here(parameter).copy_(layout.part(working))
    return kept


def adopt_state(
    parameter: Tensor, rule: Rule, state: Mapping[str, Any], seed: Tensor | None
) -> dict[str, Any]:
    """The states that the optimizer had before, as they are kept."""
    layout, found = Layout.of(parameter), {}
    clash = sorted(set(state) & set(OWN))
    if clash:
        raise NotImplementedError(
            f"MasterWeights: the optimizer has states {', '.join(clash)}, names that are used here"
        )
    for name, value in state.items():
        if is_values(name, value):
            # Bare optimizers keep states in the parameter's dtype.
            value = whole(value).float()
        found[name] = encoded_state(name, value, rule, layout, seed)
    return found


def master_values(parameter: Tensor, rule: Rule, kept: Mapping[str, Any]) -> Tensor:
    """The whole master in float32, perhaps the memory that is kept itself; all processes must call
    this."""
    layout, formats = Layout.of(parameter), rule.formats
    mine = here(parameter)
    if formats.working_is_master:
        return layout.whole(mine.float())
    return layout.whole(decoded(kept[MASTER], formats.master.fmt, mine.shape))


def _encoded_master(rule: Rule, layout: Layout, master: Tensor) -> Tensor:
    """This process's part of a whole master, as it is kept."""
    with _named(rule, "master"):
        return encoded(layout.part(master), rule.formats.master.fmt)


def run(update: Update) -> None:
    """Makes an update, of any optimizer that treats every parameter on its own, in float32.

    The order is this: the gradient is unscaled and rounded, the optimizer steps on the master, the
    master is rounded, the states are rounded, and the working copy is rounded from the master.

    Raises: ValueError: a value has no code in the format that it is kept in; nothing is changed.
    """
    parameter, rule, kept = update.parameter, update.rule, update.kept
    layout, formats, shape = Layout.of(parameter), rule.formats, here(parameter).shape
    gradient = _gradient(update)
    asked = gradient != 0
    before = master_values(parameter, rule, kept)
    after = before.clone()

    def again() -> tuple[Tensor, Tensor, dict[str, Any]]:
        return before.clone(), _gradient(update), decoded_states(kept, rule, layout, shape)

    states = decoded_states(kept, rule, layout, shape)
    states = update.groups.step(update.group, after, gradient, states, again)
    moved = after != before
    asked |= moved
    del gradient
    master, left = _rounded_master(update, layout, before, after)
    working = rounded(master, formats.weight, update.seed, Purpose.WEIGHT)
    new = {} if formats.working_is_master else {MASTER: _encoded_master(rule, layout, master)}
    stayed = ~moved if master is after else master == before
    if left is not None:
        assert formats.compensation is not None
        stayed &= left == _compensation(update, layout)
        new[COMPENSATION] = encoded(layout.part(left), formats.compensation.fmt)
    count = torch.stack([torch.count_nonzero(asked), torch.count_nonzero(asked & stayed)])
    new[COUNTS] = kept[COUNTS] + count
    for name, value in states.items():
        with _named(rule, name):
            new[name] = encoded_state(name, value, rule, layout, update.seed)
    here(parameter).copy_(layout.part(working))
    for name, value in new.items():
        old = kept.get(name)
        if isinstance(value, Tensor) and isinstance(old, Tensor) and value.shape == old.shape:
            here(old).copy_(here(value))
        else:
            kept[name] = value


def _gradient(update: Update) -> Tensor:
    """The whole gradient in float32, unscaled and rounded."""
    gradient = update.parameter.grad
    assert gradient is not None
    values = whole(gradient.detach()).float()
    if update.scale is not None:
        values = values / update.scale
    return rounded(values, update.rule.formats.grad, update.seed, Purpose.GRAD)


def _rounded_master(
    update: Update, layout: Layout, before: Tensor, after: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The master in its format, and the part of the update left for the next one, if it is kept.

    It is Kahan's sum, as Zamirai et al. 2020 (arXiv 2010.06192) use it for updates: the part that
    earlier updates left is added to the next. Differs: only the two results are rounded to formats,
    all else is float32.
    """
    formats = update.rule.formats
    if formats.compensation is None:
        return rounded(after, formats.master, update.seed, Purpose.MASTER), None
    wanted = after - before + _compensation(update, layout)
    master = rounded(before + wanted, formats.master, update.seed, Purpose.MASTER)
    left = wanted - (master - before)
    return master, rounded(left, formats.compensation, update.seed, Purpose.COMPENSATION)


def _compensation(update: Update, layout: Layout) -> Tensor:
    quantizer = update.rule.formats.compensation
    assert quantizer is not None
    shape = here(update.parameter).shape
    return layout.whole(decoded(update.kept[COMPENSATION], quantizer.fmt, shape))


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
