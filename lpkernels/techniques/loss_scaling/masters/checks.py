"""Checks of optimizers that are to be wrapped and of their states, and warnings for users who ask
for narrow states."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import BlockFormat, Number
from lpkernels.formats.elsewhere import nearest
from lpkernels.functional.quantize import quantize
from lpkernels.techniques.loss_scaling.masters.codec import is_values
from lpkernels.techniques.loss_scaling.masters.formats import Rule, WeightFormats
from lpkernels.techniques.loss_scaling.masters.general import step_on_zeros

_REFUSED = {
    "LBFGS": "it evaluates the loss again within a step, and all parameters are one vector to it",
    "SparseAdam": "it takes sparse gradients",
}
# How much of a squared gradient a step adds to these states, by the options of the group; NaN
# where the options are not of an optimizer with such a state.
_SQUARES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "exp_avg_sq": lambda group: 1 - float(group["betas"][1]) if "betas" in group else math.nan,
    "square_avg": lambda group: 1 - float(group.get("alpha", group.get("rho", math.nan))),
    "sum": lambda group: 1.0 if "initial_accumulator_value" in group else math.nan,
}
# The states of torch's optimizers that are never negative.
_NEVER_NEGATIVE = (*_SQUARES, "max_exp_avg_sq", "acc_delta", "exp_inf")
# Smaller gradients do not matter here: it is the smallest value of fp16.
_SMALLEST_GRADIENT = 2.0**-24


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
    for refused, why in _REFUSED.items():
        parent = getattr(torch.optim, refused)
        if isinstance(optimizer, parent):
            raise NotImplementedError(
                f"MasterWeights: {kind} cannot be wrapped: {why}; use one that steps every "
                "parameter on its own, such as SGD or Adam"
            )
    if "step" in vars(optimizer) and getattr(optimizer.step, "__func__", None) is refuse_step:
        raise ValueError(
            f"MasterWeights: this {kind} is wrapped already; make another one, or use that wrapper"
        )
    strange = [str(key) for key in optimizer.state if not isinstance(key, Tensor)]
    if strange:
        raise NotImplementedError(
            f"MasterWeights: {kind} keeps states of no parameter ({', '.join(strange)}), and "
            "masters are stepped one by one; use one that keeps them in every parameter's state"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise NotImplementedError(
            f"MasterWeights: {kind}(differentiable=True) cannot be wrapped: rounding has no "
            "gradient here; leave differentiable out"
        )


def refuse_step(optimizer: Optimizer, closure: Any = None) -> None:
    """Takes the place of the step of an optimizer that is wrapped; it raises an error."""
    raise RuntimeError(
        f"MasterWeights: the step of the wrapped {type(optimizer).__name__} was called, which "
        "would change the working copies and no master; call the wrapper's step"
    )


def check_unchanged(parameter: Tensor, rule: Rule, counts: Tensor) -> None:
    """Checks that a parameter has a dense gradient and is as it was when it was wrapped.

    counts: the counts that were made then, on the device that the parameter had.
    Raises: TypeError, RuntimeError: it is not.
    """
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout is not torch.strided:
        raise TypeError(
            f"step: the gradient of parameter {rule.name!r} is {gradient.layout}, and masters "
            "take dense ones; use sparse=False, or p.grad.to_dense()"
        )
    if (parameter.device, parameter.dtype) != (counts.device, rule.dtype):
        raise RuntimeError(
            f"step: parameter {rule.name!r} was {rule.dtype} on {counts.device} when it was "
            f"wrapped, and is {parameter.dtype} on {parameter.device}; convert and move the "
            "model before the optimizer is made"
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


def check_states(
    optimizer: Optimizer, groups: Iterable[tuple[Mapping[str, Any], WeightFormats]]
) -> None:
    """Checks that formats are given only to states that exist, and that hold such values.

    groups: groups of the optimizer with their formats.
    Raises: ValueError: they are not. It may warn, as `_warn` says.
    """
    groups = list(groups)
    for _, formats in groups:
        _check_zeros(formats)
    if any(formats.states for _, formats in groups):
        names = _state_names(optimizer)
        strange = sorted({name for _, formats in groups for name in formats.states} - names)
        if strange:
            kind = type(optimizer).__name__
            listed = nearest(strange[0], sorted(names), "the optimizer's state lists all")
            has = f"its states are {listed}" if names else "it keeps none"
            raise ValueError(
                f"MasterWeights: state: {kind} has no state {', '.join(strange)} with these "
                f"options; {has}"
            )
    for group, formats in groups:
        _warn(group, formats)


def _check_zeros(formats: WeightFormats) -> None:
    """Raises: ValueError: a format without zero of values that may be negative."""
    for name, quantizer in formats.all():
        fmt = quantizer.fmt
        is_positive = name in formats.states and name in _NEVER_NEGATIVE
        if isinstance(fmt, BlockFormat) and fmt.without_zero and not is_positive:
            raise ValueError(
                f"MasterWeights: {name}: {fmt} has no zero and no negative values; it is for "
                f"states that are never negative ({', '.join(_NEVER_NEGATIVE)}), each given by "
                f"name, as in state={{'exp_avg_sq': '{fmt}'}}"
            )


def _warn(group: Mapping[str, Any], formats: WeightFormats) -> None:
    """Warns where a second moment stays 0, because a step's addition to 0 rounds to 0.

    With beta = 0.999 in fp16 this is so for |g| < 5.5e-3, where (1 - beta) g^2 < 2^-25.
    """
    for name, share_of in _SQUARES.items():
        share = share_of(group)
        if not share > 0 or (formats.states and name not in formats.states):
            continue
        gradient = math.sqrt(_rounds_to_zero_below(formats.of_state(name)) / share)
        if gradient > _SMALLEST_GRADIENT:
            warnings.warn(
                f"MasterWeights: {name} in {formats.of_state(name)} stays 0 where every |gradient| "
                f"is below {gradient:.2g}: what a step adds to it rounds to 0, and the optimizer "
                "divides by its root; bf16, a block format, stochastic rounding or fp32 keep it",
                UserWarning,
                stacklevel=4,
            )


def _rounds_to_zero_below(quantizer: Quantizer) -> float:
    """The largest value that becomes 0; 0.0 where it depends on other values or on draws."""
    if quantizer.is_stochastic or not isinstance(quantizer.fmt, Number):
        return 0.0
    exponents = torch.arange(-149, 128, dtype=torch.float32, device="cpu")
    powers = torch.exp2(exponents)
    # The limit of a rounding is a power of two, which is itself rounded to 0 or not.
    values = torch.cat([powers, torch.nextafter(powers, torch.zeros_like(powers))])
    zeros = values[quantize(values, quantizer) == 0]
    return float(zeros.max()) if zeros.numel() else 0.0
