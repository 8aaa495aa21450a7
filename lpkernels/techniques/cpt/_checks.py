"""Checks of a precision, a count, a choice: one error for each."""

import math
from collections.abc import Collection
from typing import Any

import numpy as np

#: Codes of more bits are no float32 values.
MAX_BITS = 24


def whole(label: str, value: Any, least: int) -> int:
    """`value` as a Python int of at least `least`; numpy's integers count, booleans do not."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{label}: expected an int, got {type(value).__name__} {value!r}")
    if value < least:
        raise ValueError(f"{label}: expected at least {least}, got {value}")
    return int(value)


def width(label: str, value: Any) -> int:
    """A precision in bits."""
    bits = whole(label, value, 1)
    if bits > MAX_BITS:
        raise ValueError(
            f"{label}: expected 1 to {MAX_BITS} bits, got {bits}; codes of more bits are no "
            "float32 values"
        )
    return bits


def widths(label: str, value: Any) -> tuple[int, int]:
    """(lowest, highest), or one number for both."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return (width(label, value),) * 2
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{label}: expected (lowest, highest) such as (3, 8), got {value!r}")
    low, high = width(label, value[0]), width(label, value[1])
    if low > high:
        raise ValueError(
            f"{label}: expected (lowest, highest), got ({low}, {high}); write ({high}, {low})"
        )
    return low, high


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
