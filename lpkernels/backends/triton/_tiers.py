"""Which kernels make the sums of an Accumulator, fastest first: pure functions of its integers.

A kernel of `_fast` makes the tiles for which its certificate holds and leaves the others to the
next; `_wide` makes any. Which that are depends on the values and is decided on the device.
"""

from __future__ import annotations

import functools
import math

from lpkernels.arithmetic import accumulator_from_ints
from lpkernels.formats import FloatFormat, format_from_ints

#: The processor's own multiply-adds of float16 and bfloat16, which round as the contract does.
HALF, BRAIN = 0, 1
#: Float32: no rounding at all; Veltkamp's splitting; with the subnormals' floor; with overflow too.
PLAIN, SPLIT, FLOOR, RANGE = 2, 3, 4, 5
#: Float64: to nearest; the cut of toward_zero, nearest_away and stochastic.
NEAREST, CUT = 6, 7

#: Of each of these, for people.
NAMES = ("half", "brain", "plain", "split", "floor", "range", "nearest64", "cut64")

Ints = tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def tiers(acc: Ints, *, in_order: bool = True, halves: bool = True) -> tuple[int, ...]:
    """The certified kernels for ``Accumulator.to_ints()``, in the order in which they are tried.

    in_order: position k of every sum is its step k, in chunks of the Accumulator's length.
    halves: a fused multiply-add of float16 or bfloat16 rounds once and keeps subnormals: on NVIDIA.
    """
    parsed, fmt = accumulator_from_ints(acc), format_from_ints(acc[8:16])
    if parsed.order != "sequential" or parsed.block or not isinstance(fmt, FloatFormat):
        return ()
    if parsed.product is not None and not _product_fits(acc):
        return ()
    if parsed.rounding == "nearest_even":
        first = _halves(fmt) if halves and parsed.product is None else ()
        return first + _nearest_tiers(fmt)
    return (CUT,) if _cuts(fmt, acc, in_order) else ()


def _halves(fmt: FloatFormat) -> tuple[int, ...]:
    if fmt == FloatFormat(5, 10):
        return (HALF,)
    return (BRAIN,) if fmt == FloatFormat(8, 7) else ()


def _nearest_tiers(fmt: FloatFormat) -> tuple[int, ...]:
    if fmt == FloatFormat(8, 23):
        return (PLAIN, NEAREST)
    if not 1 <= fmt.man_bits <= 21:
        return (NEAREST,) if fmt.man_bits >= 1 else ()
    if not fmt.subnormals or not _grid_fits(fmt):
        return (SPLIT, NEAREST)
    # A format that saturates is one whose sums are expected to.
    if fmt.overflow == "saturate" and ranges32(fmt):
        return (RANGE, NEAREST)
    return (SPLIT, FLOOR, NEAREST)


def _cuts(fmt: FloatFormat, acc: Ints, in_order: bool) -> bool:
    parsed = accumulator_from_ints(acc)
    m = fmt.man_bits
    if parsed.rounding == "toward_zero":
        return 1 <= m <= 20
    if parsed.rounding == "nearest_away":
        return 1 <= m <= 19
    if parsed.rounding != "stochastic" or parsed.rng != "fast" or not in_order:
        return False
    # Four draws share a word, and chunks must begin with one.
    whole_words = parsed.chunk is None or parsed.chunk % 4 == 0
    return whole_words and parsed.random_bits <= 8 and 4 <= m <= 19 - parsed.random_bits


def _product_fits(acc: Ints) -> bool:
    """Products rounded by the grid of `_rules32.floored32`, or `_rules_upper.nearest64`."""
    parsed, fmt = accumulator_from_ints(acc), format_from_ints(acc[16:24])
    if parsed.product_rounding != "nearest_even" or not isinstance(fmt, FloatFormat):
        return False
    return fmt.subnormals and 1 <= fmt.man_bits <= 21 and _grid_fits(fmt)


def ranges32(fmt: FloatFormat) -> bool:
    """Whether `_rules32.ranged32` rounds every float32 to a format of 1..21 mantissa bits."""
    return fmt.subnormals and _grid_fits(fmt) and fmt.emin - fmt.man_bits >= -147


def _grid_fits(fmt: FloatFormat) -> bool:
    """The smallest normal is one of float32, and 2^(25 - man_bits) max is below 2^128."""
    return fmt.emin >= -126 and math.frexp(fmt.max)[1] + 24 - fmt.man_bits <= 127
