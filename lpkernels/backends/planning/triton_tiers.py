"""The choice of kernels for an Accumulator's sums, fastest first: pure functions of its integers.

A tier makes the tiles for which its certificate holds and leaves the others to the next tier;
`exact.sequential` makes any tile. Which tier makes a tile depends on the values, and the device
decides it. `groups` says which tiers share a kernel.
"""

from __future__ import annotations

import functools
import math

from lpkernels.arithmetic import Accumulator, accumulator_from_ints
from lpkernels.formats import FixedFormat, FloatFormat

# `certified.certificate` has the same names in the same order.
#: The processor's own multiply-adds of float16 and bfloat16, which round as the contract does.
HALF, BRAIN = 0, 1
#: Kernels in float32, to nearest. PLAIN rounds nothing. FUSED and SPLIT round by splitting: FUSED
#: by multiply-adds alone for few bits, SPLIT by Veltkamp's. FLOOR has the subnormals' floor too,
#: RANGE also overflow.
PLAIN, FUSED, SPLIT, FLOOR, RANGE = 2, 3, 4, 5, 6
#: Kernels in float32: one of multiply-adds that round in a direction, for all other modes; one for
#: fixed-point formats.
DIRECTED, FIXED = 7, 8
#: Kernels in float64: the splitting; to nearest; the cut of toward_zero, nearest_away and
#: stochastic.
FUSED64, NEAREST, CUT = 9, 10, 11

#: The names of these kernels that people read.
NAMES = (
    "half", "brain", "plain", "fused", "split", "floor", "range", "directed", "fixed", "fused64",
    "nearest64", "cut64",
)  # fmt: skip

Ints = tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def tiers(acc: Ints, *, in_order: bool = True, nvidia: bool = True) -> tuple[int, ...]:
    """The certified kernels for ``Accumulator.to_ints()``, in the order in which they are tried.

    in_order: position k of every sum is its step k, in chunks of the Accumulator's length.
    nvidia: a fused multiply-add of float16 or bfloat16 rounds once and keeps subnormals, and one of
    float32 rounds in every direction.
    """
    parsed = accumulator_from_ints(acc)
    fmt, formats = parsed.fmt, (parsed.fmt, parsed.product, parsed.outermost)
    if not parsed.in_sequence:
        return ()
    if any(isinstance(x, FloatFormat) and not x.signed for x in formats):
        return ()
    if parsed.product is not None and not _product_fits(parsed):
        return ()
    if isinstance(fmt, FixedFormat):
        return (FIXED,) if _fixed(fmt, parsed.rounding, nvidia) else ()
    if not isinstance(fmt, FloatFormat):
        return ()
    if parsed.rounding == "nearest_even":
        first = _halves(fmt) if nvidia and parsed.product is None else ()
        return first + _nearest_tiers(fmt)
    if parsed.rounding == "stochastic" and not _draws_fit(parsed, in_order):
        return ()
    if nvidia and _directed(fmt, parsed):
        return (DIRECTED,)
    return (CUT,) if _cuts(fmt, parsed) else ()


