"""Checks of numbers that may be arrays: each error says what was expected and what came."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def _whole(function: str, name: str, value: Any) -> Floats:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{function}: {name} must be an int or an array of ints, got {value!r} "
            f"({type(value).__name__})"
        )
    return array.astype(np.float64)


def bits(function: str, name: str, value: Any, least: int, most: int) -> Floats:
    """Whole numbers least..most as float64."""
    array = _whole(function, name, value)
    wrong = array[(array < least) | (array > most)]
    if wrong.size:
        raise ValueError(
            f"{function}: {name} must be mantissa bits in {least}..{most}, without the hidden one; "
            f"got {int(wrong.flat[0])}"
        )
    return array


def lengths(function: str, value: Any, name: str = "n") -> Floats:
    """Whole numbers of products, at least 1, as float64."""
    array = _whole(function, name, value)
    wrong = array[(array < 1) | (array > 2.0**53)]
    if wrong.size:
        raise ValueError(
            f"{function}: {name} must be a number of products in 1..2^53, got {wrong.flat[0]:.0f}"
        )
    return array


def shares(function: str, value: Any, name: str = "nzr") -> Floats:
    """Shares 0..1 as float64."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{function}: {name} must be a number in 0..1, got {value!r}")
    array = array.astype(np.float64)
    wrong = array[~((array >= 0) & (array <= 1))]
    if wrong.size:
        raise ValueError(
            f"{function}: {name} is the share of products that are not zero, in 0..1; got "
            f"{wrong.flat[0]}"
        )
    return array


def above(function: str, name: str, value: Any, least: float) -> None:
    """A finite number above `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{function}: {name} must be a number above {least:g}, got {value!r}")
    if not (math.isfinite(value) and value > least):
        raise ValueError(f"{function}: {name} must be finite and above {least:g}, got {value}")


def choice(function: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{function}: {name} must be one of {', '.join(choices)}; got {value!r}")
