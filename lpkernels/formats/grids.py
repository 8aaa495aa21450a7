"""How the blocks of a format lie in a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from lpkernels.formats.integers import (
    AFFINE,
    AXIS_K,
    BLOCK,
    KIND,
    LINE_SCALE,
    ROW,
    TENSOR,
    InAffine,
    InBlock,
    Ints,
    axis,
    code_bits,
    counted_rank,
    has_tensor_scale,
    scale_bits,
)


class Grid(NamedTuple):
    """A contiguous tensor as `outer` matrices of rows x cols, cut into tiles of tall x wide values.

    The values of a tile share a scale; the last tiles may be short. Blocks along the innermost
    dimension are tiles of one row, blocks along another are tiles of one column. In row-major
    order the scales of a tensor are (outer, down, across).
    """

    outer: int
    rows: int
    cols: int
    tall: int
    wide: int

    @property
    def down(self) -> int:
        """The number of tiles along the rows."""
        return -(-self.rows // self.tall)

    @property
    def across(self) -> int:
        """The number of tiles along the columns."""
        return -(-self.cols // self.wide)

    @property
    def lines(self) -> int:
        """The number of lines along which blocks run: columns where tiles are one column wide,
        else rows."""
        return self.outer * (self.cols if self.wide == 1 else self.rows)


def grid_of(shape: Sequence[int], fmt: Ints) -> Grid:
    """The grid of a tensor of this shape, without empty dimensions, for a block format."""
    lines, size = fmt[InBlock.LINES], fmt[InBlock.SIZE]
    shape = tuple(shape) or (1,)
    if lines == TENSOR:
        numel = math.prod(shape)
        return Grid(1, 1, numel, 1, numel)
    if lines > 0:
        rows, cols = shape[-2:]
        return Grid(math.prod(shape[:-2]), rows, cols, min(lines, rows), min(size, cols))
    axis = fmt[InBlock.AXIS] % len(shape)
    outer, length, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    size = length if lines == ROW else min(size, length)
    if inner == 1 and (size > 1 or fmt[InBlock.SCALE] != LINE_SCALE):
        return Grid(1, outer, length, 1, size)
    return Grid(outer, length, inner, size, 1)


def grid_shape(shape: Sequence[int], fmt: Ints) -> tuple[int, ...]:
    """The shape of the scales of a tensor of this shape: its dimensions, counted in blocks.

    A dimension of 0 has 0 blocks.
    """
    lines, size = fmt[InBlock.LINES], fmt[InBlock.SIZE]
    sizes = list(shape)
    if not sizes:
        return ()
    if lines == TENSOR:
        return tuple([min(length, 1) for length in sizes])
    if lines > 0:
        sizes[-2] = -(-sizes[-2] // lines)
        sizes[-1] = -(-sizes[-1] // size)
    else:
        along = fmt[InBlock.AXIS]
        sizes[along] = min(sizes[along], 1) if lines == ROW else -(-sizes[along] // size)
    return tuple(sizes)


def tensor_scale_shape(shape: Sequence[int], fmt: Ints) -> tuple[int, ...]:
    """The shape of t: that of a tensor of this shape with one value a line, or of a scalar."""
    if fmt[InBlock.SCALE] != LINE_SCALE:
        return ()
    whole = {InBlock.SIZE: 0, InBlock.LINES: ROW}
    return grid_shape(shape, tuple([whole.get(i, number) for i, number in enumerate(fmt)]))


def lengths_of_parts(shape: Sequence[int], fmt: Ints) -> tuple[int, int, int]:
    """The bytes of the scales of a tensor or its lines, of the scales of its blocks, and of its
    elements, each packed apart from the others."""
    scales = math.prod(grid_shape(shape, fmt)) * scale_bits(fmt)
    of_tensor = 4 * math.prod(tensor_scale_shape(shape, fmt)) if has_tensor_scale(fmt) else 0
    return of_tensor, (scales + 7) // 8, (math.prod(shape) * code_bits(fmt) + 7) // 8


class Misfit(NamedTuple):
    """Why a format does not suit a tensor: what the format has, and which tensors it would suit."""

    reason: str
    advice: str

    def error(self, owner: str, fmt: object, tensor: str) -> ValueError:
        """The error of a format; tensor names the tensor and its shape or rank."""
        return ValueError(f"{owner}: {fmt} {self.reason}, but {tensor}; {self.advice}")


# The places of integers that `misfit` reads, by the kind of the format.
_READ = {
    BLOCK: (KIND, InBlock.AXIS, InBlock.LINES),
    AFFINE: (KIND, InAffine.HAS_AXIS, InAffine.AXIS),
}


def axis_alone(fmt: Ints) -> Ints:
    """A format's integers with zeros but where `misfit` reads them."""
    read = _READ[fmt[KIND]]
    return tuple([fmt[i] if i in read else 0 for i in range(8)])


def misfit(fmt: Ints, rank: int) -> Misfit | None:
    """Why a tensor of this rank has none of a format's blocks or slices; None if it has."""
    along = axis(fmt)
    if along is None:
        return None
    if along == AXIS_K:
        return Misfit(
            "has blocks along 'k', the summed dimension of a product",
            "give the dimension that is meant, such as axis=-1",
        )
    if fmt[KIND] == BLOCK and fmt[InBlock.LINES] > 0:
        return None if rank >= 2 else Misfit("has tiles", "tiles need two dimensions or more")
    rank = counted_rank(fmt[KIND], rank)
    if -rank <= along < rank:
        return None
    allowed = f"the axis must be in {-rank}..{rank - 1}" if rank else "a scalar has no axis"
    return Misfit(f"runs along axis {along}", allowed)
