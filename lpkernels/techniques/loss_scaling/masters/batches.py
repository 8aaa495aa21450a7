"""Steps of many parameters in one call: the fused pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from lpkernels import arithmetic
from lpkernels.arithmetic import Keyed, Quantizer, UpdateRounding
from lpkernels.formats import FP32, FloatFormat
from lpkernels.functional.seeds import derived_seed
from lpkernels.functional.unchecked import UpdateTensors, update
from lpkernels.techniques.loss_scaling.masters.formats import Formats
from lpkernels.techniques.loss_scaling.masters.fused import STATES
from lpkernels.techniques.loss_scaling.masters.rules import Rule
from lpkernels.techniques.loss_scaling.masters.sharding import (
    Layout,
    add_up,
    here,
    is_placed,
)
from lpkernels.techniques.loss_scaling.masters.states import COUNTS, MASTER, state_key
from lpkernels.techniques.loss_scaling.masters.storage import is_coded, zeros
from lpkernels.techniques.loss_scaling.masters.updates import Key

STEP = "step"


@dataclass
class Batch:
    """Parameters that one call steps; they share a group, a set of formats, a device and a dtype.

    tensors: for each kind of `UpdateTensors`, in that order, what this process holds of each.
    origins: where this process's part begins in each whole parameter.
    """

    step: arithmetic.Step
    formats: Formats
    begins: bool
    names: tuple[str, ...]
    tensors: tuple[list[Tensor], ...]
    positions: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)

    def add(
        self,
        parameter: Tensor,
        layout: Layout | None,
        position: int,
        kept: Mapping[str, Any],
        count: Tensor,
    ) -> None:
        """Adds a parameter that has a gradient, with its number in the draws' keys, what is kept of
        it, and where its updates are counted. layout: None if all of the parameter is here."""
        gradients, weights, masters, first, second, steps, counts = self.tensors
        gradient = parameter.grad
        assert gradient is not None
        held = _as_it_is if layout is None else here
        gradients.append(held(gradient).contiguous())
        weights.append(held(parameter))
        if not self.formats.working_is_master:
            masters.append(kept[MASTER])
        for states, name in zip((first, second), self.names, strict=False):
            states.append(held(kept[name]))
        if isinstance(self.step, arithmetic.Adam):
            steps.append(kept[STEP])
        counts.append(count)
        self.positions.append(position)
        self.origins.append(0 if layout is None else layout.origin)

    def run(self, seed: Tensor | None, found: Tensor | None, scale: Any) -> None:
        """Makes the updates; see `Batches.run`."""
        device = self.tensors[1][0].device
        if scale is not None:
            scale = torch.as_tensor(scale, dtype=torch.float32, device=device).reshape(())
        update(
            UpdateTensors(*self.tensors),
            self.step,
            _rounding_of(self.formats, self.names),
            self.positions,
            self.origins,
            begins=self.begins,
            seed=None if seed is None or not self.formats.draws else seed.to(device),
            found=None if found is None else found.to(device),
            scale=scale,
        )


class Batches:
    """Collects updates of a step of an optimizer, and makes them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._kind = type(optimizer)
        self._batches: dict[tuple[Any, ...], Batch] = {}
        self._steps: dict[int, arithmetic.Step] = {}
        # For parameters that several processes hold in parts: the count of all processes, that of
        # this one, and the group.
        self._counted: list[tuple[Tensor, Tensor, Any]] = []

    def add(
        self, group: Mapping[str, Any], parameter: Tensor, rule: Rule, kept: dict[str, Any]
    ) -> list[str]:
        """Adds a parameter that has a gradient, with what is kept of it; returns the names of the
        states that begin now."""
        step = self._steps.get(id(group))
        if step is None:
            step = self._steps[id(group)] = _step_of(self._kind, group)
        names = STATES[self._kind][: step.states]
        gradient = parameter.grad
        assert gradient is not None
        layout = Layout.of(parameter) if is_placed(parameter) else None
        began = [name for name in names if name not in kept]
        for name in began:
            fmt = rule.formats.of_state(name).fmt
            assert isinstance(fmt, FloatFormat)
            nothing = zeros(here(parameter).shape, fmt, parameter.device)
            if layout is not None and not is_coded(fmt):
                nothing = layout.placed(nothing)
            kept[name] = nothing
        if isinstance(step, arithmetic.Adam):
            began += _count_steps(kept, parameter)
        key = (
            id(group), id(rule.formats), bool(began), parameter.dtype, gradient.dtype,
            parameter.device,
        )  # fmt: skip
        batch = self._batches.get(key)
        if batch is None:
            kinds: tuple[list[Tensor], ...] = tuple([] for _ in UpdateTensors._fields)
            batch = self._batches[key] = Batch(step, rule.formats, bool(began), names, kinds)
        count = kept[COUNTS]
        if layout is not None and layout.group is not None:
            count = torch.zeros_like(count)
            self._counted.append((kept[COUNTS], count, layout.group))
        batch.add(parameter, layout, rule.number, kept, count)
        return began

    def run(self, seed: Tensor, number: Tensor, found: Tensor | None, scale: Any) -> None:
        """Makes the updates; where parameters are sharded all processes must call this.

        seed: the optimizer's. number: that of this step. found: 0-d bool. scale: what gradients are
        still multiplied by.
        """
        draw = any(batch.formats.draws for batch in self._batches.values())
        step_seed = derived_seed(seed, number + 1) if draw else None
        for batch in self._batches.values():
            batch.run(step_seed, found, scale)
        add_up(self._counted)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _step_of(kind: type[Optimizer], group: Mapping[str, Any]) -> arithmetic.Step:
    """The step that the options of a group describe now."""
    lr, decay, maximize = group["lr"], group["weight_decay"], bool(group.get("maximize"))
    if kind is SGD:
        momentum, dampening = float(group["momentum"]), float(group["dampening"])
        nesterov = bool(group["nesterov"])
        return arithmetic.Sgd(float(lr), float(decay), momentum, dampening, nesterov, maximize)
    decoupled = bool(group.get("decoupled_weight_decay", kind is AdamW))
    beta1, beta2 = map(float, group["betas"])
    eps = float(group["eps"])
    return arithmetic.Adam(float(lr), beta1, beta2, eps, float(decay), decoupled, maximize)


def _rounding_of(formats: Formats, names: tuple[str, ...]) -> UpdateRounding:
    """The quantizers of an update, with the keys that draws have on the general path."""
    first, second = (
        _keyed(formats.of_state(name), state_key(name)) for name in (*names, "", "")[:2]
    )
    working = None if formats.working_is_master else formats.weight
    return UpdateRounding(
        _keyed(formats.grad, Key.GRAD),
        _keyed(formats.master, Key.MASTER),
        (first if names else Keyed(), second if len(names) > 1 else Keyed()),
        _keyed(working, Key.WEIGHT),
    )


def _keyed(quantizer: Quantizer | None, key: int) -> Keyed:
    """A quantizer with the key of its draws; none for float32, which values are already in."""
    rounds = quantizer is not None and quantizer.fmt != FP32
    return Keyed(quantizer if rounds else None, int(key))


def _count_steps(kept: dict[str, Any], parameter: Tensor) -> list[str]:
    """Makes the count of steps a float32 number on the parameter's device, where the pass reads it;
    returns its name if it begins now, in a list."""
    count = kept.get(STEP)
    if isinstance(count, Tensor) and count.dtype == torch.float32:
        if count.device == parameter.device:
            return []
    given = 0.0 if count is None else count
    kept[STEP] = torch.as_tensor(given, dtype=torch.float32, device=parameter.device)
    return [STEP] if count is None else []
