"""The scale that gradients have when they are seen, without waiting for it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lpkernels.techniques.loss_scaling import _scale
from lpkernels.techniques.loss_scaling.scaler import LossScaler


class SeenScale:
    """The scale of a number, a LossScaler or a torch.amp.GradScaler; None is 1.

    Raises: TypeError, ValueError: something else, or a number that is no scale.
    """

    def __init__(self, given: Any) -> None:
        #: The exponent of a scale that does not change.
        self.constant: int | None = None
        self._scaler = given
        if isinstance(given, LossScaler):
            if given._scale.static or not given.is_enabled():
                self.constant = _exponent(given.get_scale())
        elif isinstance(given, torch.amp.GradScaler):
            if not given.is_enabled():
                self.constant = 0
        else:
            given = 1.0 if given is None else given
            self.constant = _exponent(_scale.scale("diagnose: scaler", given))

    def exponent(self, device: torch.device) -> Tensor:
        """floor(log2(scale)) as it is now: 0-d int32 on `device`."""
        one = torch.ones((), dtype=torch.float32, device=device)
        # Calling `scale` of the scaler would count as a call of the user's own.
        times = self._scaler._times if isinstance(self._scaler, LossScaler) else self._scaler.scale
        return torch.frexp(times(one)).exponent - 1


def _exponent(scale: float) -> int:
    return math.frexp(scale)[1] - 1
