"""Checks of arguments: each error names the value that was expected and the value that came.

A label names the argument, with its function where that is not plain: "select: n". Nothing here
needs torch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats.elsewhere import nearest

# Everything is float64; numpy types the results of linalg more widely.
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
    if isinstance(shape, int):
        fits = array.ndim == shape and array.size > 0
        wanted = f"{shape} dimension(s) and at least one value, got shape {array.shape}"
    else:
        fits = shape is None or array.shape == shape
        wanted = f"shape {shape}, got {array.shape}"
    if not fits:
        raise ValueError(f"{label}: expected {wanted}")
    return array.astype(np.float64)


def finite(
    label: str, value: Any, shape: int | tuple[int, ...] | None = None, advice: str = ""
) -> Floats:
    """An array as `numbers` makes it, which must hold no infinity and no NaN."""
    array = numbers(label, value, shape)
    refuse_first(label, array, ~np.isfinite(array), "finite numbers", advice)
    return array


def positive(label: str, value: Any, shape: int | tuple[int, ...] | None = None) -> Floats:
    """An array of finite numbers above zero."""
    array = finite(label, value, shape)
    refuse_first(label, array, array <= 0, "numbers above 0")
    return array


def wholes(label: str, value: Any, least: int, most: float, what: str) -> Floats:
    """An int or an array of ints least..most, as float64. what: their name in the error."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{label}: expected an int or an array of ints, got {type(value).__name__} {value!r}"
        )
    refuse_first(label, array, (array < least) | (array > most), what)
    return array.astype(np.float64)


def refuse_first(label: str, array: Any, wrong: Any, wanted: str, advice: str = "") -> None:
    """Raises: ValueError: an element is wrong; the first and its place are named."""
    places = np.argwhere(wrong)
    if len(places):
        at = tuple(map(int, places[0]))
        names = ("row", "column") if len(at) == 2 else ("index",) * len(at)
        place = ", ".join(f"{name} {i}" for name, i in zip(names, at, strict=True))
        text = f"{array[at]} at {place}" if at else f"{array[at]}"
        raise ValueError(f"{label}: expected {wanted}, got {text}{advice and '; '}{advice}")
