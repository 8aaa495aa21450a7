"""The operator that steps parameters in one pass over each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import (
    Adam,
    Step,
    UpdateRounding,
    step_from_numbers,
    update_rounding_from_ints,
)
from lpkernels.arithmetic.updates import ROUNDING_INTS
from lpkernels.backends import Update, UpdateTensors
from lpkernels.formats.integers import code_bits, for_table
from lpkernels.ops import _checks
from lpkernels.ops._operator import define
from lpkernels.ops._rows import Ints

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_NUMBERS = 8


def _update_impl(
    gradients: Sequence[Tensor],
    weights: Sequence[Tensor],
    masters: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    steps: Sequence[Tensor],
    counts: Sequence[Tensor],
    seed: Tensor | None,
    skips: Tensor | None,
    scale: Tensor | None,
    positions: Sequence[int],
    origins: Sequence[int],
    rounding: Sequence[int],
    numbers: Sequence[float],
    begins: bool,
    backend: str,
) -> None:
    if not weights:
        return
    tensors = UpdateTensors(gradients, weights, masters, first, second, steps, counts)
    rounding = tuple(rounding)
    # Behind the key of each rounding, and whether it has a quantizer.
    formats = [rounding[i + 2 :] for i in range(0, len(rounding), ROUNDING_INTS)]
    chosen = backends.select(backend, for_table("update", *formats), weights[0].device)
    call = (positions, origins, rounding, tuple(numbers), begins)
    chosen.update(Update(tensors, *call, seed, skips, scale))
    # Backends write through pointers, so autograd learns of the change only here.
    torch.autograd.graph.increment_version(weights)


def _check(
    tensors: UpdateTensors,
    shared: Sequence[Tensor | None],
    keys: Sequence[Sequence[int]],
    rounding: Sequence[int],
    numbers: Sequence[float],
) -> UpdateRounding:
    """The roundings of an update; its tensors are as `UpdateTensors` says. shared: its seed, skips
    and scale."""
    made = _update_rounding(tuple(rounding))
    _checks.require(len(numbers) == _NUMBERS, "update", f"{_NUMBERS} numbers of a step", numbers)
    step = step_from_numbers(tuple(numbers))
    own = step.to_numbers() == tuple(numbers)
    _checks.require(own, "update", "the numbers of a step's to_numbers()", numbers)
    count = len(tensors.weights)
    for name, kind in zip(tensors._fields, tensors, strict=True):
        needed = _needed(name, step)
        right = len(kind) == count or (len(kind) == 0 and not needed)
        _checks.require(right, "update", f"{count} {name}", len(kind))
        for x, weight in zip(kind, tensors.weights, strict=False):
            _kept(name, x, kind[0], weight, made)
    for each in keys:
        right = len(each) == count and all(0 <= key < 2**62 for key in each)
        _checks.require(right, "update", f"{count} positions and origins from 0 up", list(each))
    device = tensors.weights[0].device
    for one, dtype in zip(shared, (torch.int64, torch.bool, torch.float32), strict=True):
        right = one is None or (one.dtype is dtype and one.dim() == 0 and one.device == device)
        _checks.require(right, "update", f"a {dtype} without dimensions on {device}", one)
    rounds = (made.grad, made.master, *made.states, made.weight)
    draws = any(each.quantizer.is_stochastic for each in rounds if each.quantizer)
    _checks.require(
        not draws or shared[0] is not None, "update", "a seed of stochastic roundings", None
    )
    return made


@lru_cache(1024)
def _update_rounding(ints: Ints) -> UpdateRounding:
    return _checks.described("UpdateRounding", update_rounding_from_ints, ints)


def _needed(name: str, step: Step) -> bool:
    """Whether an update has such tensors in any case."""
    states = {"first": step.states > 0, "second": step.states > 1}
    adam = {"steps": isinstance(step, Adam)}
    always = dict.fromkeys(("gradients", "weights", "counts"), True)
    return {**always, **states, **adam}.get(name, False)


def _kept(name: str, x: Tensor, one: Tensor, weight: Tensor, made: UpdateRounding) -> None:
    """One of the tensors of a kind; all have the dtype of the first."""
    right = x.device == weight.device and x.dtype == one.dtype and x.is_contiguous()
    if name == "steps":
        right = right and x.dtype is torch.float32 and x.dim() == 0
    elif name == "counts":
        right = right and x.dtype is torch.int64 and tuple(x.shape) == (2,)
    elif x.dtype is torch.uint8 and name in ("masters", "first", "second"):
        place = {"masters": made.master, "first": made.states[0], "second": made.states[1]}[name]
        bits = code_bits(place.quantizer.fmt.to_ints()) if place.quantizer else 0
        right = right and bits in (8, 16, 32) and x.shape == (weight.numel() * bits // 8,)
    else:
        right = right and x.dtype in _FLOATS and x.numel() == weight.numel()
    got = f"{tuple(x.shape)} in {x.dtype} on {x.device}"
    _checks.require(right, "update", f"{name} of a weight {tuple(weight.shape)}, dense", got)


def _guard(*args: Any) -> None:
    *kinds, seed, skips, scale, positions, origins, rounding, numbers, _, _ = args
    tensors = UpdateTensors(*kinds)
    if tensors.weights:
        shared = (seed, skips, scale)
        _check(tensors, shared, (positions, origins), rounding, numbers)


_update = define(
    "_update(Tensor[] gradients, Tensor(a!)[] weights, Tensor(b!)[] masters, Tensor(c!)[] first,"
    " Tensor(d!)[] second, Tensor(e!)[] steps, Tensor(f!)[] counts, Tensor? seed, Tensor? skips,"
    " Tensor? scale, int[] positions, int[] origins, int[] rounding, float[] numbers,"
    " bool begins, str backend) -> ()",
    lambda *args: None,
    _update_impl,
    _guard,
)


def update(
    tensors: UpdateTensors,
    step: Step,
    rounding: UpdateRounding,
    positions: Sequence[int],
    origins: Sequence[int],
    *,
    begins: bool,
    seed: Tensor | None = None,
    skips: Tensor | None = None,
    scale: Tensor | None = None,
    backend: str = "auto",
) -> None:
    """An optimizer's step of every parameter, in place; `lpkernels.backends.Backend.update`."""
    keys = (list(positions), list(origins))
    call: tuple[Any, ...] = (*keys, rounding.to_ints(), step.to_numbers(), begins)
    _update(*map(list, tensors), seed, skips, scale, *call, backend)
