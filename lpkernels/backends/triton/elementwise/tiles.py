"""Where the tiles of a block format lie, and the elements of a tile.

A program owns BLOCKS tiles, or PART elements of each where they are long. Where tiles are one
column wide its tiles lie side by side, so that neighbours in memory are neighbours in a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl

from lpkernels.formats.grids import grid_of
from lpkernels.formats.integers import LINE_SCALE, STEPS, InBlock, has_candidates

_ELEMENTS = 1024
_EXACT = STEPS.index("exact")
#: Tiles of one row, of one column, and of several of both; and tiles of the only row.
LINES, COLUMNS, RECTANGLES, ONE_LINE = map(tl.constexpr, range(4))


class Lengths(NamedTuple):
    """The sizes of matrices and tiles; kernels are compiled for their divisors."""

    rows: int
    cols: int
    tall: int
    wide: int


class Tiles(NamedTuple):
    """The tiles of a tensor as its kernels take them.

    counts: tiles along the rows and along the columns of a matrix, tiles that lie side by side, and
    groups that these make. Programs are `groups` times `parts`. lines: how many numbers t has.
    """

    lengths: Lengths
    counts: tuple[int, int, int, int]
    total: int
    groups: int
    parts: int
    lines: int
    constants: dict[str, int]


def tiles_of(shape: Sequence[int], fmt: tuple[int, ...]) -> Tiles:
    """The tiles of a tensor of this shape, without empty dimensions, for a block format.

    A tile is one part where it has two candidates. TransformerEngine's candidates have tiles of all
    rows and columns; some rows and columns do not exist.
    """
    grid, by_line, together = (
        grid_of(shape, fmt),
        fmt[InBlock.SCALE] == LINE_SCALE,
        has_candidates(fmt),
    )
    lines = grid.lines if by_line else 1
    whole_tiles = together and fmt[InBlock.STEPS] != _EXACT and fmt[InBlock.LINES] > 0
    if whole_tiles:
        grid = grid._replace(tall=fmt[InBlock.LINES], wide=fmt[InBlock.SIZE])
    columns = by_line and grid.wide == 1 and grid.cols > 1
    if by_line and grid.cols == 1:
        # Lines of blocks of one value lie in memory as rows do.
        grid = grid._replace(outer=1, rows=grid.outer, cols=grid.rows)
    if grid.tall == 1 and not by_line:
        # Rows without a short tile are one long row, and matrices of rows are one.
        rows, whole = grid.outer * grid.rows, grid.cols % grid.wide == 0
        cols = grid.cols * (rows if whole else 1)
        grid = grid._replace(outer=1, rows=1 if whole else rows, cols=cols)
    outer, rows, cols, tall, wide = grid
    size, total = tall * wide, outer * grid.down * grid.across
    kind = LINES if tall == 1 else COLUMNS if wide == 1 else RECTANGLES
    if columns:
        kind = COLUMNS
    elif outer == rows == 1 and not whole_tiles:
        kind = ONE_LINE
    side_by_side = grid.across if kind == COLUMNS else total
    part = triton.next_power_of_2(size)
    part = part if together else min(part, _ELEMENTS)
    blocks = min(triton.next_power_of_2(side_by_side), max(1, _ELEMENTS // part))
    chunks = triton.cdiv(side_by_side, blocks)
    whole = size % part == 0 and rows % tall == 0 and cols % wide == 0
    return Tiles(
        Lengths(rows, cols, tall, wide),
        (grid.down, grid.across, side_by_side, chunks),
        total,
        chunks * (total // side_by_side),
        triton.cdiv(size, part),
        lines,
        {"KIND": kind.value, "BLOCKS": blocks, "PART": part, "WHOLE": whole},
    )


@triton.jit
def tiles_in(group, G, down, across, side, chunks, KIND: tl.constexpr, BLOCKS: tl.constexpr):
    """The tiles of a group: their numbers, where their first elements lie, their rows and columns
    (0 where there is no tile), and how many values lie before them in the order of tiles."""
    if KIND == COLUMNS:
        line = tl.cast(group // chunks, tl.int64)
        column = tl.cast(group % chunks, tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
        tile = line * across + column
        wide = tl.where(column < G.cols, 1, 0)
    else:
        tile = tl.cast(group, tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
        line, column = tile * 0, tile
        if KIND != ONE_LINE:
            line, column = tile // across, tile % across
        wide = tl.where(tile < side, tl.minimum(-column * G.wide + G.cols, G.wide), 0)
    matrix, row = line * 0, line
    if (KIND == COLUMNS) or (KIND == RECTANGLES):
        matrix, row = line // down, line % down
    tall = tl.minimum(-row * G.tall + G.rows, G.tall)
    before = (matrix * G.rows + row * G.tall) * G.cols
    left = column * G.wide
    return tile, before + left, tall, wide, before + left * tall


@triton.jit
def line_of(tile, down, across, KIND: tl.constexpr):
    """The line of every tile: its column where these lie along columns, else its row."""
    if KIND == COLUMNS:
        return tile // (down * across) * across + tile % across
    else:
        return tile // across


@triton.jit
def elements_in(
    start,
    G,
    tall,
    wide,
    KIND: tl.constexpr,
    BLOCKS: tl.constexpr,
    PART: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """The elements of tiles from number ``start`` on: how far they lie behind the first, [PART],
    and which of them exist, [BLOCKS, PART]. With WHOLE all elements of an existing tile do."""
    place = start + tl.arange(0, PART)
    if (KIND == LINES) or (KIND == ONE_LINE):
        offset = place
        inside = place[None, :] < wide[:, None]
    elif KIND == COLUMNS:
        offset = place * G.cols
        inside = (place[None, :] < tall) & (wide > 0)[:, None]
    else:
        row, column = place // G.wide, place % G.wide
        offset = row * G.cols + column
        inside = (row[None, :] < tall[:, None]) & (column[None, :] < wide[:, None])
    if WHOLE:
        inside = tl.broadcast_to((wide > 0)[:, None], [BLOCKS, PART])
    return offset, inside
