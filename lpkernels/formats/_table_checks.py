"""The checks of a table's values, boundaries and codes, which are made when a table is."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

# 2^16 values have 17 bits with a code for NaN behind them.
MOST_CODE_BITS = 17
_MOST_VALUES = 2**16
# A double of 53 bits that was made odd compares with 52 bits as the exact number does.
_BOUNDARY_BITS = 52
# Kernels take smaller values of float64 for one another.
_LEAST_BOUNDARY = 2.0**-300

Real = float | int | Fraction


def _numbers(label: str, what: str, given: Iterable[Any], dtype: type) -> NDArray[Any]:
    """A dimension of numbers.  Raises TypeError."""
    try:
        made = np.asarray(given if hasattr(given, "__array__") else list(given))
    except (TypeError, ValueError):
        made = np.empty((), object)
    kinds = "iu" if dtype is np.int64 else "iuf"
    if made.ndim != 1 or (made.dtype.kind not in kinds and made.size):
        wanted = "whole numbers" if dtype is np.int64 else "numbers"
        raise TypeError(
            f"{label}: {what} must be {wanted} in one dimension, got {given!r:.80} "
            f"({type(given).__name__})"
        )
    return made.astype(dtype)


def checked_values(label: str, values: Iterable[float]) -> NDArray[np.float64]:
    given = _numbers(label, "values", values, np.float64)
    if not 2 <= len(given) <= _MOST_VALUES:
        raise ValueError(f"{label}: a table has 2 to {_MOST_VALUES} values, got {len(given)}")
    kept = float32_values(given)
    for wrong, problem in (
        (~np.isfinite(given), "is not finite; leave it away, and see infinity and nan_code"),
        (
            ~np.isfinite(kept),
            "is beyond float32, in which values travel; use smaller ones",
        ),
    ):
        if wrong.any():
            raise ValueError(f"{label}: the value {float(given[wrong][0])!r} {problem}")
    down = np.flatnonzero(np.diff(kept) <= 0)
    if len(down):
        one, other = (float(each) for each in given[down[0] : down[0] + 2])
        problem = "not ascending; sort them, each once"
        if one < other:
            problem = "equal once they are float32, in which values travel; leave one away"
        raise ValueError(f"{label}: the values {one!r} and {other!r} are {problem}")
    return kept


def float32_values(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """x rounded to float32 (nearest even), as float64, zero as +0; infinite beyond float32.

    All steps are float64's: a process that flushes denormals gets the same values.
    """
    exponent = np.maximum(np.frexp(np.where(np.isfinite(x), x, 0.0))[1], -125)
    unit = np.ldexp(1.0, exponent - 24)
    with np.errstate(invalid="ignore"):
        kept = np.rint(x / unit) * unit + 0.0
    return np.where(np.abs(kept) >= 2.0**128, np.copysign(np.inf, kept), kept)


def checked_codes(
    label: str, codes: Iterable[int] | None, values: NDArray[np.float64]
) -> NDArray[np.int32]:
    if codes is None:
        return np.arange(len(values), dtype=np.int32)
    given = _numbers(label, "codes", codes, np.int64)
    if len(given) != len(values):
        raise ValueError(
            f"{label}: every value has one code, got {len(given)} codes for {len(values)} values"
        )
    outside = (given < 0) | (given >= 2**MOST_CODE_BITS)
    if outside.any():
        raise ValueError(
            f"{label}: codes are in 0..{2**MOST_CODE_BITS - 1}, got {int(given[outside][0])}"
        )
    ordered = np.sort(given)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise ValueError(f"{label}: the code {int(twice[0])} is given twice; use each code once")
    return given.astype(np.int32)


def midpoints(label: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(a + b) / 2 of neighbours a < b, exact."""
    a, b = values[:-1], values[1:]
    total = a + b
    part = total - a
    exact = (a - (total - part)) + (b - part) == 0
    _check_bits(label, total, values, exact)
    return total / 2


def _check_bits(
    label: str, numbers: NDArray[np.float64], values: NDArray[np.float64], exact: Any = True
) -> None:
    """Raises: ValueError: a boundary has more than 52 significant bits."""
    # The last of the 53 bits of a double.
    wide = np.flatnonzero(~(exact & (numbers.view(np.int64) & 1 == 0)))
    if len(wide):
        low, high = (float(each) for each in values[wide[0] : wide[0] + 2])
        raise ValueError(
            f"{label}: the boundary between the values {low!r} and {high!r} has more than "
            f"{_BOUNDARY_BITS} significant bits; give boundaries with fewer"
        )


def checked_boundaries(
    label: str, boundaries: Iterable[Real], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    listed = list(boundaries)
    given = _numbers(label, "boundaries", [_real(label, each) for each in listed], np.float64) + 0.0
    if len(given) != len(values) - 1:
        raise ValueError(
            f"{label}: {len(values)} values have {len(values) - 1} boundaries, got {len(given)}"
        )
    same = [each == kept for each, kept in zip(listed, given, strict=True)]
    _check_bits(label, given, values, np.array(same))
    tiny = (given != 0) & (np.abs(given) < _LEAST_BOUNDARY)
    outside = ~((values[:-1] <= given) & (given <= values[1:]))
    for at in np.flatnonzero(outside | tiny)[:1]:
        low, high = float(values[at]), float(values[at + 1])
        problem = "is not from one to the other" if outside[at] else "is neither 0 nor above 2^-300"
        raise ValueError(
            f"{label}: the boundary {float(given[at])!r} between the values {low!r} and {high!r} "
            f"{problem}"
        )
    return given


def _real(label: str, number: Any) -> float:
    try:
        return float(number)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{label}: a boundary must be a number, got {number!r}") from None
