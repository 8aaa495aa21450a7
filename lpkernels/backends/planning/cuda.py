"""Products of the ``cuda`` backend as csrc/cuda/product/multiply.cu makes them.

Tiles go by the shape of the outputs, and sums are split at the ends of chunks. Every kernel is
started that some operands may ask for: three at most, beside the copies that tensor cores take.
"""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning.cuda_cuts import (
    MOST_PARTS,
    SHAPES,
    SQUARES,
    TENSOR_SHAPES,
    Cut,
    Tiles,
    beside,
    cut_of,
)
from lpkernels.backends.planning.cuda_tiers import (
    EXACT,
    ORDERED,
    closes_in_float,
    hardware,
    has_shapes,
    inner_rounding,
    may_use_tensor_cores,
    tier,
)
from lpkernels.backends.planning.plans import Plan, ceil_div, covering, not_counted
from lpkernels.backends.planning.shapes import Shape
from lpkernels.formats import FloatFormat

# csrc/cuda/product/job.h pads each part of the scratch memory to this.
_LINE = 256
_FLOAT, _HALF, _COUNT = 4, 2, 4
#: The tile of kernels that have no other.
SQUARE = (SQUARES.shapes[0].rows, SQUARES.shapes[0].cols)
#: Sides of the exact kernel's tiles, of plain products and of rounded ones.
EXACT_SIDES = (64, 32)


class Cuts(NamedTuple):
    """How the kernels of square tiles share a product out, and those of tiles of every shape."""

    squares: Cut
    shaped: Cut

    def of(self, kernel: str) -> Cut:
        return self.shaped if has_shapes(kernel) else self.squares

    @property
    def differ(self) -> bool:
        """Whether the tiles of `shaped` are not square."""
        return (self.shaped.rows, self.shaped.cols) != SQUARE

    @property
    def passes(self) -> int:
        return max(cut.passes for cut in self)


def plan(shape: Shape, acc: Accumulator, processors: int, *, fast_doubles: bool = True) -> Plan:
    """How the backend makes the product of that shape with an accumulator on so many processors.

    fast_doubles: the processor adds doubles at half the rate of floats, no less.

    Raises: NotImplementedError: it takes a kernel whose instructions were not counted.
    """
    kernel = tier(acc, shape, fast_doubles=fast_doubles)
    if kernel in (EXACT, ORDERED):
        raise not_counted("cuda", kernel, acc)
    cuts = cuts_for(shape, acc, processors)
    cut = cuts.of(kernel)
    held = beside(cut, shapes_of(acc))
    waves = cut.passes * ceil_div(cut.tiles * cut.splits, processors * held) * held
    return Plan(
        kernel, (cut.rows, cut.cols), cut.tiles, cut.splits, waves,
        launches(acc, cuts), scratch(shape, acc, cuts),
        cut.chunks if cut.splits > 1 else 0,
    )  # fmt: skip


def cuts_for(shape: Shape, acc: Accumulator, processors: int) -> Cuts:
    sizes = (shape.matrices, shape.m, shape.n, shape.chunks(acc.chunk), processors)
    return Cuts(cut_of(*sizes, SQUARES), cut_of(*sizes, shapes_of(acc)))


def shapes_of(acc: Accumulator) -> Tiles:
    """The tiles of the kernels that have several."""
    if may_use_tensor_cores(acc):
        return TENSOR_SHAPES
    return SHAPES if may_shape(acc) else SQUARES


def may_shape(acc: Accumulator) -> bool:
    """Whether kernels without tensor cores have tiles of every shape.

    They do where sums are rounded to nearest, have at most 21 bits behind the point, and have
    chunks that end in float32. A sum without chunks is one chunk of a sum in the same format.
    """
    fmt = acc.fmt
    if acc.order != "sequential" or acc.block is not None:
        return False
    # The hardware tiers do not flag zeros, which an outer sum would make +0.
    if acc.chunk is None and hardware(fmt):
        return False
    single = isinstance(fmt, FloatFormat) and 1 <= fmt.man_bits <= 21
    return single and acc.rounding == "nearest_even" and closes_in_float(acc)


def launches(acc: Accumulator, cuts: Cuts) -> int:
    """Kernels of one product between packed operands and its result: in each pass the certified
    kernels and the last one, and before the first pass the copies that tensor cores take."""
    shaped, squares = certified_kernels(acc, chunked=acc.chunk is not None or cuts.differ)
    certified = cuts.shaped.passes * shaped + cuts.squares.passes * squares
    return may_use_tensor_cores(acc) + certified + cuts.passes


def certified_kernels(acc: Accumulator, *, chunked: bool) -> tuple[int, int]:
    """How many certified kernels are started for an accumulator, whatever its operands: those with
    tiles of every shape, and those with square tiles.

    Tiers share a kernel where they need about as many registers. chunked: the kernels are those of
    sums in chunks.
    """
    fmt = acc.fmt
    if hardware(fmt) == "float32":
        return int(may_use_tensor_cores(acc)), 1
    if inner_rounding(acc) != "nearest_even" or not isinstance(fmt, FloatFormat):
        return 0, 1
    # Sums of at most 21 bits behind the point have a kernel in float32 beside the one in double.
    single = int(fmt.man_bits <= 21)
    return (single, 1) if chunked else (0, single + 1)


def scratch(shape: Shape, acc: Accumulator, cuts: Cuts) -> int:
    """Bytes beside operands and result: `scratch_of` of csrc/cuda/product/job.h."""
    tensor = may_use_tensor_cores(acc)
    squares = _outer_sums(cuts.squares) if acc.chunk or (cuts.differ and not tensor) else 0
    shaped = _outer_sums(cuts.shaped) if tensor else 0
    # Tiles that are not square have outer sums in registers, except on tensor cores.
    waiting = [
        shape.outputs * cut.splits * cut.chunks if cut.splits > 1 else outer
        for cut, outer in zip(cuts, (squares, shaped), strict=True)
    ]
    halves = _HALF if tensor else 0
    flags = max(cut.tiles * cut.splits for cut in cuts)
    # The exact kernel counts, for each tile, the blocks that are done with it.
    side = EXACT_SIDES[acc.product is not None]
    splits = any(cut.splits > 1 for cut in cuts)
    counts = covering(shape.matrices, shape.m, shape.n, (side, side)) if splits else 0
    parts = (
        counts * _COUNT,
        flags,
        max(waiting) * _FLOAT,
        *(size * halves for size in shape.packed),
    )
    return _LINE + sum(ceil_div(part, _LINE) * _LINE for part in parts)


def _outer_sums(cut: Cut) -> int:
    """Floats that the outer sums of the blocks at work take in memory."""
    return min(cut.tiles, MOST_PARTS // (SQUARE[0] * SQUARE[1])) * cut.rows * cut.cols
