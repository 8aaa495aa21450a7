"""Checks of optimizers that are to be wrapped, and warnings for users who ask for narrow states."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import (
    BlockFormat,
    FixedFormat,
    FloatFormat,
    TableFormat,
)
from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques.loss_scaling.masters.formats import Rule, WeightFormats
from lpkernels.techniques.loss_scaling.masters.groups import steps_alone
from lpkernels.techniques.loss_scaling.masters.stored import is_values

_REFUSED = {
    "LBFGS": "it evaluates the loss again within a step, and all parameters are one vector to it",
    "SparseAdam": "it takes sparse gradients",
}
# How much of a squared gradient a step adds to these states, by the options of the group.
_SQUARES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "exp_avg_sq": lambda group: 1 - float(group["betas"][1]) if "betas" in group else math.nan,
    "square_avg": lambda group: 1 - float(group.get("alpha", group.get("rho", math.nan))),
    "sum": lambda group: 1.0,
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


def state_names(optimizer: Optimizer) -> set[str]:
    """The names of the optimizer's states of elements: the states that it has, and the states that
    a step on zeros makes.

    The step is one on a small parameter of its own, with the options of each group.
    """
    names = {
        name
        for state in optimizer.state.values()
        for name, value in state.items()
        if is_values(name, value)
    }
    if names:
        return names
    for group in optimizer.param_groups:
        for dims in {max(p.dim(), 1) for p in group["params"]}:
            device = group["params"][0].device
            zeros = torch.zeros([2] * dims, dtype=torch.float32, device=device)
            (state,), _ = steps_alone(optimizer, group, [(zeros, torch.zeros_like(zeros), {})])
            names |= {name for name, value in state.items() if is_values(name, value)}
    return names


def check_states(optimizer: Optimizer, formats: Iterable[WeightFormats]) -> None:
    """Checks that formats are given only to states that exist, and that hold such values.  Raises
    ValueError.  It may warn, as `_warn` says."""
    formats = list(formats)
    for each in formats:
        _check_zeros(each)
    if any(each.states for each in formats):
        known = state_names(optimizer)
        strange = sorted({name for each in formats for name in each.states} - known)
        if strange:
            kind = type(optimizer).__name__
            listed = nearest(strange[0], sorted(known), "the optimizer's state lists all")
            has = f"its states are {listed}" if known else "it keeps none"
            raise ValueError(
                f"MasterWeights: state: {kind} has no state {', '.join(strange)} with these "
                f"options; {has}"
            )
    for each in formats:
        for group in optimizer.param_groups:
            _warn(each, group)


def _check_zeros(formats: WeightFormats) -> None:
    """Raises: ValueError: a format without zero of values that may be negative."""
    given = {name: getattr(formats, name) for name in ("weight", "master", "grad", "compensation")}
    given |= formats.states or {"state": formats.state}
    for name, quantizer in given.items():
        fmt = None if quantizer is None else quantizer.fmt
        held = name in formats.states and name in _NEVER_NEGATIVE
        if isinstance(fmt, BlockFormat) and fmt.without_zero and not held:
            raise ValueError(
                f"MasterWeights: {name}: {fmt} has no zero and no negative values; it is for "
                f"states that are never negative ({', '.join(_NEVER_NEGATIVE)}), each given by "
                f"name, as in state={{'exp_avg_sq': '{fmt}'}}"
            )


def _warn(formats: WeightFormats, group: Mapping[str, Any]) -> None:
    """Warns where a second moment stays 0, because a step's addition to 0 rounds to 0.

    With beta = 0.999 in fp16 this is so for |g| < 5.5e-3, where (1 - beta) g^2 < 2^-25.
    """
    for name, share in _SQUARES.items():
        if name not in formats.states and formats.states:
            continue
        if name != "sum" and not math.isfinite(share(group)):
            continue
        if name == "exp_avg_sq" and "betas" not in group:
            continue
        if name == "sum" and "initial_accumulator_value" not in group:
            continue
        least = _rounds_to_zero_below(formats.of_state(name))
        gradient = math.sqrt(least / share(group)) if share(group) > 0 else 0.0
        if gradient > _SMALLEST_GRADIENT:
            warnings.warn(
                f"MasterWeights: {name} in {formats.of_state(name)} stays 0 where every |gradient| "
                f"is below {gradient:.2g}: what a step adds to it rounds to 0, and the optimizer "
                "divides by its root; bf16, a block format, stochastic rounding or fp32 keep it",
                UserWarning,
                stacklevel=5,
            )


def _rounds_to_zero_below(quantizer: Quantizer) -> float:
    """The largest value that becomes 0; 0.0 where it depends on other values or on draws."""
    fmt = quantizer.fmt
    if isinstance(fmt, FixedFormat):
        least = 2.0**-fmt.frac_bits
    elif isinstance(fmt, FloatFormat):
        least = fmt.min_subnormal
    elif isinstance(fmt, TableFormat):
        return _table_to_zero_below(fmt, quantizer.rounding)
    else:
        return 0.0
    if quantizer.rounding in ("nearest_even", "nearest_away"):
        return least / 2
    return least if quantizer.rounding in ("toward_zero", "toward_negative") else 0.0


def _table_to_zero_below(fmt: TableFormat, rounding: str) -> float:
    """`_rounds_to_zero_below` of a table: the boundary above 0, or the value above 0."""
    values, boundaries, *_ = fmt.tensors()
    above = int(values.searchsorted(0.0)) + 1
    if above == len(values):
        return math.inf
    if rounding in ("nearest_even", "nearest_away"):
        return float(boundaries[above - 1])
    return float(values[above]) if rounding in ("toward_zero", "toward_negative") else 0.0
