"""Checks of arguments: each error names the value that was expected and the value that came.

A label names the argument, with its function where that is not plain: "select: n". Nothing here
needs torch.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Collection
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats.elsewhere import nearest

# Everything is float64; numpy types what linalg returns more widely.
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_DOCS = "the documentation lists all"


def whole(label: str, value: Any, least: int, most: int | None = None) -> int:
    """`value` as a Python int of least..most; numpy's integers count, booleans do not."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{label}: expected an int, got {type(value).__name__} {value!r}")
    if value < least or (most is not None and value > most):
        wanted = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{label}: expected {wanted}, got {value}")
    return int(value)


def real(label: str, value: Any) -> float:
    """A real number as a float; it may be infinite or NaN."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{label}: expected a number, got {type(value).__name__} {value!r}")
    return float(value)


def number(
    label: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> float:
    """A finite number within these bounds, as a float."""
    result = real(label, value)
    bounds = (
        ("of at least", least, operator.ge),
        ("above", above, operator.gt),
        ("of at most", most, operator.le),
        ("below", below, operator.lt),
    )
    limits = [(text, bound, holds) for text, bound, holds in bounds if bound is not None]
    if not math.isfinite(result) or not all(holds(result, bound) for _, bound, holds in limits):
        wanted = " and ".join(f"{text} {bound:g}" for text, bound, _ in limits)
        raise ValueError(f"{label}: expected a finite number {wanted}, got {value}")
    return result


def choice(label: str, value: Any, names: Collection[str], listing: str = _DOCS) -> str:
    """One of `names`. listing: who lists all of more than five, for the error."""
    if value not in names:
        raise ValueError(
            f"{label}: expected one of {nearest(value, names, listing)}, got {value!r}"
        )
    return str(value)


def function(label: str, value: Any, called: str) -> None:
    """Something that is called as `called` says."""
    if not callable(value):
        raise TypeError(
            f"{label}: expected a function {called}, got {type(value).__name__} {value!r}"
        )


def numbers(label: str, value: Any, shape: int | tuple[int, ...] | None = None) -> Floats:
    """A new float64 array. shape: the array has this shape; or it has this number of dimensions and
    is not empty."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{label}: expected real numbers, got {array.dtype} {value!r}")
    if isinstance(shape, int) and (array.ndim != shape or array.size == 0):
        raise ValueError(
            f"{label}: expected {shape} dimension(s) and at least one value, got shape "
            f"{array.shape}"
        )
    if isinstance(shape, tuple) and array.shape != shape:
        raise ValueError(f"{label}: expected shape {shape}, got {array.shape}")
    return array.astype(np.float64)


def finite(
    label: str, value: Any, shape: int | tuple[int, ...] | None = None, advice: str = ""
) -> Floats:
    """An array as `numbers` makes it, which must hold no infinity and no NaN."""
    array = numbers(label, value, shape)
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        raise ValueError(
            f"{label}: expected finite numbers, got {_first(array, wrong)}{advice and '; '}{advice}"
        )
    return array


def positive(label: str, value: Any, shape: int | tuple[int, ...] | None = None) -> Floats:
    """An array of finite numbers above zero."""
    array = finite(label, value, shape)
    if (array <= 0).any():
        raise ValueError(f"{label}: expected numbers above 0, got {array.min():g}")
    return array


def wholes(label: str, value: Any, least: int, most: float, what: str) -> Floats:
    """An int or an array of ints least..most, as float64. what: how the error calls them."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{label}: expected an int or an array of ints, got {type(value).__name__} {value!r}"
        )
    wrong = array[(array < least) | (array > most)]
    if wrong.size:
        raise ValueError(f"{label}: expected {what}, got {wrong.flat[0]}")
    return array.astype(np.float64)


def indices(label: str, value: Any, size: int, *, repeated: bool = False) -> Ints:
    """Numbers of configurations, 0..size - 1; none may occur twice unless `repeated`."""
    array = np.asarray(value)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(
            f"{label}: expected a sequence of ints, got {array.dtype} of shape {array.shape}"
        )
    wrong = array[(array < 0) | (array >= size)]
    if wrong.size:
        raise ValueError(f"{label}: expected configurations in 0..{size - 1}, got {wrong[0]}")
    if not repeated and len(np.unique(array)) != len(array):
        raise ValueError(f"{label}: expected each configuration once, got {list(array)}")
    return array.astype(np.int64)


def without_nan(label: str, errors: Floats, observed: Bools | None = None) -> Bools:
    """The observed entries (None: all) that are not NaN; warns of those that are.

    Raises: ValueError: an observed error is infinite.
    """
    observed = np.ones(errors.shape, dtype=bool) if observed is None else observed
    wrong = np.argwhere(np.isinf(errors) & observed)
    if len(wrong):
        raise ValueError(
            f"{label}: expected errors that are finite or NaN (missing), got "
            f"{_first(errors, wrong)}"
        )
    missing = int(np.isnan(errors[observed]).sum())
    if missing:
        warnings.warn(
            f"{label}: {missing} of {int(observed.sum())} measured errors are NaN and count as "
            "missing",
            stacklevel=3,
        )
    return observed & ~np.isnan(errors)


def clip_range(label: str, clip: Any) -> tuple[float, float] | None:
    """(low, high) with low < high, or None."""
    if clip is None:
        return None
    try:
        low, high = (float(bound) for bound in clip)
    except (TypeError, ValueError):
        raise TypeError(f"{label}: expected (low, high) or None, got {clip!r}") from None
    if not low < high:
        raise ValueError(f"{label}: expected (low, high) with low < high, got {clip!r}")
    return low, high


def _first(array: Floats, wrong: Ints) -> str:
    """The first wrong element and its place."""
    at = tuple(int(i) for i in wrong[0])
    place = f"row {at[0]}, column {at[1]}" if len(at) == 2 else f"index {', '.join(map(str, at))}"
    return f"{array[at]} at {place}" if at else f"{array[at]}"
