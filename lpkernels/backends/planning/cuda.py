"""Products of the ``cuda`` backend as csrc/cuda/product/multiply.cu makes them.

Tiles go by the shape of the outputs, and sums are split at the ends of chunks. Every kernel is
started that some operands may ask for: three at most, beside the copies that tensor cores take.
"""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning.cuda_cuts import (
    FLOAT_SHAPES,
    MOST_PARTS,
    RARE_SHAPES,
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
    MOST_CLIPPED,
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
    """How kernels share a product out: `shaped` is for those that `has_shapes` names."""

    others: Cut
    shaped: Cut

    def of(self, kernel: str) -> Cut:
        return self.shaped if has_shapes(kernel) else self.others

    @property
    def differ(self) -> bool:
        """Whether the tiles of `shaped` are not square."""
        return not _is_square(self.shaped)

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
    chunked = acc.chunk is not None or cuts.differ
    tiles = shapes_of(acc) if has_shapes(kernel) else other_shapes(acc, chunked=chunked)
    held = beside(cut, tiles)
    waves = cut.passes * ceil_div(cut.tiles * cut.splits, processors * held) * held
    return Plan(
        kernel, (cut.rows, cut.cols), cut.tiles, cut.splits, waves,
        launches(acc, cuts), scratch(shape, acc, cuts),
        cut.chunks if cut.splits > 1 else 0,
    )  # fmt: skip


def cuts_for(shape: Shape, acc: Accumulator, processors: int) -> Cuts:
    sizes = (shape.matrices, shape.m, shape.n, shape.chunks(acc.chunk), processors)
    tiles = shapes_of(acc)
    shaped = cut_of(*sizes, tiles)
    # A sum without chunks becomes one chunk where that gives it tiles of another shape.
    chunked = acc.chunk is not None or not _is_square(shaped)
    others = cut_of(*sizes, other_shapes(acc, chunked=chunked))
    return Cuts(others, others if tiles is SQUARES else shaped)


def _is_square(cut: Cut) -> bool:
    return (cut.rows, cut.cols) == SQUARE


def shapes_of(acc: Accumulator) -> Tiles:
    """The tiles of the kernels that `has_shapes` names; those of squares where there are none."""
    if may_use_tensor_cores(acc):
        return TENSOR_SHAPES
    return SHAPES if may_shape(acc) else SQUARES


def other_shapes(acc: Accumulator, *, chunked: bool) -> Tiles:
    """The tiles of the other kernels that may be asked for: `other_shapes` of
    csrc/cuda/product/job.h. chunked: the kernels are those of sums in chunks.

    The kernels that clip, or have arithmetic of 16 bits, have square tiles alone. Where one of them
    may be asked for, this holds for all.
    """
    fmt = acc.fmt
    nearest = inner_rounding(acc) == "nearest_even"
    if not chunked or not nearest or not closes_in_float(acc) or not isinstance(fmt, FloatFormat):
        return SQUARES
    if hardware(fmt) == "float32":
        return FLOAT_SHAPES
    clips = fmt.overflow == "saturate" and fmt.man_bits <= MOST_CLIPPED
    return SQUARES if clips or hardware(fmt) else RARE_SHAPES


def may_shape(acc: Accumulator) -> bool:
    """Whether the kernels without tensor cores that `has_shapes` names have tiles of every shape.

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
    shaped, others = certified_kernels(acc, chunked=acc.chunk is not None or cuts.differ)
    certified = cuts.shaped.passes * shaped + cuts.others.passes * others
    return may_use_tensor_cores(acc) + certified + cuts.passes


def certified_kernels(acc: Accumulator, *, chunked: bool) -> tuple[int, int]:
    """How many certified kernels are started for an accumulator, whatever its operands: those that
    `has_shapes` names, and the others.

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
    chunked = acc.chunk is not None or cuts.differ
    # Tiles that are not square have outer sums in registers, except on tensor cores.
    in_memory = (_is_square(cuts.others), tensor or _is_square(cuts.shaped))
    waiting = [
        shape.outputs * cut.splits * cut.chunks
        if cut.splits > 1
        else _outer_sums(cut) * (chunked and outer)
        for cut, outer in zip(cuts, in_memory, strict=True)
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
