"""The operator that steps parameters in one pass over each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic import (
    Adam,
    Step,
    UpdateRounding,
    step_from_numbers,
    update_rounding_from_ints,
)
from lpkernels.arithmetic.updates import ROUNDING_INTS
from lpkernels.backends import Update, UpdateTensors
from lpkernels.formats.integers import Ints, code_bits, for_table
from lpkernels.ops._checks import tensor
from lpkernels.ops._descriptions import parsed, require, select
from lpkernels.ops._operator import define

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_NUMBERS = 8
_KINDS = len(UpdateTensors._fields)


def _record(arguments: Sequence[Any]) -> tuple[Update, str]:
    """The record of the operator's arguments, and the backend."""
    seed, skips, scale, positions, origins, rounding, numbers, begins, backend = arguments[_KINDS:]
    tensors, numbers = UpdateTensors(*arguments[:_KINDS]), tuple(numbers)
    ints = tuple(rounding)
    return Update(tensors, positions, origins, ints, numbers, begins, seed, skips, scale), backend


def _update_directly(arguments: Sequence[Any]) -> None:
    update, backend = _record(arguments)
    weights, ints = update.tensors.weights, update.rounding
    if not weights:
        return
    # Behind the key of each rounding, and whether it has a quantizer.
    formats = [ints[i + 2 :] for i in range(0, len(ints), ROUNDING_INTS)]
    select(backend, for_table("update", *formats), weights[0].device).update(update)
    # Backends write through pointers, so autograd learns of the change only here.
    torch.autograd.graph.increment_version(weights)


def _guard(arguments: Sequence[Any]) -> None:
    """Refuses tensors that are not as `UpdateTensors` says, and wrong integers and numbers."""
    update, _ = _record(arguments)
    tensors, numbers, weights = update.tensors, update.numbers, update.tensors.weights
    if not weights:
        return
    places = _update_rounding(update.rounding)
    require(len(numbers) == _NUMBERS, "update", f"{_NUMBERS} numbers of a step", numbers)
    step = step_from_numbers(numbers)
    own = step.to_numbers() == numbers
    require(own, "update", "the numbers of a step's to_numbers()", numbers)
    count, device = len(weights), weights[0].device
    for name, kind in zip(tensors._fields, tensors, strict=True):
        valid = len(kind) == count or (len(kind) == 0 and not _needed(name, step))
        require(valid, "update", f"{count} {name}", len(kind))
        for x, weight in zip(kind, weights, strict=False):
            _tensor(name, x, kind[0], weight, places)
    for keys in (update.positions, update.origins):
        valid = len(keys) == count and all(0 <= key < 2**62 for key in keys)
        require(valid, "update", f"{count} positions and origins from 0 up", list(keys))
    shared = (update.seed, update.skips, update.scale)
    for number, dtype in zip(shared, (torch.int64, torch.bool, torch.float32), strict=True):
        if number is not None:
            tensor("update", "a number", number, (), dtype, device)
    rounds = (places.grad, places.master, *places.states, places.weight)
    draws = any(place.quantizer.is_stochastic for place in rounds if place.quantizer)
    valid = not draws or update.seed is not None
    require(valid, "update", "a seed of stochastic roundings", None)


@lru_cache(1024)
def _update_rounding(ints: Ints) -> UpdateRounding:
    return parsed("UpdateRounding", update_rounding_from_ints, ints)


def _needed(name: str, step: Step) -> bool:
    """Whether an update has such tensors in any case."""
    states = {"first": step.states > 0, "second": step.states > 1}
    adam = {"steps": isinstance(step, Adam)}
    always = dict.fromkeys(("gradients", "weights", "counts"), True)
    return {**always, **states, **adam}.get(name, False)


def _tensor(name: str, x: Tensor, first: Tensor, weight: Tensor, places: UpdateRounding) -> None:
    """Refuses a wrong tensor of a kind; all have the dtype of the first."""
    shape: Sequence[int] = x.shape if x.numel() == weight.numel() else weight.shape
    dtypes: Sequence[torch.dtype] = _FLOATS
    if name == "steps":
        shape, dtypes = (), (torch.float32,)
    elif name == "counts":
        shape, dtypes = (2,), (torch.int64,)
    elif x.dtype is torch.uint8 and name in ("masters", "first", "second"):
        first_state, second_state = places.states
        place = {"masters": places.master, "first": first_state, "second": second_state}[name]
        bits = code_bits(place.quantizer.fmt.to_ints()) if place.quantizer else 0
        require(bits in (8, 16, 32), "update", f"{name} in codes of 8, 16 or 32 bits", bits)
        shape, dtypes = (weight.numel() * bits // 8,), (torch.uint8,)
    require(x.dtype in dtypes, "update", f"{name} in {dtypes}", x.dtype)
    tensor("update", name, x, shape, first.dtype, weight.device, dense=True)


_update = define(
    "_update(Tensor[] gradients, Tensor(a!)[] weights, Tensor(b!)[] masters, Tensor(c!)[] first,"
    " Tensor(d!)[] second, Tensor(e!)[] steps, Tensor(f!)[] counts, seed, Tensor? skips,"
    " Tensor? scale, int[] positions, int[] origins, int[] rounding, float[] numbers,"
    " bool begins, backend) -> ()",
    lambda arguments: None,
    _update_directly,
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
    _update(
        *map(list, tensors), seed, skips, scale, list(positions), list(origins),
        rounding.to_ints(), step.to_numbers(), begins, backend,
    )  # fmt: skip
