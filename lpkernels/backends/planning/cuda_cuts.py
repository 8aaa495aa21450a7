"""How products of the ``cuda`` backend are cut into blocks: as in csrc/cuda/cut.h, by a test."""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.backends.planning.plans import ceil_div, covering

#: Of certified tiles.
TILE = (128, 128)
#: Sums of chunks that wait in memory at most: 256 MiB of floats.
MOST_PARTS = 1 << 26
# Tiles that a processor makes one after another, at most, where sums are split.
_MOST_WAVES = 4


class Cut(NamedTuple):
    """Each tile is made `splits` times over, each time of other chunks, `chunks` of them, and that
    in `passes` one after another. One split of one pass: a block makes all of a tile."""

    tiles: int
    splits: int
    passes: int
    chunks: int


def cut_of(
    matrices: int, m: int, n: int, chunks: int, processors: int, parts: int = MOST_PARTS
) -> Cut:
    """chunks: of the longest sums, 1 where there are none; parts: how many sums of them may wait.

    Sums are split where that makes the busiest processor's share of chunks smaller by a ninth or
    more.
    """
    tiles = covering(matrices, m, n, TILE)
    room = parts // (matrices * m * n)
    whole = Cut(tiles, 1, 1, chunks)
    if chunks < 2 or room < 1:
        return whole
    passes = ceil_div(chunks, room)
    in_pass = ceil_div(chunks, passes)
    best, least = whole, 8 * ceil_div(tiles, processors) * chunks
    for waves in range(1, _MOST_WAVES + 1):
        most = waves * processors // tiles
        if most < 2:
            continue
        length = ceil_div(in_pass, min(most, in_pass))
        cost = 9 * passes * waves * length
        if cost < least:
            best, least = Cut(tiles, ceil_div(in_pass, length), passes, length), cost
    return best
