"""Sums over an epoch that stay on the device until the epoch ends."""

from collections.abc import Mapping

import torch
from torch import Tensor

from lpkernels.experiments.processes.torchrun import Processes


class Tally:
    """Named float64 sums, to which tensors on the device are added without waiting for them.

    In float64 a sum of float32 values hardly depends on its order, nor on how a batch is shared.
    """

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        self._sums: dict[str, Tensor] = {
            name: torch.tensor(value, dtype=torch.float64) for name, value in (values or {}).items()
        }

    def add(self, name: str, value: Tensor) -> None:
        """Adds a 0-d tensor, of any dtype."""
        value = value.detach().double()
        known = self._sums.get(name)
        if known is None:
            # This makes a copy: the tensor may be the caller's own.
            self._sums[name] = value.clone()
        elif known.device == value.device:
            known += value
        else:
            self._sums[name] = known.to(value.device) + value

    def totals(self, processes: Processes) -> dict[str, float]:
        """All: the sums over the processes, which wait here for the device and for each other."""
        names = list(self._sums)
        here = [float(self._sums[name]) for name in names]
        return dict(zip(names, processes.sums(here), strict=True))

    def here(self, name: str) -> float:
        """The sum of this process alone; waits for the device."""
        return float(self._sums[name]) if name in self._sums else 0.0
