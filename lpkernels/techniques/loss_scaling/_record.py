"""The outcome of an update, found out when somebody asks."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from lpkernels.techniques.loss_scaling._gradients import parameters, values


@dataclass(frozen=True)
class StepRecord:
    """One call of LossScaler.step.

    ran: whether the optimizer changed the weights.
    parameter: the first parameter, in the optimizer's order, whose gradient was not finite: its
        name if the scaler knows it, else its position. None if the step ran, if the gradients of
        this process were finite (another rank's were not), or if they are gone.
    """

    ran: bool
    parameter: str | int | None = None


class Outcome:
    """A step whose flag is on the device; it keeps no gradient alive.

    found: 0-d, not 0 if the step was skipped.  names: those of the parameters.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, found: Tensor, names: Mapping[Tensor, str]
    ) -> None:
        self.found = found
        self._labels: list[str | int] = []
        self._gradients: list[tuple[TensorWeakRef, int]] = []
        self._finite: Tensor | None = None
        for position, parameter in enumerate(parameters(optimizer)):
            if parameter.grad is not None:
                self._labels.append(names.get(parameter, position))
                gradient = parameter.grad
                self._gradients.append((TensorWeakRef(gradient), gradient._version))

    def look(self) -> None:
        """Notes on the device which gradients are finite, while they still are what they were."""
        here = [reference() for reference, _ in self._gradients]
        same = [
            gradient is not None and gradient._version == version
            for gradient, (_, version) in zip(here, self._gradients, strict=True)
        ]
        if all(same):
            flags = [
                torch.isfinite(values(gradient)).all().to(self.found.device, non_blocking=True)
                for gradient in here
            ]
            self._finite = torch.stack(flags) if flags else None
        self._gradients = []

    def record(self) -> StepRecord:
        """The record of the step; it waits for the device."""
        if not self.found.item():
            return StepRecord(ran=True)
        if self._finite is None:
            self.look()
        finite = [] if self._finite is None else self._finite.tolist()
        bad = [label for label, fine in zip(self._labels, finite, strict=False) if not fine]
        return StepRecord(ran=False, parameter=bad[0] if bad else None)
