"""The scale: a float32 number on the device, how it grows and shrinks, and its state."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpkernels.techniques import checks

# The names of torch.amp.GradScaler's state; a LossScaler's has four more.
_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
# Smaller scales have an inverse beyond float32.
_LEAST = 2.0**-126
# Counters are int32 on the device.
_MOST = 2**31 - 1


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


def _delay(hysteresis: Any, consecutive: Any) -> tuple[int, bool]:
    """The arguments of these names, checked."""
    count = checks.whole("hysteresis", hysteresis, 1, _MOST)
    if not isinstance(consecutive, bool):
        raise TypeError(f"consecutive: expected True or False, got {consecutive!r}")
    if consecutive and count == 1:
        raise ValueError(
            "consecutive: it says when the counter of a hysteresis of 2 or more is full again, got "
            "hysteresis=1; give hysteresis, or leave consecutive out"
        )
    return count, consecutive


class Scale:
    """A scale and the rule that changes it; the tensors are made where they are first used.

    After an update with a gradient that is not finite the scale is multiplied by `backoff`. After
    `interval` other updates in a row it is multiplied by `growth`, unless float32 cannot hold the
    result. Then the floor and the ceiling are applied. `hysteresis`, `consecutive` and `at_floor`
    are as `LossScaler` says; with a hysteresis of 1 the counter is always 1.

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
        hysteresis: int,
        consecutive: bool,
        at_floor: str,
    ) -> None:
        self.static = static
        self.growth, self.backoff = growth_factor(growth), backoff_factor(backoff)
        self.interval = checks.whole("growth_interval", interval, 1)
        self._hysteresis, self._consecutive = _delay(hysteresis, consecutive)
        self._start, self._start_counts = scale(label, start), (0, self._hysteresis)
        self._tensors: tuple[Tensor, Tensor, Tensor] | None = None
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
        self._raises = checks.choice("at_floor", at_floor, ("stay", "raise")) == "raise"
        if self._raises and low is None:
            raise ValueError("at_floor: 'raise' needs a floor, got floor=None; give one, floor=1.0")

    @property
    def made(self) -> bool:
        return self._tensors is not None

    def on(self, device: torch.device) -> Tensor:
        """The scale, on the device where it is; it is made on `device` if it is nowhere yet."""
        if self._tensors is None:
            tracker, left = (
                torch.full((), count, dtype=torch.int32, device=device)
                for count in self._start_counts
            )
            value = torch.full((), self._start, dtype=torch.float32, device=device)
            self._tensors = (value, tracker, left)
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
        value, tracker, left = self._tensors
        before = value.clone() if self._hysteresis > 1 else value
        torch._amp_update_scale_(value, tracker, found, self.growth, self.backoff, self.interval)
        if self._hysteresis > 1:
            bad = found != 0
            value.copy_(torch.where(bad & (left > 1), before, value))
            # The tracker is 0 after a good update exactly where the scale's turn to grow has come.
            full = ~bad if self._consecutive else ~bad & (tracker == 0)
            fewer = torch.where(bad, (left - 1).clamp_(min=1), left)
            left.copy_(torch.where(full, self._hysteresis, fewer))
        if self._floor is not None or self._ceiling is not None:
            value.clamp_(self._floor, self._ceiling)

    def is_stuck(self, found: Tensor) -> Tensor:
        """Whether `found` asks for a smaller scale and the scale, after its update, cannot fall."""
        bad = found != 0
        least = _LEAST if self._floor is None else self._floor
        return bad if self.static else bad & (self.tensor <= least)

    def is_exhausted(self, found: Tensor) -> bool:
        """Whether `found` asks for a scale below the floor, where that is an error; then, and only
        then, this waits for the device."""
        if not self._raises:
            return False
        assert self._tensors is not None and self._floor is not None
        value, _, left = self._tensors
        return bool((found != 0) & (left == 1) & (value <= self._floor))

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

    def _counts(self) -> tuple[int, int]:
        """The good updates in a row, and the counter of the hysteresis."""
        if self._tensors is None:
            return self._start_counts
        return int(self._tensors[1].item()), int(self._tensors[2].item())

    def __getstate__(self) -> dict[str, Any]:
        plain = {"_start": self.value(), "_start_counts": self._counts(), "_tensors": None}
        return {**self.__dict__, **plain}

    def state_dict(self) -> dict[str, Any]:
        tracker, left = self._counts()
        values = (self.value(), self.growth, self.backoff, self.interval, tracker)
        delay = {"hysteresis": self._hysteresis, "consecutive": self._consecutive}
        own = {"static": self.static, **delay, "_hysteresis_left": left}
        return {**dict(zip(_KEYS, values, strict=True)), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._check(state)
        start = scale("load_state_dict: scale", state["scale"])
        growth = growth_factor(state["growth_factor"])
        backoff = backoff_factor(state["backoff_factor"])
        interval = checks.whole("growth_interval", state["growth_interval"], 1)
        tracker = checks.whole("_growth_tracker", state["_growth_tracker"], 0, _MOST)
        hysteresis, consecutive = _delay(
            state.get("hysteresis", self._hysteresis), state.get("consecutive", self._consecutive)
        )
        left = state.get("_hysteresis_left", hysteresis)
        counts = (tracker, checks.whole("_hysteresis_left", left, 1, hysteresis))
        if self.static and start != self._start:
            raise ValueError(
                f"load_state_dict: a static scale stays {self._start}, got a state of {start}; "
                f"make the scaler with static={start}"
            )
        self._start, self._start_counts = start, counts
        self.growth, self.backoff, self.interval = growth, backoff, interval
        self._hysteresis, self._consecutive = hysteresis, consecutive
        for tensor, value in zip(self._tensors or (), (start, *counts), strict=False):
            tensor.fill_(value)

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


class SkippedInARow:
    """Counts updates one after the other that were skipped at a scale that cannot fall."""

    MOST = 10

    def __init__(self) -> None:
        self._counts: tuple[Tensor, Tensor] | None = None
        self._told = False

    def are_too_many(self, stuck: Tensor) -> bool:
        """Counts an update, on its device; true once. The host reads a count that was copied
        without waiting, and may learn of it some updates later."""
        if self._told:
            return False
        if self._counts is None:
            count = torch.zeros((), dtype=torch.int32, device=stuck.device)
            on_host = count
            if count.device.type != "cpu":
                on_host = torch.zeros((), dtype=torch.int32, device="cpu", pin_memory=count.is_cuda)
            self._counts = count, on_host
        count, on_host = self._counts
        count.add_(1).mul_(stuck)
        if on_host is not count:
            on_host.copy_(count, non_blocking=True)
        self._told = int(on_host.numpy()) >= self.MOST
        return self._told

    def __getstate__(self) -> dict[str, Any]:
        return {"_counts": None, "_told": self._told}


def skipped_text(scale: Scale, gradient: str) -> str:
    """The warning that updates are skipped; `gradient` says whose is not finite."""
    advice = "give a smaller static=, or leave it out: the scale then falls by itself"
    return (
        f"LossScaler: {SkippedInARow.MOST} updates in a row were skipped at the scale "
        f"{scale.value()}, which cannot fall: the gradient {gradient} is not finite; "
        f"{advice if scale.static else 'lower the floor'}. If the loss itself is not finite, no "
        "scale helps: look for the infinity in the model or the data"
    )


# torch.amp.GradScaler's arguments after its device, in order.
_GRADSCALERS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")


def no_positional(given: tuple[Any, ...]) -> None:
    """Raises: TypeError: there are arguments without names; it says how to write the call."""
    if not given:
        return
    numbers = [value for value in given if isinstance(value, Real)]
    named = [f"{name}={value}" for name, value in zip(_GRADSCALERS, numbers, strict=False)]
    write = f"LossScaler({', '.join(named)})"
    if len(named) == 1:
        write += f", or LossScaler(static={numbers[0]}) for a scale that stays"
    device = isinstance(given[0], str | torch.device)
    shown = ", ".join(
        repr(value) if isinstance(value, Real | str) else type(value).__name__ for value in given
    )
    raise TypeError(
        f"LossScaler: expected arguments by name, got {shown}; write {write}"
        f"{'. No device is needed: the first loss has it' if device else ''}"
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
        """Plain values, to be taken after update(): GradScaler's five, which it loads, `static`,
        `hysteresis`, `consecutive` and the counter.

        The state is empty if the scaler is not enabled. Reading it waits for the device. The floor,
        the ceiling and at_floor are no part of it.
        """
        return self._scale.state_dict() if self._enabled else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over the state of a LossScaler or of a torch.amp.GradScaler; all or nothing.

        Where the state has no hysteresis, this scaler's stays, and its counter is full.

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
