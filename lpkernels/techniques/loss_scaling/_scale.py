"""The scale: a float32 number on the device, how it grows and shrinks, and its state."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lpkernels.techniques.loss_scaling import _checks
from lpkernels.techniques.loss_scaling._checks import Bounds

# The names of torch.amp.GradScaler's state; a LossScaler's has two more.
_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


class Scale:
    """A scale and the rule that changes it; the tensors are made where they are first used.

    After an update with a gradient that is not finite the scale is multiplied by `backoff`. After
    `interval` other updates in a row it is multiplied by `growth`, unless float32 cannot hold the
    result. Then the bounds are applied.
    """

    def __init__(
        self,
        start: float,
        *,
        static: bool,
        growth: float,
        backoff: float,
        interval: int,
        bounds: Bounds,
    ) -> None:
        self.static, self.bounds = static, bounds
        self.growth = _checks.growth(growth)
        self.backoff = _checks.backoff(backoff)
        self.interval = _checks.count("growth_interval", interval, 1)
        self.updates = 0
        self._start, self._start_tracker = start, 0
        self._tensors: tuple[Tensor, Tensor] | None = None

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
        """The next scale, where the 0-d `found` is not 0 after a gradient that was not finite."""
        if self.static:
            return
        assert self._tensors is not None
        low = self.bounds.floor(self.updates)
        torch._amp_update_scale_(*self._tensors, found, self.growth, self.backoff, self.interval)
        if low is not None or self.bounds.ceiling is not None:
            self.tensor.clamp_(low, self.bounds.ceiling)
        self.updates += 1

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
        self._start = _checks.scale("update: new_scale", value)
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
        return {**dict(zip(_KEYS, values, strict=True)), "static": self.static} | {
            "updates": self.updates
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._check(state)
        start = _checks.scale("load_state_dict: scale", state["scale"])
        growth = _checks.growth(state["growth_factor"])
        backoff = _checks.backoff(state["backoff_factor"])
        interval = _checks.count("growth_interval", state["growth_interval"], 1)
        tracker = _checks.count("_growth_tracker", state["_growth_tracker"], 0)
        updates = _checks.count("updates", state.get("updates", 0), 0)
        if self.static and start != self._start:
            raise ValueError(
                f"load_state_dict: a static scale stays {self._start}, got a state of {start}; "
                f"make the scaler with static={start}"
            )
        self._start, self._start_tracker, self.updates = start, tracker, updates
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
