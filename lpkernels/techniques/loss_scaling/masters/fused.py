"""The fused pass: which updates it takes, and steps of many parameters in one call."""

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
from lpkernels.functional.updating import UpdateTensors, update
from lpkernels.techniques.loss_scaling.masters.formats import Formats, has_every_code
from lpkernels.techniques.loss_scaling.masters.rules import Rule
from lpkernels.techniques.loss_scaling.masters.states import COUNTS, MASTER, state_key
from lpkernels.techniques.loss_scaling.masters.storage import zeros
from lpkernels.techniques.loss_scaling.masters.updates import Key

STEP = "step"
_STATES: dict[type[Optimizer], tuple[str, ...]] = {
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
    groups: list[dict[str, Any]] | None = None,
) -> None:
    """That the fused pass takes every parameter, if it must.  Raises TypeError, ValueError."""
    if fused not in (None, True, False):
        raise TypeError(f"MasterWeights: fused must be True, False or None, got {fused!r}")
    if not fused:
        return
    for group in optimizer.param_groups if groups is None else groups:
        for parameter in group["params"]:
            why = refusal(optimizer, group, parameter, rules[parameter])
            if why:
                raise ValueError(
                    f"MasterWeights: fused=True, but not for parameter {rules[parameter].name!r}: "
                    f"{why}; or leave fused out, which takes the general path there"
                )


def takes(
    fused: bool | None,
    optimizer: Optimizer,
    group: Mapping[str, Any],
    parameter: Tensor,
    rule: Rule,
) -> bool:
    """Whether the fused pass makes an update now.  Raises ValueError where it must and cannot."""
    if fused is False:
        return False
    why = refusal(optimizer, group, parameter, rule)
    if why and fused:
        raise ValueError(f"MasterWeights: step of parameter {rule.name!r} with fused=True: {why}")
    return not why


def refusal(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor, rule: Rule) -> str:
    """Why an update is not one for the fused pass; "" if it is."""
    return (
        _of_options(type(optimizer), group)
        or _of_parameter(parameter)
        or of_formats(rule.formats, type(optimizer))
    )


def _of_options(kind: type[Optimizer], group: Mapping[str, Any]) -> str:
    if kind not in _STATES:
        return f"it steps as SGD, Adam and AdamW of torch do, not as {kind.__name__}"
    if group.get("amsgrad"):
        return "it keeps no maximum of second moments: leave amsgrad out"
    for name in _NUMBERS:
        value = group.get(name, 0.0)
        if any(isinstance(x, Tensor) for x in (value if isinstance(value, tuple) else (value,))):
            return f"it takes {name} as a number, not as a tensor, which it would wait for"
    return ""


def _of_parameter(parameter: Tensor) -> str:
    gradient = parameter.grad
    dtypes = (parameter.dtype, parameter.dtype if gradient is None else gradient.dtype)
    if hasattr(parameter, "device_mesh"):
        return "it steps whole parameters, and this one is sharded"
    if any(dtype not in _DTYPES for dtype in dtypes):
        return f"it takes float32, float16 and bfloat16, not {dtypes[0]} with {dtypes[1]} gradients"
    if not parameter.is_contiguous():
        return "it takes contiguous parameters: use p.data = p.data.contiguous()"
    return ""


def of_formats(formats: Formats, kind: type[Optimizer]) -> str:
    """Why these formats are not for the fused pass."""
    if formats.split or formats.compensation is not None:
        return "it keeps neither split masters nor a compensation"
    rounded = {"grad": formats.grad, "weight": formats.weight, "master": formats.master}
    kept = {} if formats.working_is_master else {"master": formats.master}
    for name in _STATES.get(kind, ()):
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


@dataclass
class Batch:
    """Parameters that one call steps: of one group, one set of formats, one device, one dtype.

    tensors: of each kind of `UpdateTensors`, in that order.
    """

    step: arithmetic.Step
    formats: Formats
    begins: bool
    names: tuple[str, ...]
    tensors: tuple[list[Tensor], ...]
    positions: list[int] = field(default_factory=list)

    def add(self, parameter: Tensor, position: int, kept: Mapping[str, Any]) -> None:
        """A parameter that has a gradient, its number in the draws' keys, and what is kept."""
        gradients, weights, masters, first, second, steps, counts = self.tensors
        gradient = parameter.grad
        assert gradient is not None
        gradients.append(gradient.contiguous())
        weights.append(parameter)
        if not self.formats.working_is_master:
            masters.append(kept[MASTER])
        for held, name in zip((first, second), self.names, strict=False):
            held.append(kept[name])
        if isinstance(self.step, arithmetic.Adam):
            steps.append(kept[STEP])
        counts.append(kept[COUNTS])
        self.positions.append(position)

    def run(self, seed: Tensor, found: Tensor | None, scale: Any) -> None:
        """Makes the updates; see `Batches.run`."""
        device = self.tensors[1][0].device
        if scale is not None:
            scale = torch.as_tensor(scale, dtype=torch.float32, device=device).reshape(())
        update(
            UpdateTensors(*self.tensors),
            self.step,
            _rounding_of(self.formats, self.names),
            self.positions,
            begins=self.begins,
            seed=seed.to(device) if self.formats.draws else None,
            found=None if found is None else found.to(device),
            scale=scale,
        )


class Batches:
    """Collects updates of a step of an optimizer, and makes them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._kind = type(optimizer)
        self._batches: dict[tuple[Any, ...], Batch] = {}
        self._steps: dict[int, arithmetic.Step] = {}

    def add(
        self, group: Mapping[str, Any], parameter: Tensor, rule: Rule, kept: dict[str, Any]
    ) -> list[str]:
        """A parameter that has a gradient, and what is kept of it; the states that begin now."""
        step = self._steps.get(id(group))
        if step is None:
            step = self._steps[id(group)] = _step_of(self._kind, group)
        names = _STATES[self._kind][: step.states]
        gradient = parameter.grad
        assert gradient is not None
        began = [name for name in names if name not in kept]
        for name in began:
            fmt = rule.formats.of_state(name).fmt
            assert isinstance(fmt, FloatFormat)
            kept[name] = zeros(parameter.shape, fmt, parameter.device)
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
        batch.add(parameter, rule.number, kept)
        return began

    def run(self, seed: Tensor, found: Tensor | None, scale: Any) -> None:
        """Makes them.

        seed: of the step. found: 0-d bool. scale: what gradients are still multiplied by.
        """
        for batch in self._batches.values():
            batch.run(seed, found, scale)


def _step_of(kind: type[Optimizer], group: Mapping[str, Any]) -> arithmetic.Step:
    """The options of a group, as they are now."""
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
    """With the keys of the general path's draws."""
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
    """float32 is what values are already."""
    rounds = quantizer is not None and quantizer.fmt != FP32
    return Keyed(quantizer if rounds else None, int(key))


def _count_steps(kept: dict[str, Any], parameter: Tensor) -> list[str]:
    """Makes the count of steps a float32 number on the parameter's device, where the pass reads it;
    its name, if it begins."""
    count = kept.get(STEP)
    given = 0.0 if count is None else count
    kept[STEP] = torch.as_tensor(given, dtype=torch.float32, device=parameter.device)
    return [STEP] if count is None else []
