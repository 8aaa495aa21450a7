"""The costs of a call's products on a GPU: instructions, bytes, microseconds.

They are predicted from counts of machine code, never measured; docs/predictions.md has the model.
"""

from __future__ import annotations

from typing import NamedTuple

from bench.predict import cuda_plans as cuda
from bench.predict import triton_plans as triton
from bench.predict.counts import PARTS, Count, cuda_count, outer_count, triton_count
from bench.predict.cuda_plans import TENSOR, closes_in_float
from bench.predict.devices import Device
from bench.predict.plans import Plan, ceil_div
from bench.predict.shaped_counts import shaped_count
from bench.predict.shapes import Call, Shape, products
from lpkernels.arithmetic import Accumulator, accumulator_from_ints

_FLOAT, _HALF, _WARP = 4, 2, 32
# Clocks that an outer sum takes for every chunk: four instructions that wait for each other, with a
# share of what checks eight of them. The number is assumed.
_CHAIN = 24
# Kernels that pack two operands: one clears the facts of both.
_PACKING = 3


class Cost(NamedTuple):
    """The cost of one product.

    instructions: of a thread for one multiply-add, the ends of chunks shared out. microseconds:
    between packed operands and result, without launches. fp32: the microseconds of the same
    products as float32 multiply-adds at their best.
    """

    shape: Shape
    plan: Plan
    instructions: float
    microseconds: float
    fp32: float


class Costs(NamedTuple):
    """The costs of all products of a call. packing: microseconds, without its launches."""

    products: list[Cost]
    packing: float
    packing_launches: int


def costs(call: Call, backend: str, device: Device) -> Costs:
    """The costs of a call on the backend cuda or triton of a device.

    Raises: NotImplementedError: a product takes a kernel whose instructions were not counted.
    """
    acc = accumulator_from_ints(call.acc)
    shapes = products(call, backend)
    if not shapes:
        return Costs([], 0.0, 0)
    work = sum(shape.macs for shape in shapes)
    fp32 = max(
        work / (device.processors * device.lanes) / device.clock,
        _FLOAT * call.values / device.bandwidth,
    )
    found = [_cost(shape, acc, backend, device, fp32 * shape.macs / work) for shape in shapes]
    read = call.values - _elements(call.result)
    packing = _FLOAT * (read + sum(shapes[0].packed)) / device.bandwidth
    return Costs(found, packing, _PACKING)


def _elements(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def _cost(shape: Shape, acc: Accumulator, backend: str, device: Device, fp32: float) -> Cost:
    plan, count, added = (_cuda if backend == "cuda" else _triton)(shape, acc, device)
    chunks, steps, outputs = shape.chunks(acc.chunk), shape.k, shape.outputs
    # Where CUDA's tiles are not square, they make a sum without chunks as one chunk.
    whole = acc.chunk is None and (backend != "cuda" or plan.tile == cuda.SQUARE)
    closes = 0 if whole else chunks
    instructions = per_product(count._replace(closed=count.closed + added), shape, closes)
    if plan.chunks:
        # Where positions are left out, the steps of a tile are taken to be its share of them.
        steps = ceil_div(shape.k * plan.chunks, chunks)
        outputs, closes = outputs * chunks, plan.chunks
    spent = _tiles(
        shape, plan, steps, steps * count.product + closes * count.closed, outputs, device
    )
    if plan.chunks:
        spent += _parts(shape, chunks, added, device)
    return Cost(shape, plan, instructions, spent, fp32)


def _cuda(shape: Shape, acc: Accumulator, device: Device) -> tuple[Plan, Count, float]:
    """The plan of a product, the instructions of its tiles, and the instructions that add a chunk
    if sums are split."""
    plan = cuda.plan(shape, acc, device.processors, fast_doubles=device.fast_doubles)
    if plan.tile == cuda.SQUARE:
        count = cuda_count(plan.kernel, acc, tables=shape.tables)
    else:
        count = shaped_count(plan.kernel, plan.tile, tables=shape.tables)
    if acc.chunk is not None and acc.outermost_rounding != "nearest_even":
        raise NotImplementedError(
            f"cuda: {acc} rounds outer sums by {acc.outermost_rounding}; only ends of chunks that "
            "are rounded to nearest_even are counted in bench/results"
        )
    if not plan.chunks:
        return plan, count, 0.0
    added = PARTS.closed if closes_in_float(acc) else PARTS.in_double
    return plan, count._replace(closed=count.kept), added


def _triton(shape: Shape, acc: Accumulator, device: Device) -> tuple[Plan, Count, float]:
    """As `_cuda`, for a product of the Triton backend."""
    plan = triton.plan(shape, acc, device.processors)
    split = plan.chunks > 0
    count = triton_count(plan.kernel, acc, tables=shape.tables, shared=split)
    return plan, count, outer_count(acc) if split else 0.0


def per_product(count: Count, shape: Shape, chunks: int) -> float:
    """Instructions of a product, with its share of the instructions that close chunks."""
    if shape.k == 0:
        return count.product
    return count.product + count.closed * chunks / shape.k


def _tiles(
    shape: Shape, plan: Plan, steps: int, per_output: float, outputs: int, device: Device
) -> float:
    """Microseconds of the tiles: the longest of instructions, tensor cores and memory. If operands
    must be narrowed to 16 bits first, the time of that is added.

    steps: products of one output of a tile. per_output: their instructions. outputs: floats that
    are written.
    """
    rows, cols = plan.tile
    tiles = plan.waves * rows * cols
    clocks = tiles * per_output / (_WARP * device.issues)
    fed = 0.0
    values = sum(shape.packed)
    if plan.kernel in TENSOR:
        clocks = max(clocks, tiles * steps / device.tensor_products)
        fed = (_FLOAT + _HALF) * values / device.bandwidth
    moved = (_HALF if plan.kernel in TENSOR else _FLOAT) * values + _FLOAT * outputs
    return fed + max(clocks / device.clock, moved / device.bandwidth)


def _parts(shape: Shape, chunks: int, added: float, device: Device) -> float:
    """Microseconds to add the chunks of split sums in order: the longest of three times, which are
    for all instructions, for the chunks of one sum one after another, and for memory."""
    warps = shape.outputs / (_WARP * device.issues * device.processors)
    clocks = chunks * max(warps * added, max(_CHAIN, added))
    moved = _FLOAT * shape.outputs * (chunks + 1)
    return max(clocks / device.clock, moved / device.bandwidth)
