"""Checks of a scale, a factor, an interval and a bound, each with an error of its own."""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: A bound of the scale: one number for all updates; {update: bound}, each from that update on; or a
#: function of the update.
Floor = float | Mapping[int, float] | Callable[[int], float] | None

# Smaller scales have an inverse beyond float32.
_LEAST = 2.0**-126


# torch.amp.GradScaler's arguments after its device, in order.
_GRADSCALERS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")


def no_positional(given: tuple[Any, ...]) -> None:
    """Raises: TypeError: there are arguments without names; it says what to write for them."""
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


def number(label: str, value: Any) -> float:
    """`value` as a float; anything but a real number is a TypeError."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{label}: expected a number, got {type(value).__name__} {value!r}")
    return float(value)


def scale(label: str, value: Any) -> float:
    """A scale as float32 holds it: positive and finite, and with such an inverse."""
    given = number(label, value)
    with np.errstate(over="ignore"):
        held = float(np.float32(given))
    if not _LEAST <= held < math.inf:
        raise ValueError(
            f"{label}: expected a positive finite scale, from 2**-126 to float32's largest number, "
            f"got {value}; powers of two such as 2.0**16 round nothing"
        )
    return held


def growth(value: Any) -> float:
    """A factor by which the scale grows."""
    given = number("growth_factor", value)
    if not 1 < given < math.inf:
        raise ValueError(f"growth_factor: expected a finite factor above 1 such as 2, got {value}")
    return given


def backoff(value: Any) -> float:
    """A factor by which the scale shrinks."""
    given = number("backoff_factor", value)
    if not 0 < given < 1:
        raise ValueError(f"backoff_factor: expected a factor between 0 and 1, got {value}")
    return given


def count(label: str, value: Any, least: int) -> int:
    """A whole number of updates."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{label}: expected an int, got {type(value).__name__} {value!r}")
    if value < least:
        raise ValueError(f"{label}: expected at least {least}, got {value}")
    return value


def names(pairs: Iterable[tuple[str, Tensor]]) -> dict[Tensor, str]:
    """The names of parameters, by parameter."""
    found: dict[Tensor, str] = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Tensor):
            raise TypeError(
                "named_parameters: expected pairs (name, parameter) as of "
                f"model.named_parameters(), got {type(pair).__name__}"
            )
        found[pair[1]] = pair[0]
    return found


class Bounds:
    """The floor and the ceiling of the scale.

    Raises:
        TypeError: a bound of another type.
        ValueError: a bound that is no scale, or a floor above the ceiling.
    """

    def __init__(self, floor: Floor, ceiling: float | None) -> None:
        self.ceiling = None if ceiling is None else scale("ceiling", ceiling)
        self._floor: Floor = floor
        if isinstance(floor, Mapping):
            steps = {count("floor: a key", k, 0): scale("floor", v) for k, v in floor.items()}
            if not steps:
                raise ValueError("floor: expected {update: scale}, got an empty mapping")
            self._floor = dict(sorted(steps.items()))
            for value in steps.values():
                self._below_ceiling(value)
        elif floor is not None and not callable(floor):
            self._floor = scale("floor", floor)
            self._below_ceiling(self._floor)

    def floor(self, update: int) -> float | None:
        """The floor that holds after update number `update`, from 0."""
        if isinstance(self._floor, Mapping):
            reached = [value for key, value in self._floor.items() if key <= update]
            return reached[-1] if reached else None
        if callable(self._floor):
            return self._below_ceiling(scale(f"floor: of update {update}", self._floor(update)))
        return self._floor

    def _below_ceiling(self, floor: float) -> float:
        if self.ceiling is not None and floor > self.ceiling:
            raise ValueError(
                f"floor: expected at most the ceiling {self.ceiling}, got {floor}; raise the "
                "ceiling or lower the floor"
            )
        return floor

    def check(self, label: str, value: float) -> float:
        """`value`; a ValueError if it is not a scale to start from."""
        low, high = self.floor(0), self.ceiling
        if (low is not None and value < low) or (high is not None and value > high):
            raise ValueError(
                f"{label}: expected a scale between the floor {low} and the ceiling {high}, got "
                f"{value}"
            )
        return value
