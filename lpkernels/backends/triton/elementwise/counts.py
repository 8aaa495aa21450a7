"""Counts of what rounding does to the elements of a tile, and the outputs that a kernel writes.

A program adds up its tile and then adds the result to the counts, which are integers, so that the
order does not matter.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from lpkernels.backends import COUNTS, Rounding
from lpkernels.backends.triton.rounding.bits import EXPONENT, MAGNITUDE, bits_of
from lpkernels.backends.triton.rounding.rule import INFINITY, SATURATE, Numbers, Rule
from lpkernels.backends.triton.rounding.table import TableNumbers

_BINS = tl.constexpr(256)
# From the exponent field of float64 to the field of float32.
_BIAS_DIFFERENCE = tl.constexpr(1023 - 127)


class Wanted(NamedTuple):
    """The outputs that a kernel writes, compiled in."""

    values: bool
    counts: bool
    histogram: bool


def wanted_of(rounding: Rounding) -> Wanted:
    """The outputs of a rounding."""
    counts = rounding.counts
    values = rounding.out is not None or rounding.parts is not None
    return Wanted(values, counts is not None, counts is not None and counts.numel() > COUNTS)


def unbounded(rule: Rule, numbers: Numbers | TableNumbers) -> tuple[Rule, Numbers | TableNumbers]:
    """The same rounding to a format without ends; a table has no values there and changes none."""
    if isinstance(numbers, TableNumbers):
        return rule._replace(steps=0), numbers
    overflow = SATURATE.value if rule.fixed else INFINITY.value
    endless = numbers._replace(max=float("inf"))
    if not rule.fixed:
        rule = rule._replace(signed=True)
    if rule.fixed:
        endless = endless._replace(low=-float("inf"))
    return rule._replace(overflow=overflow), endless


@triton.jit
def beyond_ends(r, N, R: tl.constexpr):
    """Whether a value that was rounded without ends lies beyond them."""
    if R.fixed or R.table:
        return (r > tl.cast(N.max, r.dtype)) | (r < tl.cast(N.low, r.dtype))
    else:
        beyond = tl.abs(r) > tl.cast(N.max, r.dtype)
        return beyond if R.signed else beyond | (r < 0.0)


@triton.jit
def add_counts(counts_ptr, x, over, vanished, inside, W: tl.constexpr):
    """Adds a tile's counts. x: its values in float64. over: where a finite value overflows.
    vanished: where a value has become zero."""
    bits = bits_of(x) & MAGNITUDE
    finite, zero = inside & (bits < EXPONENT), inside & (bits == 0)
    over = over & finite
    under = vanished & finite & (zero == 0) & (over == 0)
    tl.atomic_add(counts_ptr, total_of(over), sem="relaxed")
    tl.atomic_add(counts_ptr + 1, total_of(under), sem="relaxed")
    tl.atomic_add(counts_ptr + 2, total_of(zero), sem="relaxed")
    tl.atomic_add(counts_ptr + 3, total_of(inside & (finite == 0)), sem="relaxed")
    if W.histogram:
        field = tl.minimum(tl.maximum((bits >> 52) - _BIAS_DIFFERENCE, 0), _BINS - 2)
        field = tl.where(bits >= EXPONENT, _BINS - 1, field)
        # Places outside of the tensor fall into bin 0, and out of it again.
        field = tl.where(inside, field, 0).to(tl.int32)
        bins = tl.histogram(tl.ravel(field), _BINS).to(tl.int64)
        place = tl.arange(0, _BINS)
        bins = tl.where(place == 0, bins - total_of(inside == 0), bins)
        tl.atomic_add(counts_ptr + 4 + place, bins, mask=bins != 0, sem="relaxed")


@triton.jit
def total_of(mask):
    """The number of true elements of a tile."""
    return tl.sum(tl.ravel(mask.to(tl.int32)), axis=0).to(tl.int64)
