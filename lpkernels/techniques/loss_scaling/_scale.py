"""The scale: a float32 number on the device, how it grows and shrinks, and its state."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpkernels.techniques import checks

# The names of torch.amp.GradScaler's state; a LossScaler's has one more.
_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
# Smaller scales have an inverse beyond float32.
_LEAST = 2.0**-126


def scale(label: str, value: Any) -> float:
    """A scale as float32 holds it: positive and finite, with an inverse that is finite too."""
    with np.errstate(over="ignore"):
        held = float(np.float32(checks.real(label, value)))
    if not _LEAST <= held < math.inf:
        raise ValueError(
            f"{label}: expected a positive finite scale, from 2**-126 to float32's largest number, "
            f"got {value}; powers of two such as 2.0**16 round nothing"
        )
    return held


def growth_factor(value: Any) -> float:
    """A factor by which the scale grows."""
    return checks.number("growth_factor", value, above=1)


def backoff_factor(value: Any) -> float:
    """A factor by which the scale shrinks."""
    return checks.number("backoff_factor", value, above=0, below=1)


class Scale:
    """A scale and the rule that changes it; the tensors are made where they are first used.

    After an update with a gradient that is not finite the scale is multiplied by `backoff`. After
    `interval` other updates in a row it is multiplied by `growth`, unless float32 cannot hold the
    result. Then the floor and the ceiling are applied.

    label: the name of the argument that is `start`.
    """

    def __init__(
        self,
        label: str,
        start: float,
        *,
        static: bool,
        growth: float,
        backoff: float,
        interval: int,
        floor: float | None,
        ceiling: float | None,
    ) -> None:
        self.static = static
        self.growth, self.backoff = growth_factor(growth), backoff_factor(backoff)
        self.interval = checks.whole("growth_interval", interval, 1)
        self._start, self._start_tracker = scale(label, start), 0
        self._tensors: tuple[Tensor, Tensor] | None = None
        low = self._floor = None if floor is None else scale("floor", floor)
        high = self._ceiling = None if ceiling is None else scale("ceiling", ceiling)
        if low is not None and high is not None and low > high:
            raise ValueError(
                f"floor: expected at most the ceiling {high}, got {low}; raise the ceiling or "
                "lower the floor"
            )
        if (low is not None and self._start < low) or (high is not None and self._start > high):
            raise ValueError(
                f"{label}: expected a scale between the floor {low} and the ceiling {high}, got "
                f"{start}"
            )

    @property
    def made(self) -> bool:
        return self._tensors is not None

    def on(self, device: torch.device) -> Tensor:
        """The scale, on the device where it is; it is made on `device` if it is nowhere yet."""
        if self._tensors is None:
            self._tensors = (
                torch.full((), self._start, dtype=torch.float32, device=device),
                torch.full((), self._start_tracker, dtype=torch.int32, device=device),
            )
        return self._tensors[0]

    @property
    def tensor(self) -> Tensor:
        """The scale as a tensor; `made` must be true."""
        assert self._tensors is not None
        return self._tensors[0]

    def inverse(self) -> Tensor:
        """1 / scale, rounded once to float32: exact for a power of two."""
        return self.tensor.double().reciprocal().float()

    @property
    def divisor(self) -> float | None:
        """The scale, where gradients are divided by it because it is a constant that is no power of
        two; else None."""
        return self._start if self.static and math.frexp(self._start)[0] != 0.5 else None

    def update(self, found: Tensor) -> None:
        """Makes the next scale. found: 0-d, not 0 after a gradient that was not finite."""
        if self.static:
            return
        assert self._tensors is not None
        torch._amp_update_scale_(*self._tensors, found, self.growth, self.backoff, self.interval)
        if self._floor is not None or self._ceiling is not None:
            self.tensor.clamp_(self._floor, self._ceiling)

    def fill(self, value: float | Tensor) -> None:
        """Sets another scale from now on; the value of a tensor is not checked."""
        if self.static:
            raise ValueError(
                f"update: a static scale stays {self._start}, got new_scale={value}; make another "
                "LossScaler, without static="
            )
        if isinstance(value, Tensor):
            if value.numel() != 1 or value.requires_grad:
                raise ValueError(
                    "update: new_scale must be a number or a tensor of 1 element that requires no "
                    f"gradient, got shape {tuple(value.shape)}, requires_grad={value.requires_grad}"
                )
            self.on(value.device).copy_(value.reshape(()))
            return
        self._start = scale("update: new_scale", value)
        if self._tensors is not None:
            self.tensor.fill_(self._start)

    def value(self) -> float:
        """The scale; waits for the device unless it is static or not used yet."""
        return self._start if self.static or self._tensors is None else self.tensor.item()

    def _tracker(self) -> int:
        return self._start_tracker if self._tensors is None else int(self._tensors[1].item())

    def __getstate__(self) -> dict[str, Any]:
        plain = {"_start": self.value(), "_start_tracker": self._tracker(), "_tensors": None}
        return {**self.__dict__, **plain}

    def state_dict(self) -> dict[str, Any]:
        values = (self.value(), self.growth, self.backoff, self.interval, self._tracker())
        return {**dict(zip(_KEYS, values, strict=True)), "static": self.static}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._check(state)
        start = scale("load_state_dict: scale", state["scale"])
        growth = growth_factor(state["growth_factor"])
        backoff = backoff_factor(state["backoff_factor"])
        interval = checks.whole("growth_interval", state["growth_interval"], 1)
        tracker = checks.whole("_growth_tracker", state["_growth_tracker"], 0)
        if self.static and start != self._start:
            raise ValueError(
                f"load_state_dict: a static scale stays {self._start}, got a state of {start}; "
                f"make the scaler with static={start}"
            )
        self._start, self._start_tracker = start, tracker
        self.growth, self.backoff, self.interval = growth, backoff, interval
        if self._tensors is not None:
            self._tensors[0].fill_(start)
            self._tensors[1].fill_(tracker)

    def _check(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict: expected a dict, got {type(state).__name__}")
        missing = [key for key in _KEYS if key not in state]
        if missing:
            raise ValueError(
                "load_state_dict: expected the state of a LossScaler or of torch.amp.GradScaler, "
                f"got one without {', '.join(missing)}; its keys are {', '.join(map(str, state))}"
            )
        static = state.get("static", False)
        if static != self.static:
            kinds = {True: "a static", False: "a dynamic"}
            raise ValueError(
                f"load_state_dict: expected the state of {kinds[self.static]} scale, got that of "
                f"{kinds[bool(static)]} one; make the scaler as the saved one was"
            )


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
        self._scale.growth = growth_factor(new_factor)

    def get_backoff_factor(self) -> float:
        return self._scale.backoff

    def set_backoff_factor(self, new_factor: float) -> None:
        self._scale.backoff = backoff_factor(new_factor)

    def get_growth_interval(self) -> int:
        return self._scale.interval

    def set_growth_interval(self, new_interval: int) -> None:
        self._scale.interval = checks.whole("growth_interval", new_interval, 1)

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Plain values, to be taken after update(): `static` and GradScaler's five, which it loads.

        The state is empty if the scaler is not enabled. Reading it waits for the device. The bounds
        are no part of it.
        """
        return self._scale.state_dict() if self._enabled else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over the state of a LossScaler or of a torch.amp.GradScaler; all or nothing.

        Raises:
            RuntimeError: the state is empty, as that of a scaler that is not enabled.
            TypeError, ValueError: it is no state of a scaler, or the state of a static scaler for a
                dynamic one, or the reverse.
        """
        if not self._enabled:
            return
        if isinstance(state_dict, Mapping) and not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a scaler that "
                "was not enabled."
            )
        self._scale.load_state_dict(state_dict)
