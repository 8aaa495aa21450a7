"""Rounding to a table: a binary search among the thresholds of its mode (`backends.ladders`).

A table comes to a kernel in two parts, as other formats do: the `rule.Rule` says how many steps the
search has, and the numbers hold the addresses. Thresholds end in NaN, which no x reaches.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from lpkernels.backends.ladders import ladder
from lpkernels.backends.triton.rounding.bits import bits_of
from lpkernels.backends.triton.rounding.rule import STOCHASTIC
from lpkernels.formats import TableFormat
from lpkernels.rounding import ROUNDINGS


class TableNumbers(NamedTuple):
    """The arguments of a kernel for one table and mode: both ends, the number of the last value,
    the thresholds and all values, float64."""

    max: float
    low: float
    last: float
    thresholds: Any
    entries: Any


@functools.lru_cache(maxsize=256)
def table_numbers(table: TableFormat, mode: int, device: torch.device) -> TableNumbers:
    """The numbers on a device, where they are copied at the first call."""
    steps, values = ladder(table, ROUNDINGS[mode]), table.values()
    padded = np.full(2 ** search_steps(table), np.nan)
    padded[: len(steps)] = steps
    on_device = [torch.from_numpy(array).to(device) for array in (padded, values)]
    return TableNumbers(table.max, table.min, float(len(values) - 1), *on_device)


def search_steps(table: TableFormat) -> int:
    """How often the search halves the thresholds of a table."""
    return len(ladder(table, "toward_zero")).bit_length()


@triton.jit
def number_of(x, thresholds, STEPS: tl.constexpr):
    """How many thresholds are at most x, int32; of a NaN 0."""
    number = tl.cast(bits_of(x) & 0, tl.int32)
    for step in tl.static_range(STEPS):
        half = 1 << (STEPS - 1 - step)
        reached = x >= tl.load(thresholds + (number + (half - 1)))
        number = tl.where(reached, number + half, number)
    return number


@triton.jit
def round_to_table(x, lift, N, R: tl.constexpr):
    """x, exact or made odd, float64, rounded once. lift: as in `round`. A table without steps has
    no ends, so that it does not change x."""
    if R.steps == 0:
        return x
    else:
        number = number_of(x, N.thresholds, R.steps)
        r = tl.load(N.entries + number)
        if R.mode == STOCHASTIC:
            # A gap is no power of two: its fraction is made in these steps of float64.
            other = number + tl.where(x < 0.0, -1, 1)
            other = tl.minimum(tl.maximum(other, 0), tl.cast(N.last, tl.int32))
            far = tl.load(N.entries + other)
            inside = (other != number) & (tl.abs(x) < float("inf"))
            gap = tl.where(inside, tl.abs(far) - tl.abs(r), 1.0)
            fraction = tl.where(inside, tl.abs(x) - tl.abs(r), 0.0) / gap
            moves = tl.cast(fraction * 2.0**33, tl.int64) + lift >= 1 << 33
            r = tl.where(inside & moves, far, r)
        if R.infinity_is_nan:
            r = tl.where(tl.abs(x) == float("inf"), float("nan"), r)
        return tl.where(x == x, r, x)
