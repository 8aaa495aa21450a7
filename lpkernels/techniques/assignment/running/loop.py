"""A training loop under an assignment, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lpkernels.techniques import checks
from lpkernels.techniques.assignment.running.assigned import Assigned, check_assigned
from lpkernels.techniques.loss_scaling import LossScaler


@dataclass(frozen=True)
class StepResult:
    """One step.

    loss: a 0-d tensor on the device, without a graph.
    skipped: whether the loss scaler left the weights as they were; False without one.
    promoted: keys that are in high precision from the next step on.
    ratio, bit_ratio: of the assignment that the step ran under.
    """

    loss: Tensor
    skipped: bool
    promoted: tuple[str, ...]
    ratio: float
    bit_ratio: float


def train_with_assignment(
    assigned: Assigned,
    optimizer: torch.optim.Optimizer,
    loader: Iterable[tuple[Any, Any]],
    *,
    scaler: LossScaler | torch.amp.GradScaler | None = None,
    steps: int | None = None,
) -> Iterator[StepResult]:
    """An iterator that trains, and gives the result of every step.

    Each batch (input, target) is one step: loss, backward, optimizer, promotion; gradients are set
    to None before. The mean of bit_ratio over the steps is what the paper plots as memory.

    Args:
        assigned: made by `assign`.
        optimizer: of the model's parameters.
        loader: batches, (input, target).
        scaler: a loss scaler, which formats of gradients as narrow as the paper's need.
        steps: ends after so many, before the loader does if it has more; None: with the loader.
    Raises: TypeError: nothing that `assign` made. ValueError: steps below 0; and as `assigned`.
    """
    check_assigned("train_with_assignment", assigned)
    if steps is not None:
        checks.whole("train_with_assignment: steps", steps, 0)
    return _steps(assigned, optimizer, loader, scaler, steps)


def _steps(
    assigned: Assigned,
    optimizer: torch.optim.Optimizer,
    loader: Iterable[tuple[Any, Any]],
    scaler: LossScaler | torch.amp.GradScaler | None,
    steps: int | None,
) -> Iterator[StepResult]:
    if steps == 0:
        return
    for number, (input, target) in enumerate(loader, 1):
        optimizer.zero_grad()
        value = assigned(input, target)
        skipped = _update(value, optimizer, scaler)
        before = assigned.assignment
        promoted = assigned.step()
        yield StepResult(value.detach(), skipped, promoted, before.ratio, before.bit_ratio)
        if number == steps:
            return


def _update(
    value: Tensor,
    optimizer: torch.optim.Optimizer,
    scaler: LossScaler | torch.amp.GradScaler | None,
) -> bool:
    """Whether the step was skipped."""
    if scaler is None:
        value.backward()
        optimizer.step()
        return False
    scaler.scale(value).backward()
    scaler.step(optimizer)
    if isinstance(scaler, LossScaler):
        ran = scaler.ran
        scaler.update()
        return ran is not None and not bool(ran)
    before = scaler.get_scale()
    scaler.update()
    # torch's scaler tells of a step that it left out by its smaller scale alone.
    return scaler.get_scale() < before
