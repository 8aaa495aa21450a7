"""Products of the ``triton`` backend as lpkernels/backends/triton/_products.py makes them.

`triton_tiles` gives the tiles, `triton_splits` shares chunks out, and the accumulator's certified
kernels, two at most, are started before the last one.
"""

from __future__ import annotations

import math

from bench.predict.plans import Plan, ceil_div, covering, not_counted
from bench.predict.ranges import Range, emin, product_of
from bench.predict.shapes import Shape
from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning import triton_splits
from lpkernels.backends.planning import triton_tiers as tiers
from lpkernels.backends.planning.triton_splits import WHOLE, Share, share
from lpkernels.backends.planning.triton_tiles import (
    Tile,
    beside,
    certified_tiles,
    exact_tile,
    largest_tile,
    outer_tile,
)
from lpkernels.formats import FixedFormat, FloatFormat

EXACT = "exact"
_MADE = 4
# These are as in certificate.py: the logarithm of the steps between two looks at the sums, the
# largest bound of sums, and a bound that nothing reaches.
_STRIDE_LOG2, _ENOUGH, _ALWAYS = 3, 100, 4096


def plan(shape: Shape, acc: Accumulator, processors: int) -> Plan:
    """How the backend makes the product of that shape with an accumulator on so many processors.

    Raises: NotImplementedError: it takes a kernel whose instructions were not counted.
    """
    if acc.order != "sequential" or acc.block is not None:
        raise not_counted("triton", "native" if acc.order == "native" else "ordered", acc)
    ints = acc.to_ints()
    kinds = tiers.tiers(ints, in_order=not shape.skips)
    place = (shape.m, shape.n, shape.matrices, processors)
    needs = beside(ints)
    chunk, chunks = _chunks(shape, acc)
    sharing = tiers.groups(kinds)
    most = [largest_tile(group, needs, shape.swapped) for group in sharing]
    tiles = certified_tiles(*place, most, chunks, sharing)
    found, tile, name = WHOLE, exact_tile(*place), EXACT
    if kinds:
        found = share(chunks, chunk, tiles[0], _programs(shape, tiles[0]), processors)
        # The last kernel's tile lies inside the tile of the kernel before.
        last = outer_tile(tiles[0]) if found.held else tile
        tile = Tile(min(last.bm, tiles[-1].bm), min(last.bn, tiles[-1].bn), last.warps)
    kind = next((kind for kind in kinds if _holds(kind, acc, shape)), None)
    if kind is not None:
        of = next(i for i, group in enumerate(sharing) if kind in group)
        tile, name = tiles[of], kernel_name(kind, acc)
    programs, exact = _programs(shape, tile), name == EXACT
    splits = 1 if exact else found.splits
    return Plan(
        name, (tile.bm, tile.bn), programs, splits, ceil_div(programs * splits, processors),
        (len(sharing) + 1) * (found.passes(chunks) if found.held else 1),
        scratch(shape, tiles, found),
        found.longest(chunks) if splits > 1 else 0,
    )  # fmt: skip


def _chunks(shape: Shape, acc: Accumulator) -> tuple[int, int]:
    """`Problem.chunks`: how long chunks are, and how many a sum has."""
    if acc.chunk is None or shape.k == 0:
        return 0, 1
    if shape.skips:
        return acc.chunk, ceil_div(shape.length, acc.chunk)
    return min(acc.chunk, shape.k), ceil_div(shape.k, acc.chunk)


def _programs(shape: Shape, tile: Tile) -> int:
    return covering(shape.matrices, shape.m, shape.n, (tile.bm, tile.bn))


def scratch(shape: Shape, tiles: list[Tile], found: Share) -> int:
    """Bytes of the flags of made pieces, and of the sums of chunks that programs share."""
    if not tiles:
        return 0
    programs = [_programs(shape, tile) for tile in tiles]
    made = _MADE * found.pieces * sum(programs)
    return made + triton_splits.scratch(found, tiles[0], programs[0])


def kernel_name(kind: int, acc: Accumulator) -> str:
    """The name of a tier with a rounding in the counts (bench/results/triton-sm_90.jsonl)."""
    if kind == tiers.DIRECTED:
        if acc.rounding == "stochastic":
            return "stochastic, philox" if acc.rng == "philox" else "stochastic"
        return "toward_positive" if acc.rounding == "toward_negative" else acc.rounding
    if kind == tiers.FIXED:
        wraps = isinstance(acc.fmt, FixedFormat) and acc.fmt.overflow == "wrap"
        parts = ["fixed", "wraps"] if wraps else ["fixed"]
        return ", ".join([*parts, *([acc.rounding] if acc.rounding != "nearest_even" else [])])
    return tiers.NAMES[kind]


