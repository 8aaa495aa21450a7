"""How products of the ``cuda`` backend are cut into blocks.

csrc/cuda/product/cut.h cuts them in the same way, and a test compares the two.
"""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.backends.planning.plans import ceil_div, covering


class TileShape(NamedTuple):
    """Rows and columns of a tile, and how many such tiles a processor should hold side by side.

    cost: what a product takes in it by the counts, with tables and chunks of 64, in units that the
    table of the tile has.
    """

    rows: int
    cols: int
    beside: int
    cost: int


class Tiles(NamedTuple):
    """A table of tiles.

    split: what split sums take, in eighths of what whole sums take, because their chunks are
    written, read and added.
    """

    shapes: tuple[TileShape, ...]
    split: int


#: The tile that every kernel has. Costs are in sixteenths of an instruction.
SQUARES = Tiles((TileShape(128, 128, 1, 61),), 9)
#: The tiles of sums to nearest in chunks that end in float32; costs are those of the kernels that
#: `has_shapes` of cuda_tiers.py names.
SHAPES = Tiles(
    (
        *SQUARES.shapes,
        TileShape(128, 64, 1, 64),
        TileShape(64, 128, 1, 64),
        TileShape(128, 32, 2, 69),
        TileShape(32, 128, 2, 68),
        TileShape(128, 16, 4, 72),
        TileShape(16, 128, 4, 72),
        TileShape(512, 1, 6, 246),
        TileShape(1, 32, 24, 494),
    ),
    9,
)
#: The same tiles for float32's own sums. Costs are in 32nds of an instruction.
FLOAT_SHAPES = Tiles(
    (
        TileShape(128, 128, 1, 58),
        TileShape(128, 64, 1, 63),
        TileShape(64, 128, 1, 63),
        TileShape(128, 32, 2, 72),
        TileShape(32, 128, 2, 71),
        TileShape(128, 16, 4, 79),
        TileShape(16, 128, 4, 78),
        TileShape(512, 1, 6, 426),
        TileShape(1, 32, 24, 876),
    ),
    9,
)
#: The same tiles for sums made odd and in double. Costs are those of sums made odd, with the
#: floor, in eighths of an instruction.
RARE_SHAPES = Tiles(
    (
        TileShape(128, 128, 1, 74),
        TileShape(128, 64, 1, 76),
        TileShape(64, 128, 1, 76),
        TileShape(128, 32, 2, 78),
        TileShape(32, 128, 2, 78),
        TileShape(128, 16, 4, 80),
        TileShape(16, 128, 4, 80),
        TileShape(512, 1, 5, 174),
        TileShape(1, 32, 20, 293),
    ),
    9,
)
#: The tiles of native chunks on tensor cores. Costs are in 256ths of an instruction. Split sums
#: wait for memory longer than for that.
TENSOR_SHAPES = Tiles(
    (
        TileShape(128, 128, 1, 104),
        TileShape(128, 64, 2, 132),
        TileShape(64, 128, 2, 133),
    ),
    22,
)
#: How many sums of chunks may wait in memory: 256 MiB of floats.
MOST_PARTS = 1 << 26
# How many tiles a processor makes one after another, at most, where sums are split.
_MOST_WAVES = 4


class Cut(NamedTuple):
    """How the outputs of a product and their sums are shared out.

    Tiles have so many rows and columns. Each is made `splits` times over, each time from `chunks`
    other chunks, and all of that in `passes` one after another. With one split and one pass a block
    makes all of a tile.
    """

    rows: int
    cols: int
    tiles: int
    splits: int
    passes: int
    chunks: int


def cut_of(
    matrices: int,
    m: int,
    n: int,
    chunks: int,
    processors: int,
    table: Tiles,
    parts: int = MOST_PARTS,
) -> Cut:
    """chunks: of the longest sums, 1 where there are none. parts: how many sums of chunks may wait.

    A processor holds several small tiles side by side, each at its share of the speed. Sums are
    split where that makes the busiest processor's share of the work smaller by a ninth or more.
    """
    room = parts // (matrices * m * n)
    passes = ceil_div(chunks, room) if room else 0
    in_pass = ceil_div(chunks, passes) if passes else 0
    offers: list[tuple[int, Cut]] = []
    for rows, cols, beside, cost in table.shapes:
        # Tiles of one row cover the columns of all matrices, one matrix after another.
        flat = (1, m, matrices * n) if rows == 1 else (matrices, m, n)
        tiles = covering(*flat, (rows, cols))
        places, price = processors * beside, beside * rows * cols * cost
        whole = Cut(rows, cols, tiles, 1, 1, chunks)
        offers.append((8 * price * ceil_div(tiles, places) * chunks, whole))
        for waves in range(1, _MOST_WAVES + 1):
            most = waves * places // tiles
            if most < 2 or in_pass < 2:
                continue
            length = ceil_div(in_pass, min(most, in_pass))
            split = Cut(rows, cols, tiles, ceil_div(in_pass, length), passes, length)
            offers.append((table.split * price * passes * waves * length, split))
    # Of equally cheap cuts the first is taken.
    return min(offers, key=lambda offer: offer[0])[1]


def beside(cut: Cut, table: Tiles) -> int:
    """Tiles of a cut, one of these shapes, that a processor should hold side by side."""
    return next(s.beside for s in table.shapes if (s.rows, s.cols) == (cut.rows, cut.cols))
