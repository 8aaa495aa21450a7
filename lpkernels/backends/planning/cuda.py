"""Products of the ``cuda`` backend as csrc/cuda/multiply.cu makes them today: tiles of 128 x 128
outputs, no sum split, every kernel that some operands may ask for started."""

from __future__ import annotations

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning.cuda_tiers import (
    EXACT,
    ORDERED,
    inner_rounding,
    may_use_tensor_cores,
    native,
    tier,
)
from lpkernels.backends.planning.plans import Plan, ceil_div, covering, not_counted
from lpkernels.backends.planning.shapes import Shape
from lpkernels.formats import FloatFormat

#: The outputs of a certified tile, rows and columns.
TILE = (128, 128)
# csrc/cuda/job.h pads each part of the scratch memory to this.
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
    tiles = covering(shape.matrices, shape.m, shape.n, TILE)
    waves = ceil_div(tiles, processors)
    return Plan(
        kernel, TILE, tiles, 1, waves, launches(acc, finishes=shape.finishes),
        scratch(shape, acc, tiles),
    )  # fmt: skip


def launches(acc: Accumulator, *, finishes: bool) -> int:
    """Kernels of one product between packed operands and its result: the plan, all certified ones,
    the finish of a bias or a rounded result, the exact one."""
    return 1 + certified_kernels(acc) + finishes + 1


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


def scratch(shape: Shape, acc: Accumulator, tiles: int) -> int:
    """Bytes that a product has beside operands and result: `scratch_of` of csrc/cuda/job.h."""
    sums = tiles * TILE[0] * TILE[1] * _FLOAT if acc.chunk else 0
    halves = _HALF if may_use_tensor_cores(acc) else 0
    parts = (tiles, sums, *(size * halves for size in shape.packed))
    return _LINE + sum(ceil_div(part, _LINE) * _LINE for part in parts)
