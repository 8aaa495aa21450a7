"""Where a value lies between its neighbours in a TableFormat.

`lpkernels.rounding` chooses by the place as it does in other formats. A place is the neighbour
nearer zero, the one farther from it, a fraction, and whether the nearer one counts as odd. The
fraction is 0 for a value of the table; of nearest modes 1/2 on the gap's boundary, 1/4 on the side
of zero and 3/4 on the other side; of stochastic rounding it is the contract's f in float64.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import TableFormat

Float64 = NDArray[np.float64]


class Place(NamedTuple):
    near: float
    far: float
    fraction: Fraction
    odd: bool


class Places(NamedTuple):
    """Places of many values; zeros are +0."""

    near: Float64
    far: Float64
    fraction: Float64
    odd: NDArray[np.bool_]


@lru_cache(maxsize=64)
def _values(fmt: TableFormat) -> list[float]:
    return fmt.values().tolist()


def infinite(fmt: TableFormat, negative: bool) -> float:
    """The result of an infinite input."""
    if fmt.infinity == "nan":
        return math.nan
    return fmt.min if negative else fmt.max


def place(value: Fraction | float, fmt: TableFormat, stochastic: bool) -> Place:
    """The place of a finite number; stochastic rounding takes it to odd in float64 first."""
    if stochastic:
        value = _odd_double(Fraction(value))
    values, tensors = _values(fmt), fmt.tensors()
    inside: Fraction | float = min(max(value, fmt.min), fmt.max)
    at = min(bisect_right(values, inside), len(values) - 1)
    low, high = values[at - 1], values[at]
    if inside in (low, high):
        end = low if inside == low else high
        return Place(end, end, Fraction(0), False)
    negative, lower_is_even = inside < 0, bool(tensors.lower_is_even[at - 1])
    near, far = (high, low) if negative else (low, high)
    if stochastic:
        fraction = Fraction((abs(float(inside)) - abs(near)) / (abs(far) - abs(near)))
    else:
        boundary, magnitude = abs(float(tensors.boundaries[at - 1])), abs(Fraction(inside))
        side = (magnitude > boundary) - (magnitude < boundary)
        fraction = Fraction(2 + side, 4)
    return Place(near, far, fraction, lower_is_even == negative)


def _odd_double(exact: Fraction) -> float:
    """The number as a float64, an inexact one to the odd neighbour."""
    nearest = float(exact)
    if nearest == exact or int(np.float64(nearest).view(np.int64)) & 1:
        return nearest
    return math.nextafter(nearest, math.inf if exact > nearest else -math.inf)


def places(x: Float64, fmt: TableFormat, stochastic: bool) -> Places:
    """`place` of every element of x, which is exact or to odd; 0 stands for what is not finite."""
    values, boundaries, lower_is_even, *_ = fmt.tensors()
    inside = np.clip(np.where(np.isfinite(x), x, 0.0), fmt.min, fmt.max) + 0.0
    at = np.minimum(np.searchsorted(values, inside, side="right"), len(values) - 1) - 1
    low, high, negative = values[at], values[at + 1], inside < 0
    near, far = np.where(negative, high, low), np.where(negative, low, high)
    if stochastic:
        fraction = (np.abs(inside) - np.abs(near)) / (np.abs(far) - np.abs(near))
    else:
        boundary = boundaries[at]
        away = (inside > boundary) != negative
        fraction = np.where(inside == boundary, 0.5, np.where(away, 0.75, 0.25))
    exact = (inside == low) | (inside == high)
    return Places(
        np.where(exact, inside, near),
        np.where(exact, inside, far),
        np.where(exact, 0.0, fraction),
        lower_is_even[at] == negative,
    )


def outside(x: Float64, fmt: TableFormat) -> NDArray[np.bool_]:
    """Which finite values lie beyond an end of the table."""
    return np.isfinite(x) & ((x < fmt.min) | (x > fmt.max))
