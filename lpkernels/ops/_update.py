"""The operator that steps parameters in one pass over each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import Step, UpdateRounding
from lpkernels.arithmetic.updates import ROUNDING_INTS
from lpkernels.backends import UpdateTensors
from lpkernels.formats.integers import for_table
from lpkernels.ops import _checks
from lpkernels.ops._operator import define


def _update_impl(
    gradients: Sequence[Tensor],
    weights: Sequence[Tensor],
    masters: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    steps: Sequence[Tensor],
    counts: Sequence[Tensor],
    seed: Tensor | None,
    found: Tensor | None,
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
    chosen.update(tensors, seed, found, scale, *call)
    # Backends write through pointers, so autograd learns of the change only here.
    torch.autograd.graph.increment_version(weights)


def _guard(*args: Any) -> None:
    *kinds, seed, found, scale, positions, origins, rounding, numbers, _, _ = args
    tensors = UpdateTensors(*kinds)
    if tensors.weights:
        shared = (seed, found, scale)
        _checks.update(tensors, shared, (positions, origins), rounding, numbers)


_update = define(
    "_update(Tensor[] gradients, Tensor(a!)[] weights, Tensor(b!)[] masters, Tensor(c!)[] first,"
    " Tensor(d!)[] second, Tensor(e!)[] steps, Tensor(f!)[] counts, Tensor? seed, Tensor? found,"
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
    found: Tensor | None = None,
    scale: Tensor | None = None,
    backend: str = "auto",
) -> None:
    """An optimizer's step of every parameter, in place; `lpkernels.backends.Backend.update`."""
    keys = (list(positions), list(origins))
    call: tuple[Any, ...] = (*keys, rounding.to_ints(), step.to_numbers(), begins)
    _update(*map(list, tensors), seed, found, scale, *call, backend)
