"""Checks of matrices, points and choices: each error says what was expected and what came."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Everything is float64; numpy types what linalg returns more widely.
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def numbers(function: str, name: str, value: Any, dimensions: int) -> Floats:
    """A new float64 array of that many dimensions, none of them empty."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{function}: {name} must hold real numbers, got {array.dtype}")
    if array.ndim != dimensions or array.size == 0:
        raise ValueError(
            f"{function}: {name} must have {dimensions} dimension(s) and at least one value, got "
            f"shape {array.shape}"
        )
    return array.astype(np.float64)


def finite(function: str, name: str, value: Any, dimensions: int, advice: str = "") -> Floats:
    """An array as `numbers` makes it, which must hold no infinity and no NaN."""
    array = numbers(function, name, value, dimensions)
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        advice = advice and f"; {advice}"
        raise ValueError(
            f"{function}: {name} must be finite, got {array[at]} at {_place(at)}{advice}"
        )
    return array


def positive(function: str, name: str, value: Any, size: int) -> Floats:
    """One finite number above zero for each of `size` configurations."""
    array = finite(function, name, value, 1)
    if len(array) != size:
        raise ValueError(
            f"{function}: {name} must hold a number for each of the {size} configurations, got "
            f"{len(array)}"
        )
    if (array <= 0).any():
        raise ValueError(f"{function}: {name} must be above 0, got {array.min():g}")
    return array


def number(function: str, name: str, value: Any, *, least: float, above: bool = False) -> float:
    """A finite number of at least, or above, `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{function}: {name} must be a number, got {value!r}")
    if not np.isfinite(value) or value < least or (above and value == least):
        wanted = f"{'above' if above else 'at least'} {least:g}"
        raise ValueError(f"{function}: {name} must be finite and {wanted}, got {value}")
    return float(value)


def indices(function: str, name: str, value: Any, size: int, *, repeated: bool = False) -> Ints:
    """Whole numbers 0..size - 1; none may occur twice unless `repeated`."""
    array = np.asarray(value)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(
            f"{function}: {name} must be a sequence of ints, got {array.dtype} of shape "
            f"{array.shape}"
        )
    wrong = array[(array < 0) | (array >= size)]
    if wrong.size:
        raise ValueError(
            f"{function}: {name} must be configurations in 0..{size - 1}, got {wrong[0]}"
        )
    if not repeated and len(np.unique(array)) != len(array):
        raise ValueError(f"{function}: {name} must name each configuration once, got {list(array)}")
    return array.astype(np.int64)


def without_nan(function: str, errors: Floats, observed: Bools) -> Bools:
    """The observed entries that are not NaN; warns of those that are.

    Raises: ValueError: an observed error is infinite.
    """
    if np.isinf(errors[observed]).any():
        at = tuple(int(i) for i in np.argwhere(np.isinf(errors) & observed)[0])
        raise ValueError(
            f"{function}: errors must be finite or NaN (missing), got {errors[at]} at {_place(at)}"
        )
    missing = int(np.isnan(errors[observed]).sum())
    if missing:
        warnings.warn(
            f"{function}: {missing} of {int(observed.sum())} measured errors are NaN and count as "
            "missing",
            stacklevel=3,
        )
    return observed & ~np.isnan(errors)


def clip_range(function: str, clip: Any) -> tuple[float, float] | None:
    """(low, high) with low < high, or None."""
    if clip is None:
        return None
    try:
        low, high = (float(bound) for bound in clip)
    except (TypeError, ValueError):
        raise TypeError(f"{function}: clip must be (low, high) or None, got {clip!r}") from None
    if not low < high:
        raise ValueError(f"{function}: clip must be (low, high) with low < high, got {clip!r}")
    return low, high


def share(function: str, name: str, value: Any) -> float:
    """A number above 0 and below 1."""
    result = number(function, name, value, least=0, above=True)
    if result >= 1:
        raise ValueError(f"{function}: {name} must be above 0 and below 1, got {value}")
    return result


def _place(at: tuple[int, ...]) -> str:
    return f"row {at[0]}, column {at[1]}" if len(at) == 2 else f"index {at[0]}"
