"""Shapes of tiles: pure functions, the only place where they are chosen. Results depend on none."""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.backends.triton._launch import interpreting
from lpkernels.backends.triton._layout import PAD

# Lanes of the narrowest operand: a whole sector of memory, and then some.
_FEWEST_LANES = 16
_WARP = 32


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
    unit = min(PAD, max(_FEWEST_LANES, power_of_two(lanes)))
    return -(-lanes // unit) * unit


def pack_tile(steps: int, width: int) -> tuple[int, int]:
    """Steps and lanes of a program that packs an operand."""
    if interpreting():
        return min(128, power_of_two(steps)), min(128, power_of_two(width))
    return 32, min(128, power_of_two(width))


def transposes(m: int, n: int) -> bool:
    """Whether a product's columns go along the short side of tiles: few columns, more rows."""
    return n < m and n < 64


def wide_tile(m: int, n: int, matrices: int, processors: int) -> Tile:
    """Of the float64 kernels: up to 16 x 256 outputs, fewer where programs would be too few.

    A thread of the largest tile keeps 32 sums in 64 registers. Long rows and few of them, because
    a thread then loads few operands for each product.
    """
    if interpreting():
        return Tile(min(32, power_of_two(m)), min(64, power_of_two(n)), 4)
    bm, bn = min(16, power_of_two(m)), min(256, max(_WARP, power_of_two(n)))
    while matrices * -(-m // bm) * -(-n // bn) < processors and bm * bn > 4 * _WARP:
        if bn > 4 * bm and bn > _WARP:
            bn //= 2
        else:
            bm //= 2
    return Tile(bm, bn, min(4, max(1, bm * bn // (4 * _WARP))))
