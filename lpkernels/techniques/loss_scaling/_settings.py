"""What GradScaler lets its users read, set, save and load."""

from collections.abc import Mapping
from typing import Any

from lpkernels.techniques.loss_scaling import _checks
from lpkernels.techniques.loss_scaling._scale import Scale


class ScaleSettings:
    """The scale of a scaler, its rule and its state, under the names of torch.amp.GradScaler."""

    _scale: Scale
    _enabled: bool

    def get_scale(self) -> float:
        """The scale, or 1 if not enabled; it waits for the device unless the scale is static."""
        return self._scale.value() if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        return self._scale.growth

    def set_growth_factor(self, new_factor: float) -> None:
        self._scale.growth = _checks.growth(new_factor)

    def get_backoff_factor(self) -> float:
        return self._scale.backoff

    def set_backoff_factor(self, new_factor: float) -> None:
        self._scale.backoff = _checks.backoff(new_factor)

    def get_growth_interval(self) -> int:
        return self._scale.interval

    def set_growth_interval(self, new_interval: int) -> None:
        self._scale.interval = _checks.count("growth_interval", new_interval, 1)

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Plain values, to be taken after update(): GradScaler's five, which it loads, and `static`
        and `updates`.

        The state is empty if the scaler is not enabled. Reading it waits for the device. The bounds
        are no part of it.
        """
        return self._scale.state_dict() if self._enabled else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over the state of a LossScaler or of a torch.amp.GradScaler; all or nothing.

        Raises:
            RuntimeError: the state is empty, as that of a scaler that is not enabled.
            TypeError, ValueError: it is no state of a scaler, or the state of one of the other
                kind.
        """
        if not self._enabled:
            return
        if isinstance(state_dict, Mapping) and not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a scaler that "
                "was not enabled."
            )
        self._scale.load_state_dict(state_dict)
