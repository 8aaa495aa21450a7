"""Shapes of the Triton kernels' tiles on a GPU: pure functions choose them, here and nowhere else.
`lpkernels.backends.triton._config` also has the shapes for the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lpkernels.arithmetic import accumulator_from_ints
from lpkernels.backends.planning import triton_tiers as tiers
from lpkernels.formats import FloatFormat

#: The narrowest padding of an operand. Lanes that lie side by side begin at multiples of it, which
#: aligns loads of 16 bytes.
UNIT = 32
_WARP = 32
# Outputs of a program of the float64 kernels, and its columns where the product has many.
_OUTPUTS, _LONG = 1024, 256


class Tile(NamedTuple):
    """BM x BN outputs of one program, and its warps."""

    bm: int
    bn: int
    warps: int


def power_of_two(x: int) -> int:
    """The smallest power of two that is at least x and 1."""
    return 1 << max(x - 1, 0).bit_length()


def transposes(m: int, n: int) -> bool:
    """Whether a product's rows go along the long side of tiles, because its columns are few."""
    return n < m and n < _LONG


def exact_tile(m: int, n: int, matrices: int, processors: int) -> Tile:
    """The tile of the float64 kernels: 4 x 256 outputs by 4 warps, less if programs were too few.

    A thread then owns 4 rows of 2 columns: two sums for each operand that it loads, and registers
    for every format and mode (counted for sm_90: at most 255, nothing spilled). Tiles get smaller
    only while the `processors` have fewer than two programs each.
    """
    bn = min(_LONG, max(_WARP, power_of_two(n)))
    bm = min(_OUTPUTS // bn, power_of_two(m))
    while matrices * -(-m // bm) * -(-n // bn) < 2 * processors and bm * bn > _WARP:
        if bn > 2 * _WARP * bm:
            bn //= 2
        elif bm > 1:
            bm //= 2
        else:
            bn //= 2
    return Tile(bm, bn, min(4, max(1, bm * bn // _WARP)))


def certified_tile(
    m: int,
    n: int,
    matrices: int,
    processors: int,
    most: Tile,
    chunks: int = 1,
    *,
    doubles: bool = False,
) -> Tile:
    """The tile of a certified kernel: `largest_tile`'s, or one with as many sums a thread or fewer.

    It is never wider than the narrowest padding of an operand, so that no memory behind the lanes
    is ever summed. chunks: how many each sum has, which several programs can share
    (`triton_splits`); the outputs of a tile are then the same for all tiers. doubles: sums are
    float64.
    """
    bm, bn = min(most.bm, power_of_two(m)), min(most.bn, power_of_two(max(UNIT, n)))
    if chunks > 1:
        bn = _narrowed(n, bn)
        # A warp gets as many sums as a warp of the largest tile has.
        bm = min(power_of_two(m), max(most.bm, most.bm * most.bn // (most.warps * bn)))
    programs = max(chunks, 1) * matrices
    while programs * -(-m // bm) * -(-n // bn) < processors and bm * bn > 16 * _WARP:
        if bn > 16 * bm:
            bn //= 2
        else:
            bm //= 2
    # A thread gets as many sums as a thread of the largest tile has. 16 are enough where programs
    # do not share chunks; with tables, float64 has no room for more.
    sums, warps = max(1, most.bm * most.bn // (_WARP * most.warps)), most.warps
    if chunks > 1 and doubles:
        warps = max(warps, most.bm * most.bn // (_WARP * 16))
    lanes = _WARP * (sums if chunks > 1 and not doubles else min(16, sums))
    return Tile(bm, bn, min(warps, max(1, bm * bn // lanes)))


def certified_tiles(
    m: int, n: int, matrices: int, processors: int, most: Sequence[Tile], chunks: int,
    groups: Sequence[tuple[int, ...]],
) -> list[Tile]:  # fmt: skip
    """A tile for the kernel of each of `triton_tiers.groups`, inside the tile of the kernel before.

    most: the `largest_tile` of each.
    """
    found: list[Tile] = []
    for group, tile in zip(groups, most, strict=True):
        doubles = max(group) >= tiers.FUSED64
        own = certified_tile(m, n, matrices, processors, tile, chunks, doubles=doubles)
        if found:
            own = Tile(min(own.bm, found[-1].bm), min(own.bn, found[-1].bn), own.warps)
        found.append(own)
    return found


def _narrowed(n: int, bn: int) -> int:
    """The columns of a tile: bn, halved (down to `UNIT` at least) until tiles over n columns cover
    at most 9/8 of the columns that tiles of `UNIT` columns would cover."""
    fewest = -(-n // UNIT) * UNIT
    while bn > UNIT and 8 * (-(-n // bn) * bn) > 9 * fewest:
        bn //= 2
    return bn


def outer_tile(tile: Tile) -> Tile:
    """The tile of the kernel that adds the sums of chunks: one sum a thread, since additions wait
    for each other."""
    return Tile(1, min(_WARP, tile.bn), 1)


def largest_tile(group: tuple[int, ...], acc: tuple[int, ...], swapped: bool) -> Tile:
    """A tile of as many sums of one of `triton_tiers.groups` as have room in registers, for the
    integers of an Accumulator. A thread has 64 sums, or 128 of half precision; 32 of float64 or
    with outer sums or words of draws beside them; and 16, 8 or 4 where outer sums or words take
    more."""
    parsed = accumulator_from_ints(acc)
    mode, outer = parsed.outermost_rounding, parsed.outermost
    random_bits = parsed.random_bits if parsed.rounding == "stochastic" else 0
    philox, chunked = parsed.rng == "philox", parsed.chunk is not None
    if random_bits and philox:
        return Tile(4, 256, 8) if random_bits > 8 else Tile(8, 256, 4)
    if random_bits > 16:
        return Tile(8, 256, 4)
    # Outer sums take a few operations to nearest even in a float format with a mantissa.
    short = mode == "nearest_even" and isinstance(outer, FloatFormat) and outer.man_bits > 0
    if chunked and not short:
        return Tile(4 if philox and mode == "stochastic" else 8, 256, 4)
    if tiers.both_types(group) and not chunked:
        # Tiles of both types keep what each of them needs beside the sums.
        return Tile(8, 256, 4)
    if max(group) >= tiers.FUSED64 or chunked or random_bits:
        return Tile(8, 512, 4)
    if max(group) < tiers.PLAIN:
        # Where rows and columns changed places, 128 sums a thread would have no room.
        return Tile(8 if swapped else 16, 512, 2)
    return Tile(16, 512, 4)
