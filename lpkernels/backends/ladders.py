"""Rounding to a table as a function of steps, for kernels.

A deterministic mode takes x to the value whose number counts the mode's thresholds up to x. The
threshold of a gap is the smallest float64 that goes up to the gap's upper value. Thresholds are
exact for a float64 x, and for a longer sum rounded to odd in float64: they are values or boundaries
of at most 52 significant bits, or the odd number behind one of these. Stochastic rounding begins
with the steps of toward_zero.
"""

from __future__ import annotations

import functools
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import TableFormat
from lpkernels.rounding import ROUNDINGS

#: The modes that draw nothing.
DETERMINISTIC = ROUNDINGS[:-1]


@functools.lru_cache(maxsize=64)
def ladder(table: TableFormat, rounding: str) -> NDArray[np.float64]:
    """The thresholds of one mode, ascending: one for each gap between neighbours."""
    values, boundaries, lower_is_even, _, _ = table.tensors()
    low, high = values[:-1], values[1:]
    if rounding in ("toward_zero", "stochastic"):
        return np.where(low >= 0, high, _behind(low))
    if rounding == "toward_positive":
        return _behind(low)
    if rounding == "toward_negative":
        return high.copy()
    if rounding == "to_odd":
        return np.where(lower_is_even, _behind(low), high)
    up = ~lower_is_even if rounding == "nearest_even" else boundaries > 0
    # Both values of a gap stay, also where its boundary is one of them.
    nearest = np.where(up, boundaries, _behind(boundaries))
    return np.minimum(np.maximum(nearest, _behind(low)), high)


def _behind(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The next larger number. Behind 0 it is a normal one below every x that kernels round."""
    return np.where(x == 0, 2.0**-1000, np.nextafter(x, np.inf))


def add_to(module: ModuleType, table: TableFormat) -> None:
    """Makes a table known to lpkernels._C, which copies it."""
    values, _, _, codes, _ = table.tensors()
    steps = np.concatenate([ladder(table, rounding) for rounding in DETERMINISTIC])
    nan_code = -1 if table.nan_code is None else table.nan_code
    infinity_is_nan = int(table.infinity == "nan")
    addresses = (array.ctypes.data for array in (values, codes, steps))
    module.add_table(*addresses, (table.handle, len(values), table.bits, nan_code, infinity_is_nan))
