"""Checks of a count, a choice, a number: one error for each."""

import math
from collections.abc import Collection
from typing import Any

import numpy as np


def whole(label: str, value: Any, least: int) -> int:
    """`value` as a Python int of at least `least`; numpy's integers count, booleans do not."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{label}: expected an int, got {type(value).__name__} {value!r}")
    if value < least:
        raise ValueError(f"{label}: expected at least {least}, got {value}")
    return int(value)


def choice(label: str, value: Any, names: Collection[str]) -> str:
    """One of `names`."""
    if value not in names:
        raise ValueError(f"{label}: expected one of {', '.join(names)}, got {value!r}")
    return str(value)


def function(label: str, value: Any, called: str) -> None:
    """Something that is called as `called` says."""
    if not callable(value):
        raise TypeError(
            f"{label}: expected a function {called}, got {type(value).__name__} {value!r}"
        )


def share(label: str, value: Any) -> float:
    """A finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{label}: expected a number, got {type(value).__name__} {value!r}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{label}: expected a finite number of at least 0, got {value}")
    return float(value)
