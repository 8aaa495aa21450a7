"""Products of the ``cuda`` backend as csrc/cuda/product/multiply.cu makes them: tiles by the shape
of the outputs, sums split at the ends of chunks, and every kernel started that some operands may
ask for.
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
    has_shapes,
    inner_rounding,
    may_use_tensor_cores,
    native,
    tier,
)
from lpkernels.backends.planning.plans import Plan, ceil_div, not_counted
from lpkernels.backends.planning.shapes import Shape
from lpkernels.formats import FloatFormat

# csrc/cuda/product/job.h pads each part of the scratch memory to this.
_LINE = 256
_FLOAT, _HALF = 4, 2
#: The tile of kernels that have no other.
SQUARE = (SQUARES.shapes[0].rows, SQUARES.shapes[0].cols)


class Cuts(NamedTuple):
    """How the kernels of square tiles share a product out, and those of tiles of every shape."""

    squares: Cut
    shaped: Cut

    def of(self, kernel: str) -> Cut:
        return self.shaped if has_shapes(kernel) else self.squares

    @property
    def passes(self) -> int:
        return max(cut.passes for cut in self)

    @property
    def differ(self) -> bool:
        """Whether the tiles of `shaped` are not square: kernels of their own make them."""
        return (self.shaped.rows, self.shaped.cols) != SQUARE


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
        launches(acc, cuts, finishes=shape.finishes), scratch(shape, acc, cuts),
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
    """Whether kernels without tensor cores have tiles of every shape: those of sums to nearest in
    chunks that end in float32, themselves of at most 21 bits behind the point."""
    fmt = acc.fmt
    if acc.chunk is None or acc.order != "sequential" or acc.block is not None:
        return False
    single = isinstance(fmt, FloatFormat) and 1 <= fmt.man_bits <= 21
    return single and acc.rounding == "nearest_even" and closes_in_float(acc)


def launches(acc: Accumulator, cuts: Cuts, *, finishes: bool) -> int:
    """Kernels of one product between packed operands and its result: the plan, all certified ones,
    the finish of a bias or a rounded result, the exact one. Where sums are split, all certified
    ones in each pass and one that adds their parts, which also finishes."""
    tensor = may_use_tensor_cores(acc)
    # Those of tensor cores; or proved and watched, by splitting and with the subnormals' floor.
    shaped = 2 if tensor else 4 if cuts.differ else 0
    copies = 4 if tensor else 0
    count = copies + cuts.squares.passes * (certified_kernels(acc) - copies - shaped)
    count += cuts.shaped.passes * shaped
    split = [cut.splits > 1 for cut in cuts]
    count += cuts.passes * any(split) + (finishes and not all(split))
    return 1 + count + 1


def certified_kernels(acc: Accumulator) -> int:
    """Those started for an accumulator whatever its operands, of which one works."""
    fmt = acc.fmt
    if native(fmt) == "float32":
        # Each of the two 16-bit types has two launches that copy operands and one for the tiles.
        return 1 + (2 * (2 + 1) if may_use_tensor_cores(acc) else 0)
    if inner_rounding(acc) != "nearest_even" or not isinstance(fmt, FloatFormat):
        return 1
    halves = {"half precision": 2, "bfloat16": 1}.get(native(fmt), 0)
    # Splitting, and with the subnormals' floor: proved, watched and made odd, clipped too.
    single = 2 * (3 + (fmt.overflow == "saturate")) if fmt.man_bits <= 21 else 0
    return halves + single + 2


def scratch(shape: Shape, acc: Accumulator, cuts: Cuts) -> int:
    """Bytes beside operands and result: `scratch_of` of csrc/cuda/product/job.h."""
    tensor = may_use_tensor_cores(acc)
    squares = _outer_sums(cuts.squares) if acc.chunk else 0
    shaped = _outer_sums(cuts.shaped) if tensor else 0
    # Tiles that are not square have outer sums in registers, but for those of tensor cores.
    waiting = [
        shape.outputs * cut.splits * cut.chunks if cut.splits > 1 else outer
        for cut, outer in zip(cuts, (squares, shaped), strict=True)
    ]
    halves = _HALF if tensor else 0
    flags = max(cut.tiles for cut in cuts)
    parts = (flags, max(waiting) * _FLOAT, *(size * halves for size in shape.packed))
    return _LINE + sum(ceil_div(part, _LINE) * _LINE for part in parts)


def _outer_sums(cut: Cut) -> int:
    """Of the blocks at work, in memory."""
    return min(cut.tiles, MOST_PARTS // (SQUARE[0] * SQUARE[1])) * cut.rows * cut.cols
