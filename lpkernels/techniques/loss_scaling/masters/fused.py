"""The fused pass: which updates it takes, and the steps of many parameters in one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from lpkernels import arithmetic
from lpkernels.arithmetic import Keyed, Quantizer, UpdateRounding
from lpkernels.formats import FP32, FloatFormat
from lpkernels.functional.seeds import derived_seed
from lpkernels.functional.unchecked import UpdateTensors, update
from lpkernels.techniques.loss_scaling.masters.formats import Rule, WeightFormats, has_every_code
from lpkernels.techniques.loss_scaling.masters.stored import (
    COUNTS,
    MASTER,
    Layout,
    add_up,
    here,
    is_coded,
    is_placed,
    state_key,
    zeros,
)
from lpkernels.techniques.loss_scaling.masters.updates import Purpose

STATES: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: ("momentum_buffer",),
    Adam: ("exp_avg", "exp_avg_sq"),
    AdamW: ("exp_avg", "exp_avg_sq"),
}
_NUMBERS = ("lr", "weight_decay", "momentum", "dampening", "betas", "eps")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_WIDTHS = (8, 16, 32)


def check_fused(
    fused: bool | None,
    optimizer: Optimizer,
    rules: Mapping[Tensor, Rule],
    groups: list[dict[str, Any]],
) -> None:
    """Checks that the fused pass takes every parameter, if it must.  Raises TypeError,
    ValueError."""
    if fused not in (None, True, False):
        raise TypeError(f"MasterWeights: fused must be True, False or None, got {fused!r}")
    batches = Batches(optimizer, fused)
    for group in groups:
        for parameter in group["params"]:
            batches.takes(group, parameter, rules[parameter])


def _of_options(kind: type[Optimizer], group: Mapping[str, Any]) -> str:
    if kind not in STATES:
        return f"it steps as SGD, Adam and AdamW of torch do, not as {kind.__name__}"
    if group.get("amsgrad"):
        return "it keeps no maximum of second moments: leave amsgrad out"
    for name in _NUMBERS:
        value = group.get(name, 0.0)
        if any(isinstance(x, Tensor) for x in (value if isinstance(value, tuple) else (value,))):
            return f"it takes {name} as a number, not as a tensor, which it would wait for"
    return ""


def _of_parameter(parameter: Tensor) -> str:
    gradient, dtype = parameter.grad, parameter.dtype
    other = dtype if gradient is None else gradient.dtype
    if is_placed(parameter) or (gradient is not None and is_placed(gradient)):
        layout = Layout.of(parameter)
        if not layout.is_range:
            return f"it steps rows of a sharded parameter, and this one lies as {layout.placements}"
        if gradient is not None and Layout.of(gradient).placements != layout.placements:
            return "its gradient is sharded in another way than itself"
        if not here(parameter).is_contiguous():
            return "it takes parts that are contiguous in memory"
    if dtype not in _DTYPES or other not in _DTYPES:
        return f"it takes float32, float16 and bfloat16, not {dtype} with {other} gradients"
    if not parameter.is_contiguous():
        return "it takes contiguous parameters: use p.data = p.data.contiguous()"
    return ""


def _of_formats(formats: WeightFormats, kind: type[Optimizer]) -> str:
    """Why the fused pass cannot work with these formats; "" if it can."""
    if formats.compensation is not None:
        return "it keeps no compensation"
    rounded = {"grad": formats.grad, "weight": formats.weight, "master": formats.master}
    kept = {} if formats.working_is_master else {"master": formats.master}
    for name in STATES.get(kind, ()):
        rounded[name] = kept[name] = formats.of_state(name)
    for name, quantizer in rounded.items():
        if quantizer is not None and not isinstance(quantizer.fmt, FloatFormat):
            return f"it rounds to float formats, and {name} is {quantizer.fmt}"
    for name, quantizer in kept.items():
        fmt = quantizer.fmt
        assert isinstance(fmt, FloatFormat)
        if fmt.bits not in _WIDTHS:
            return f"it keeps codes of 8, 16 or 32 bits, and {name}={fmt} has {fmt.bits}"
        if not has_every_code(fmt):
            return f"{name}={fmt} has no code for infinity or NaN, which it does not look for"
    return ""


STEP = "step"


@dataclass
class Batch:
    """Parameters that one call steps; they share a group, a device and dtypes.

    tensors: for each kind of `UpdateTensors`, in that order, this process's part of each
        parameter's tensor.
    positions: the parameters' numbers in the draws' keys.
    origins: where this process's part begins in each whole parameter.
    """

    step: arithmetic.Step
    formats: WeightFormats
    begins: bool
    names: tuple[str, ...]
    tensors: tuple[list[Tensor], ...] = field(
        default_factory=lambda: tuple([] for _ in UpdateTensors._fields)
    )
    positions: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)

    def add(
        self, parameter: Tensor, layout: Layout | None, kept: Mapping[str, Any], count: Tensor
    ) -> None:
        """Adds a parameter that has a gradient, with its kept tensors and the count of its updates.
        layout: None if all of the parameter is here."""
        gradients, weights, masters, first, second, steps, counts = self.tensors
        gradient = parameter.grad
        assert gradient is not None

        def held(tensor: Tensor) -> Tensor:
            return tensor if layout is None else here(tensor)

        gradients.append(held(gradient).contiguous())
        weights.append(held(parameter))
        if not self.formats.working_is_master:
            masters.append(kept[MASTER])
        for states, name in zip((first, second), self.names, strict=False):
            states.append(held(kept[name]))
        if isinstance(self.step, arithmetic.Adam):
            steps.append(kept[STEP])
        counts.append(count)
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
    """The fused updates of one step of an optimizer: chooses, collects and makes them."""

    def __init__(self, optimizer: Optimizer, fused: bool | None) -> None:
        self._fused, self._kind = fused, type(optimizer)
        # By the id of a group: why its options or formats keep it from the pass, or "".
        self._refusals: dict[int, str] = {}
        self._batches: dict[tuple[Any, ...], Batch] = {}
        # For parameters that several processes hold in parts: the count of all processes, the count
        # of this process, and the group.
        self._counted: list[tuple[Tensor, Tensor, Any]] = []

    def takes(self, group: Mapping[str, Any], parameter: Tensor, rule: Rule) -> bool:
        """Whether the pass makes this update. Raises ValueError where it must and cannot."""
        if self._fused is False:
            return False
        why = self._refusals.get(id(group))
        if why is None:
            why = _of_options(self._kind, group) or _of_formats(rule.formats, self._kind)
            self._refusals[id(group)] = why
        why = why or _of_parameter(parameter)
        if why and self._fused:
            raise ValueError(
                f"MasterWeights: fused=True, but not for parameter {rule.name!r}: {why}; or leave "
                "fused out, which takes the general path there"
            )
        return not why

    def add(
        self, group: Mapping[str, Any], parameter: Tensor, rule: Rule, kept: dict[str, Any]
    ) -> list[str]:
        """Adds a parameter that has a gradient, with its kept tensors; returns the names of the
        states that begin now."""
        names = STATES[self._kind] if self._kind is not SGD or group["momentum"] else ()
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
        if self._kind is not SGD:
            began += _count_steps(kept, parameter)
        key = (id(group), bool(began), parameter.dtype, gradient.dtype, parameter.device)
        batch = self._batches.get(key)
        if batch is None:
            step = _step_of(self._kind, group)
            batch = self._batches[key] = Batch(step, rule.formats, bool(began), names)
        count = kept[COUNTS]
        if layout is not None and layout.group is not None:
            count = torch.zeros_like(count)
            self._counted.append((kept[COUNTS], count, layout.group))
        batch.positions.append(rule.number)
        batch.add(parameter, layout, kept, count)
        return began

    def run(self, seed: Tensor, number: Tensor, found: Tensor | None, scale: Any) -> None:
        """Makes the updates; where parameters are sharded all processes must call this.

        seed: the optimizer's. number: the number of this step. found: 0-d bool. scale: the number
        that gradients are still multiplied by.
        """
        draw = any(batch.formats.draws for batch in self._batches.values())
        step_seed = derived_seed(seed, number + 1) if draw else None
        for batch in self._batches.values():
            batch.run(step_seed, found, scale)
        add_up(self._counted)


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


def _rounding_of(formats: WeightFormats, names: tuple[str, ...]) -> UpdateRounding:
    """The quantizers of an update, with the keys that draws have on the general path."""
    first, second = (
        _keyed(formats.of_state(name), state_key(name)) for name in (*names, "", "")[:2]
    )
    working = None if formats.working_is_master else formats.weight
    return UpdateRounding(
        _keyed(formats.grad, Purpose.GRAD),
        _keyed(formats.master, Purpose.MASTER),
        (first if names else Keyed(), second if len(names) > 1 else Keyed()),
        _keyed(working, Purpose.WEIGHT),
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
