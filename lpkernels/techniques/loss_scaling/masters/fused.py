"""Which updates the fused pass takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from lpkernels.formats import FloatFormat
from lpkernels.techniques.loss_scaling.masters.formats import Formats, has_every_code
from lpkernels.techniques.loss_scaling.masters.rules import Rule
from lpkernels.techniques.loss_scaling.masters.sharding import Layout, here, is_placed

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
    groups: list[dict[str, Any]] | None = None,
) -> None:
    """Checks that the fused pass takes every parameter, if it must.  Raises TypeError,
    ValueError."""
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


class Choice:
    """Chooses whether the fused pass makes an update. It serves one step of an optimizer, and looks
    at options and formats once."""

    def __init__(self, fused: bool | None, optimizer: Optimizer) -> None:
        self._fused, self._kind = fused, type(optimizer)
        self._options: dict[int, str] = {}
        self._formats: dict[int, str] = {}

    def takes(self, group: Mapping[str, Any], parameter: Tensor, rule: Rule) -> bool:
        """Whether the pass makes this update. Raises ValueError where it must and cannot."""
        if self._fused is False:
            return False
        options = self._options.get(id(group))
        if options is None:
            options = self._options[id(group)] = _of_options(self._kind, group)
        formats = self._formats.get(id(rule.formats))
        if formats is None:
            formats = self._formats[id(rule.formats)] = _of_formats(rule.formats, self._kind)
        why = options or formats or _of_parameter(parameter)
        if why and self._fused:
            raise ValueError(
                f"MasterWeights: step of parameter {rule.name!r} with fused=True: {why}"
            )
        return not why


def refusal(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor, rule: Rule) -> str:
    """Why the fused pass cannot make an update; "" if it can."""
    kind = type(optimizer)
    return _of_options(kind, group) or _of_formats(rule.formats, kind) or _of_parameter(parameter)


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


def _of_formats(formats: Formats, kind: type[Optimizer]) -> str:
    """Why the fused pass cannot work with these formats; "" if it can."""
    if formats.split or formats.compensation is not None:
        return "it keeps neither split masters nor a compensation"
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
