"""Products of the ``cuda`` backend as csrc/cuda/multiply.cu makes them: tiles of 128 x 128 outputs,
sums split at the ends of chunks, every kernel that some operands may ask for started."""

from __future__ import annotations

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning.cuda_cuts import TILE, Cut, cut_of
from lpkernels.backends.planning.cuda_tiers import (
    EXACT,
    ORDERED,
    inner_rounding,
    may_use_tensor_cores,
    native,
    tier,
)
from lpkernels.backends.planning.plans import Plan, ceil_div, not_counted
from lpkernels.backends.planning.shapes import Shape
from lpkernels.formats import FloatFormat

# Of csrc/cuda/job.h: what a part of the scratch memory is padded to.
_LINE = 256
_FLOAT, _HALF = 4, 2


def plan(shape: Shape, acc: Accumulator, processors: int, *, fast_doubles: bool = True) -> Plan:
    """How the backend makes the product of that shape with an accumulator on so many processors.

    fast_doubles: the processor adds doubles at half the rate of floats, no less.

    Raises: NotImplementedError: it takes a kernel whose instructions were not counted.
    """
    kernel = tier(acc, shape, fast_doubles=fast_doubles)
    if kernel in (EXACT, ORDERED):
        raise not_counted("cuda", kernel, acc)
    cut = cut_for(shape, acc, processors)
    waves = cut.passes * ceil_div(cut.tiles * cut.splits, processors)
    return Plan(
        kernel, TILE, cut.tiles, cut.splits, waves,
        launches(acc, cut, finishes=shape.finishes), scratch(shape, acc, cut),
        cut.chunks if cut.splits > 1 else 0,
    )  # fmt: skip


def cut_for(shape: Shape, acc: Accumulator, processors: int) -> Cut:
    sizes = (shape.matrices, shape.m, shape.n)
    return cut_of(*sizes, shape.chunks(acc.chunk), processors)


def launches(acc: Accumulator, cut: Cut, *, finishes: bool) -> int:
    """Kernels of one product between packed operands and its result: the plan, all certified ones,
    the finish of a bias or a rounded result, the exact one. Where sums are split, all certified
    ones in each pass and one that adds their parts, which also finishes."""
    copies = 4 if may_use_tensor_cores(acc) else 0
    if cut.splits == 1:
        return 1 + certified_kernels(acc) + finishes + 1
    return 1 + copies + cut.passes * (certified_kernels(acc) - copies + 1) + 1


def certified_kernels(acc: Accumulator) -> int:
    """Those started for an accumulator whatever its operands, of which one works."""
    fmt = acc.fmt
    if native(fmt) == "float32":
        # Of both 16-bit types the two operands' copies and the tiles.
        return 1 + (2 * (2 + 1) if may_use_tensor_cores(acc) else 0)
    if inner_rounding(acc) != "nearest_even" or not isinstance(fmt, FloatFormat):
        return 1
    halves = {"half precision": 2, "bfloat16": 1}.get(native(fmt), 0)
    # Splitting, and with the subnormals' floor: proved, watched and made odd, clipped too.
    single = 2 * (3 + (fmt.overflow == "saturate")) if fmt.man_bits <= 21 else 0
    return halves + single + 2


def scratch(shape: Shape, acc: Accumulator, cut: Cut) -> int:
    """Bytes that a product has beside operands and result: `scratch_of` of csrc/cuda/job.h."""
    sums = cut.tiles * TILE[0] * TILE[1] if acc.chunk else 0
    if cut.splits > 1:
        sums = shape.matrices * shape.m * shape.n * cut.splits * cut.chunks
    halves = _HALF if may_use_tensor_cores(acc) else 0
    parts = (cut.tiles, sums * _FLOAT, *(size * halves for size in shape.packed))
    return _LINE + sum(ceil_div(part, _LINE) * _LINE for part in parts)
