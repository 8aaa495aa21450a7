"""The products of matrices that the GPU backends make of an operator's call.

They follow from sizes alone, as lpkernels/backends/cuda and triton make them of tensors; no memory
is needed.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from bench.predict.ranges import ONES, Ints, Range, range_of
from lpkernels.backends import Convolution
from lpkernels.backends._conv_geometry import Geometry, geometry_of
from lpkernels.backends._conv_phases import dgrad_frame, met_phases
from lpkernels.backends._conv_tables import fprop_frame, gradient_frame, wgrad_frame
from lpkernels.backends.planning.triton_tiles import UNIT, power_of_two, transposes

Sizes = tuple[int, ...]
_CUDA_PAD, _TRITON_PAD = 128, 512
# With fewer channels than this, Triton's padding would more than double them: parts are not padded.
_FEW_CHANNELS = 16


class Call(NamedTuple):
    """One call of an operator that sums products, described by sizes.

    op: matmul, conv_fprop, conv_dgrad or conv_wgrad. left, right: shapes of the operands, in the
    operator's order. result: the shape of the result. acc: ``Accumulator.to_ints()``. quantizers:
    the quantizers of the operands, as integers; () if they are not known. geometry: a convolution's
    stride, padding and dilation. ones: the left operand is a row of ones. dense: the left operand's
    memory is contiguous.
    """

    op: str
    left: Sizes
    right: Sizes
    result: Sizes
    acc: Ints
    quantizers: tuple[Ints, Ints] = ((), ())
    geometry: tuple[Sizes, Sizes, Sizes] = ((), (), ())
    groups: int = 1
    ones: bool = False
    dense: bool = True

    @property
    def values(self) -> int:
        """Elements of all three tensors: a product must read and write at least these."""
        return sum(math.prod(sizes) for sizes in (self.left, self.right, self.result))


class Shape(NamedTuple):
    """G products of M x K and K x N matrices, as a kernel gets them.

    tables: operands lie where tables say. absent: taps may fall outside. length: positions of the
    contract's order, where steps leave some out; 0: each step is a position. swapped: rows and
    columns changed places. left, right: the ranges of the operands. packed: how many elements each
    has once it is packed.
    """

    matrices: int
    m: int
    n: int
    k: int
    left: Range
    right: Range
    tables: bool = False
    absent: bool = False
    length: int = 0
    swapped: bool = False
    packed: tuple[int, int] = (0, 0)

    @property
    def skips(self) -> bool:
        return self.length > 0

    @property
    def outputs(self) -> int:
        return self.matrices * self.m * self.n

    @property
    def macs(self) -> int:
        return self.outputs * self.k

    def chunks(self, chunk: int | None) -> int:
        """How many chunks of that length a sum has; chunks without steps count."""
        return 1 if chunk is None else -(-(self.length or self.k) // chunk)


def products(call: Call, backend: str) -> list[Shape]:
    """The products of a call on the backend cuda or triton, in order; an empty list if the call
    multiplies nothing."""
    if 0 in call.result or 0 in call.left:
        return []
    found = {
        "matmul": _matmul,
        "conv_fprop": _fprop,
        "conv_dgrad": _dgrad,
        "conv_wgrad": _wgrad,
    }[call.op](call, backend)
    if backend == "cuda":
        return found
    return [_turned(shape) if transposes(shape.m, shape.n) else shape for shape in found]


def _turned(shape: Shape) -> Shape:
    return shape._replace(
        m=shape.n, n=shape.m, left=shape.right, right=shape.left, swapped=not shape.swapped,
        packed=shape.packed[::-1],
    )  # fmt: skip


def _padded(lanes: int, backend: str) -> int:
    unit = _CUDA_PAD
    if backend == "triton":
        unit = min(_TRITON_PAD, max(UNIT, power_of_two(lanes)))
    return -(-lanes // unit) * unit


def _ranges(call: Call) -> tuple[Range, Range]:
    left, right = map(range_of, call.quantizers)
    return (ONES if call.ones else left), right


def _matmul(call: Call, backend: str) -> list[Shape]:
    batch, (m, k), n = call.result[:-2], call.left[-2:], call.right[-1]
    matrices, ours = math.prod(batch), math.prod(call.left[:-2])
    if batch and len(call.right) == 2 and call.dense:
        matrices, ours, m = 1, 1, matrices * m
    theirs = math.prod(call.right[:-2])
    left, right = _ranges(call)
    packed = (ours * k * _padded(m, backend), theirs * k * _padded(n, backend))
    return [Shape(matrices, m, n, k, left, right, packed=packed)]


def _geometry(call: Call, x: Sizes, w: Sizes, y: Sizes) -> Geometry:
    stride, padding, dilation = call.geometry
    return geometry_of(x, w, y, Convolution(stride, padding, dilation, call.groups))


def _gathered(
    call: Call, backend: str, sizes: Sizes, ranges: tuple[Range, Range], packed: tuple[int, int]
) -> Shape:
    """A product of an image's positions and channels: positions are rows for cuda, columns for
    triton. ranges, packed: first the image's, then the other operand's."""
    matrices, positions, channels, k = sizes
    shape = Shape(
        matrices, positions, channels, k, *ranges, tables=True, absent=True,
        packed=packed,
    )  # fmt: skip
    return shape if backend == "cuda" else _turned(shape)._replace(swapped=True)


def _fprop(call: Call, backend: str) -> list[Shape]:
    g = _geometry(call, call.left, call.right, call.result)
    k, positions = g.in_channels * g.taps, g.batch * math.prod(g.output)
    frame = fprop_frame(g)
    packed = (g.batch * frame.image_step, g.groups * k * _padded(g.out_channels, backend))
    sizes = (g.groups, positions, g.out_channels, k)
    shape = _gathered(call, backend, sizes, _ranges(call), packed)
    return [shape._replace(absent=frame.extends(g.size))]


def _dgrad(call: Call, backend: str) -> list[Shape]:
    g = _geometry(call, call.result, call.right, call.left)
    frame = dgrad_frame(g)
    weights = g.groups * g.out_channels * g.taps * _padded(g.in_channels, backend)
    packed = (g.batch * frame.image_step, weights)
    found = []
    for phase in itertools.product(*met_phases(g)):
        taps = math.prod(m.taps for m in phase)
        positions = g.batch * math.prod(m.positions for m in phase)
        sizes = (g.groups, positions, g.in_channels, g.out_channels * taps)
        shape = _gathered(call, backend, sizes, _ranges(call), packed)
        length = 0 if taps == g.taps else g.out_channels * g.taps
        found.append(shape._replace(absent=frame.extends(g.output), length=length))
    return found


def _wgrad(call: Call, backend: str) -> list[Shape]:
    g = _geometry(call, call.left, call.result, call.right)
    gradient, image = gradient_frame(g), wgrad_frame(g)
    if backend == "triton" and g.out_channels >= _FEW_CHANNELS:
        gradient = gradient._replace(parts=g.groups, width=_padded(g.out_channels, backend))
    packed = (g.batch * gradient.parts * gradient.image_step, g.batch * image.image_step)
    ours, theirs = _ranges(call)
    shape = Shape(
        g.groups, g.out_channels, g.in_channels * g.taps, g.batch * math.prod(g.output), theirs,
        ours, tables=True, absent=image.extends(g.size), packed=packed,
    )  # fmt: skip
    return [shape]