def _holds(kind: int, acc: Accumulator, shape: Shape) -> bool:
    """The answer of `certified` (certificate.py), from the ranges of the operands alone."""
    left, right, fmt = shape.left, shape.right, acc.fmt
    p = product_of(left, right)
    if kind in (tiers.HALF, tiers.BRAIN):
        return all(_fits(kind, x) for x in (left, right)) and (
            not shape.absent or (isinstance(fmt, FloatFormat) and _no_floor(p.lowest, fmt))
        )
    exact = p.width <= 24 and p.lowest >= -126 and p.highest <= 126
    if kind in (tiers.PLAIN, tiers.FUSED, tiers.SPLIT, tiers.FLOOR, tiers.RANGE) and not exact:
        return False
    if isinstance(acc.product, FloatFormat):
        if p.highest >= _room(acc.product):
            return False
        lowest = max(p.lowest, emin(acc.product) - acc.product.man_bits)
        p = Range(acc.product.man_bits + 1, lowest, p.highest)
    if kind == tiers.PLAIN:
        return True
    if isinstance(fmt, FixedFormat):
        places = 20 if acc.rounding == "nearest_away" else 21
        return fmt.overflow != "wrap" or p.highest <= places - fmt.frac_bits
    assert isinstance(fmt, FloatFormat)
    return _certified(kind, acc, fmt, p, shape)


def _certified(kind: int, acc: Accumulator, fmt: FloatFormat, p: Range, shape: Shape) -> bool:
    if kind == tiers.RANGE:
        return _nearest_bound(p, fmt, 24) > _room(fmt)
    if kind == tiers.DIRECTED:
        scale = -126 - emin(fmt)
        half = scale >> 1
        fits = -shape.left.lowest <= half + 149 and -shape.right.lowest <= scale - half + 149
        return fits and _directed(p.highest, acc, fmt)
    floored = kind in (tiers.FLOOR, tiers.NEAREST)
    if not (floored and fmt.subnormals) and not _no_floor(p.lowest, fmt):
        return False
    if kind == tiers.CUT:
        bound = p.lowest + 53
    else:
        bound = _nearest_bound(p, fmt, 53 if kind >= tiers.FUSED64 else 24)
    bound = min(bound, _room(fmt), _ENOUGH)
    return p.highest + _STRIDE_LOG2 + 2 <= bound and bound >= -_ENOUGH


def _fits(kind: int, x: Range) -> bool:
    """Whether float16 or bfloat16 holds an operand."""
    if kind == tiers.HALF:
        return x.highest <= 16 and x.lowest >= -24 and x.width <= 11
    return x.highest <= 128 and x.lowest >= -133 and x.width <= 8


def _no_floor(lowest: int, fmt: FloatFormat) -> bool:
    return lowest >= (emin(fmt) - fmt.man_bits if fmt.subnormals else emin(fmt))


def _room(fmt: FloatFormat) -> int:
    """The exponent of the largest power of two below which nothing on the grid overflows."""
    top = math.frexp(fmt.max)[1] - 1
    return math.frexp(fmt.max + 2.0 ** (top - fmt.man_bits))[1] - 1


def _nearest_bound(p: Range, fmt: FloatFormat, digits: int) -> int:
    q = fmt.man_bits + 1
    if (p.width <= q and 2 * q <= digits - 1) or (digits == 24 and q == 12 and p.width <= 11):
        return _ALWAYS
    bound = p.lowest + digits
    if q + p.width <= digits - 1:
        bound = max(bound, emin(fmt) - fmt.man_bits + digits)
    return bound


def _directed(highest: int, acc: Accumulator, fmt: FloatFormat) -> bool:
    bound, m = min(_room(fmt), _ENOUGH), fmt.man_bits
    growth = 0
    if acc.rounding not in ("toward_zero", "nearest_away"):
        growth = max(5 - m, 1) if m >= 2 else 5 if m == 1 else 8
    last = emin(fmt) - m
    reach = _STRIDE_LOG2 + 2 + growth
    return highest + reach <= bound and last + reach <= bound and bound >= -_ENOUGH
