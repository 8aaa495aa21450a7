"""Pure functions that choose the shapes of all tiles, here and, for a GPU, in `planning`. Results
do not depend on the shapes."""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.backends.planning import triton_tiles as on_gpu
from lpkernels.backends.planning.triton_tiles import UNIT, Tile, power_of_two
from lpkernels.backends.triton._launch import interpreting
from lpkernels.backends.triton._layout import PAD


def padded_lanes(lanes: int) -> int:
    """How many lanes an operand has with its padding: no tile of `tile` reaches beyond."""
    unit = min(PAD, max(UNIT, power_of_two(lanes)))
    return -(-lanes // unit) * unit


def operand_tile(steps: int, width: int) -> tuple[int, int]:
    """Steps and lanes of a program that packs an operand."""
    if interpreting():
        return min(128, power_of_two(steps)), min(128, power_of_two(width))
    return 32, min(64, power_of_two(width))


def exact_tile(m: int, n: int, matrices: int, processors: int) -> Tile:
    """The tile of the float64 kernels."""
    if interpreting():
        return Tile(min(32, power_of_two(m)), min(64, power_of_two(n)), 4)
    return on_gpu.exact_tile(m, n, matrices, processors)


def largest(tile: Tile) -> Tile:
    """The largest tile of the certified kernels, where a GPU has room for ``tile``."""
    return Tile(16, 64, 4) if interpreting() else tile


def outer_tile(tile: Tile) -> Tile:
    """The tile of the kernel that adds the sums of chunks made in tiles of that size."""
    return tile if interpreting() else on_gpu.outer_tile(tile)


class DotTile(NamedTuple):
    """BM x BN outputs of one program, BK steps of each tl.dot, and its warps."""

    bm: int
    bn: int
    bk: int
    warps: int


def dot_tile(m: int, n: int, matrices: int, processors: int, *, halves: bool) -> DotTile:
    """The tile of the kernel with tl.dot, whose sides are at least 16: up to 64 x 64 outputs by 8
    warps.

    A thread then has room for 16 sums, as many outer ones, and operands with their addresses.
    Operands in float32 (not halves) lie in registers for all steps at once, so there are half as
    many steps."""
    bm, bn = (min(64, max(16, power_of_two(side))) for side in (m, n))
    while matrices * -(-m // bm) * -(-n // bn) < processors and bm * bn > 32 * 32:
        bm, bn = (bm // 2, bn) if bm > bn else (bm, bn // 2)
    return DotTile(bm, bn, 32 if halves else 16, 8 if bm * bn > 32 * 64 else 4)
