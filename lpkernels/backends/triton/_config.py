"""Shapes of tiles: pure functions, the only place where they are chosen. Results depend on none."""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.backends.triton._launch import interpreting
from lpkernels.backends.triton._layout import PAD, UNIT

_WARP = 32
# Outputs of a program of the float64 kernels, and columns where they are many.
_OUTPUTS, _LONG = 1024, 256


class Tile(NamedTuple):
    """BM x BN outputs of one program, and its warps."""

    bm: int
    bn: int
    warps: int


def power_of_two(x: int) -> int:
    """The smallest power of two that is at least x and 1."""
    return 1 << max(x - 1, 0).bit_length()


def padded_lanes(lanes: int) -> int:
    """How many lanes an operand has with its padding: no tile of `tile` reaches beyond."""
    unit = min(PAD, max(UNIT, power_of_two(lanes)))
    return -(-lanes // unit) * unit


def pack_tile(steps: int, width: int) -> tuple[int, int]:
    """Steps and lanes of a program that packs an operand."""
    if interpreting():
        return min(128, power_of_two(steps)), min(128, power_of_two(width))
    return 32, min(64, power_of_two(width))


def transposes(m: int, n: int) -> bool:
    """Whether a product's rows go along the long side of tiles, because its columns are few."""
    return n < m and n < _LONG


def wide_tile(m: int, n: int, matrices: int, processors: int) -> Tile:
    """Of the float64 kernels: 4 x 256 outputs by 4 warps, less where programs would be too few.

    A thread then owns 4 rows of 2 columns: two sums to an operand that it loads, and registers for
    every format and mode (counted for sm_90: at most 255, nothing spilled). `processors` have two
    programs each before tiles get smaller.
    """
    if interpreting():
        return Tile(min(32, power_of_two(m)), min(64, power_of_two(n)), 4)
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


def fast_tile(m: int, n: int, matrices: int, processors: int, most: Tile) -> Tile:
    """Of the certified kernels: that of `_stages.largest_tile` or smaller. Never wider than the
    narrowest padding of an operand, so that what lies behind its lanes is never summed."""
    if interpreting():
        return Tile(min(16, power_of_two(m)), min(64, power_of_two(max(UNIT, n))), 4)
    bm, bn = min(most.bm, power_of_two(m)), min(most.bn, power_of_two(max(UNIT, n)))
    while matrices * -(-m // bm) * -(-n // bn) < processors and bm * bn > 16 * _WARP:
        if bn > 16 * bm:
            bn //= 2
        else:
            bm //= 2
    # As many sums a thread as the largest tile has, or 16.
    lanes = _WARP * min(16, max(1, most.bm * most.bn // (_WARP * most.warps)))
    return Tile(bm, bn, min(most.warps, max(1, bm * bn // lanes)))


#: What a tile may become if that is faster (`_autotune`): the divisors of rows, columns, warps.
SMALLER = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 2, 2), (2, 2, 2))


def smaller(tile: Tile, choice: int) -> Tile:
    """One of `SMALLER`, as far as a warp has an output for each of its threads."""
    rows, columns, warps = SMALLER[choice]
    bm, bn = max(1, tile.bm // rows), max(min(_WARP, tile.bn), tile.bn // columns)
    return Tile(bm, bn, max(1, min(tile.warps // warps, bm * bn // _WARP)))


class DotTile(NamedTuple):
    """BM x BN outputs of one program, BK steps of each tl.dot, and its warps."""

    bm: int
    bn: int
    bk: int
    warps: int


def dot_tile(m: int, n: int, matrices: int, processors: int, *, halves: bool) -> DotTile:
    """Of the kernel with tl.dot, whose sides are at least 16: up to 64 x 64 outputs by 8 warps.

    A thread then has room for 16 sums, as many outer ones, and operands with their addresses.
    Those of float32 (not halves) lie in registers for all steps at once: half as many steps."""
    bm, bn = (min(64, max(16, power_of_two(side))) for side in (m, n))
    while matrices * -(-m // bm) * -(-n // bn) < processors and bm * bn > 32 * 32:
        bm, bn = (bm // 2, bn) if bm > bn else (bm, bn // 2)
    return DotTile(bm, bn, 32 if halves else 16, 8 if bm * bn > 32 * 64 else 4)
