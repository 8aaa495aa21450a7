"""What the products of a call take on a GPU: instructions, bytes, microseconds.

Predicted from counts of machine code, never measured; docs/predictions.md has the model.
"""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.arithmetic import Accumulator, accumulator_from_ints
from lpkernels.backends.planning import cuda, triton
from lpkernels.backends.planning.counts import Count, cuda_count, outer_count, triton_count
from lpkernels.backends.planning.cuda_tiers import TENSOR
from lpkernels.backends.planning.devices import Device
from lpkernels.backends.planning.plans import Plan, ceil_div, covering
from lpkernels.backends.planning.shapes import Call, Shape, products

_FLOAT, _HALF, _WARP = 4, 2, 32
# Kernels that pack two operands: for cuda their facts cleared at once, for triton each by itself.
_PACKING = {"cuda": 3, "triton": 4}


class Cost(NamedTuple):
    """Of one product. instructions: of a thread for one product, the ends of chunks shared out.
    microseconds: between packed operands and result, without launches. fp32: of float32
    multiply-adds at their best, for the same products."""

    shape: Shape
    plan: Plan
    instructions: float
    microseconds: float
    fp32: float


class Costs(NamedTuple):
    """Of all products of a call. packing: microseconds, without its launches."""

    products: list[Cost]
    packing: float
    packing_launches: int


def costs(call: Call, backend: str, device: Device) -> Costs:
    """What a call takes on the backend cuda or triton of a device.

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
    return Costs(found, packing, _PACKING[backend])


def _elements(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def _cost(shape: Shape, acc: Accumulator, backend: str, device: Device, fp32: float) -> Cost:
    if backend == "cuda":
        plan = cuda.plan(shape, acc, device.processors, fast_doubles=device.fast_doubles)
        count = cuda_count(plan.kernel, tables=shape.tables, chunks=acc.chunk is not None)
    else:
        plan = triton.plan(shape, acc, device.processors)
        count = triton_count(plan.kernel, acc, tables=shape.tables, shared=plan.splits > 1)
    instructions = per_product(count, shape, acc)
    spent = _microseconds(shape, plan, instructions, device)
    if plan.splits > 1 and backend == "triton":
        outer = outer_count(acc)
        spent += _outer(shape, plan, acc, outer, device)
        instructions += outer * chunks_of(shape, acc) / shape.k
    return Cost(shape, plan, instructions, spent, fp32)


def per_product(count: Count, shape: Shape, acc: Accumulator) -> float:
    """Instructions of a product, with those that close its chunks."""
    if acc.chunk is None or shape.k == 0:
        return count.product
    return count.product + count.closed * chunks_of(shape, acc) / shape.k


def chunks_of(shape: Shape, acc: Accumulator) -> int:
    """How many chunks a sum has, those that steps leave out too."""
    assert acc.chunk is not None
    return ceil_div(shape.length or shape.k, acc.chunk)


def _outer(shape: Shape, plan: Plan, acc: Accumulator, count: float, device: Device) -> float:
    """Microseconds of the kernel of `triton` that adds the sums of chunks, a warp for 32 outputs,
    and of the memory that they go through."""
    chunks = chunks_of(shape, acc)
    waves = ceil_div(covering(shape.matrices, shape.m, shape.n, (1, _WARP)), device.processors)
    clocks = waves * chunks * count / device.issues
    through = _FLOAT * plan.tiles * plan.tile[0] * plan.tile[1] * chunks / device.bandwidth
    return max(clocks / device.clock, through) + through


def _microseconds(shape: Shape, plan: Plan, instructions: float, device: Device) -> float:
    """The longest of instructions, tensor cores and memory, behind what makes 16-bit operands."""
    rows, cols = plan.tile
    made = plan.waves * rows * cols * (plan.steps or shape.k)
    clocks = made * instructions / (_WARP * device.issues)
    fed = 0.0
    values = sum(shape.packed)
    if plan.kernel in TENSOR:
        clocks = max(clocks, made / device.tensor_products)
        fed = (_FLOAT + _HALF) * values / device.bandwidth
    outputs = shape.matrices * shape.m * shape.n
    moved = (_HALF if plan.kernel in TENSOR else _FLOAT) * values + _FLOAT * outputs
    return fed + max(clocks / device.clock, moved / device.bandwidth)