def groups(kinds: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The tiers of each kernel. The tiers of float32 share one kernel and the tiers of float64
    another, because they need about as many registers. If there are tiers of half precision, these
    have a kernel of their own and all others share one, so that there are at most two."""
    half = tuple(kind for kind in kinds if kind < PLAIN)
    single = tuple(kind for kind in kinds if PLAIN <= kind < FUSED64)
    double = tuple(kind for kind in kinds if kind >= FUSED64)
    groups = (half, single + double) if half else (single, double)
    return tuple(group for group in groups if group)


def both_types(group: tuple[int, ...]) -> bool:
    """Whether one of `groups` has both tiers with float32 sums and tiers with float64 sums."""
    return min(group) < FUSED64 <= max(group)


def _halves(fmt: FloatFormat) -> tuple[int, ...]:
    if fmt == FloatFormat(5, 10):
        return (HALF,)
    return (BRAIN,) if fmt == FloatFormat(8, 7) else ()


def _nearest_tiers(fmt: FloatFormat) -> tuple[int, ...]:
    # Without subnormals the two kernels of float64 are for the same sums.
    doubles = (FUSED64, NEAREST) if fmt.subnormals else (FUSED64,)
    if fmt == FloatFormat(8, 23):
        return (PLAIN, *doubles)
    if not 1 <= fmt.man_bits <= 21:
        return doubles if fmt.man_bits >= 1 else ()
    split = FUSED if fmt.man_bits <= 10 else SPLIT
    if not fmt.subnormals or not _grid_fits(fmt):
        return (split, *doubles)
    # The sums of a format that saturates are expected to do so.
    if fmt.overflow == "saturate" and ranges32(fmt):
        return (RANGE, *doubles)
    return (split, FLOOR, *doubles)


def _draws_fit(acc: Accumulator, in_order: bool) -> bool:
    """Whether chunks begin with a word of draws, and steps are positions."""
    bits, chunk = acc.random_bits, acc.chunk_length
    draws = 4 if bits <= 8 else 2 if bits <= 16 else 1
    return in_order and (chunk is None or chunk % draws == 0)


def _directed(fmt: FloatFormat, acc: Accumulator) -> bool:
    # With rounded products the scale is one number.
    if not -126 <= fmt.emin <= (100 if acc.product is None else 0):
        return False
    if acc.rounding == "stochastic":
        return fmt.man_bits <= 22 - acc.random_bits
    return fmt.man_bits <= 22 or acc.rounding not in ("nearest_away", "to_odd")


def _fixed(fmt: FixedFormat, rounding: str, nvidia: bool) -> bool:
    if not -100 <= fmt.frac_bits <= 148 or rounding == "stochastic":
        return False
    if rounding != "nearest_even" and not nvidia:
        return False
    # nearest_away needs halves of a quantum.
    halves = rounding == "nearest_away"
    if fmt.overflow == "wrap":
        return fmt.word_bits <= 21 - halves
    return fmt.word_bits <= (23 if fmt.signed else 22) - halves


def _cuts(fmt: FloatFormat, acc: Accumulator) -> bool:
    m = fmt.man_bits
    if acc.rounding == "toward_zero":
        return 1 <= m <= 20
    if acc.rounding == "nearest_away":
        return 1 <= m <= 19
    if acc.rounding != "stochastic" or acc.rng != "fast":
        return False
    return acc.random_bits <= 8 and 4 <= m <= 19 - acc.random_bits


def _product_fits(acc: Accumulator) -> bool:
    """Whether the grid of `rounding.round.floored` rounds the products."""
    fmt = acc.product
    if acc.product_rounding != "nearest_even" or not isinstance(fmt, FloatFormat):
        return False
    return fmt.subnormals and 1 <= fmt.man_bits <= 21 and _grid_fits(fmt)


def ranges32(fmt: FloatFormat) -> bool:
    """Whether `rounding.round.ranged` rounds every float32 to a format of 1..21 mantissa bits."""
    return fmt.subnormals and _grid_fits(fmt) and fmt.emin - fmt.man_bits >= -147


def _grid_fits(fmt: FloatFormat) -> bool:
    """Whether the smallest normal is one of float32, and 2^(25 - man_bits) max is below 2^128."""
    return fmt.emin >= -126 and math.frexp(fmt.max)[1] + 24 - fmt.man_bits <= 127


@functools.lru_cache(maxsize=1024)
def single_outer(acc: Ints) -> bool:
    """Whether the outer additions of an Accumulator's integers can be rounded in float32.

    To nearest even in a format of 1..21 mantissa bits that `ranged` takes: the sum of two float32
    rounded to odd in float32 has at least two bits more than the format, so rounding it gives what
    rounding the exact sum gives (Boldo and Melquiond 2008).
    """
    parsed = accumulator_from_ints(acc)
    fmt = parsed.outermost
    if parsed.outermost_rounding != "nearest_even":
        return False
    return isinstance(fmt, FloatFormat) and 1 <= fmt.man_bits <= 21 and ranges32(fmt)
