"""Microseconds of small calls, compared with numbers computed by hand."""

import pytest

from bench.predict.costs import costs, per_product
from bench.predict.counts import CUDA, TRITON, Count
from bench.predict.devices import Device, device, device_of
from bench.predict.ranges import FLOAT32, Range, range_of
from bench.predict.shapes import Call, Shape
from lpkernels.arithmetic import Accumulator, as_quantizer

E5M2 = as_quantizer("e5m2").to_ints()
#: Round numbers: 4 processors, a clock a microsecond, a byte a microsecond.
TOY = Device("toy", 4, 4, 128, 1280, 1.0, 1.0, 2.0, True)
#: The same with a memory that never holds anything up.
FAST = TOY._replace(bandwidth=1e12)


def matmul(m: int, k: int, n: int, acc: Accumulator, **more: object) -> Call:
    ints = (E5M2, E5M2)
    return Call("matmul", (m, k), (k, n), (m, n), acc.to_ints(), ints)._replace(**more)


def test_instructions_of_a_tile_take_their_time() -> None:
    acc = Accumulator("e6m9", "toward_zero")
    (one,) = costs(matmul(10, 64, 20, acc), "cuda", FAST).products
    # A tile of 128 x 128 outputs of 64 products each, 128 of them a clock.
    assert one.plan.tiles == 1
    assert one.instructions == CUDA["toward zero"].packed.product
    assert one.microseconds == pytest.approx(128 * 128 * 64 / 128 * one.instructions)


def test_a_sum_without_chunks_ends_once_in_tiles_that_are_not_square() -> None:
    (one,) = costs(matmul(1000, 64, 20, Accumulator("e6m9")), "cuda", FAST).products
    (chunk,) = costs(matmul(1000, 64, 20, Accumulator("e6m9", chunk=64)), "cuda", FAST).products
    assert one.plan.tile == chunk.plan.tile != (128, 128)
    assert (one.microseconds, one.instructions) == (chunk.microseconds, chunk.instructions)


def test_the_busiest_processor_counts() -> None:
    acc = Accumulator("e6m9", "toward_zero")
    (one,) = costs(matmul(128, 64, 128, acc), "cuda", FAST).products
    (four,) = costs(matmul(256, 64, 256, acc), "cuda", FAST).products
    (five,) = costs(matmul(5 * 128, 64, 128, acc), "cuda", FAST).products
    assert four.microseconds == one.microseconds
    assert five.microseconds == 2 * one.microseconds


def test_chunks_close_where_the_order_says() -> None:
    count, acc = Count(3.0, 64.0), Accumulator("e6m9", chunk=64)
    shape = Shape(1, 1, 1, 128, FLOAT32, FLOAT32)
    assert per_product(count, shape, 0) == 3.0
    assert per_product(count, shape, shape.chunks(acc.chunk)) == 3.0 + 2 * 64 / 128
    # A short sum closes one chunk; one that leaves positions out closes all of theirs.
    short, left_out = shape._replace(k=9), shape._replace(length=512)
    assert per_product(count, short, short.chunks(acc.chunk)) == 3.0 + 64 / 9
    assert per_product(count, left_out, left_out.chunks(acc.chunk)) == 3.0 + 8 * 64 / 128


def test_memory_can_be_slower_and_packing_reads_tensors_and_writes_operands() -> None:
    slow = FAST._replace(bandwidth=1e-9)
    (one,) = costs(matmul(10, 64, 20, Accumulator("e6m9")), "cuda", slow).products
    # Both operands with their lanes padded to 128, and the result.
    assert one.microseconds == pytest.approx(4 * (2 * 64 * 128 + 10 * 20) / 1e-9)
    found = costs(matmul(10, 64, 20, Accumulator("e6m9")), "cuda", TOY)
    assert found.packing == 4 * (10 * 64 + 64 * 20 + 2 * 64 * 128)
    assert found.packing_launches == 3


def test_float32_is_bound_by_multiply_adds_or_memory() -> None:
    acc = Accumulator("e6m9")
    (work,) = costs(matmul(128, 64, 128, acc), "cuda", FAST).products
    assert work.fp32 == 128 * 64 * 128 / (4 * 128)
    (memory,) = costs(matmul(128, 64, 128, acc), "cuda", TOY).products
    assert memory.fp32 == 4 * (128 * 64 + 64 * 128 + 128 * 128)


def test_phases_share_the_float32_of_their_call() -> None:
    geometry = ((2, 2), (1, 1), (1, 1))
    acc = Accumulator("e6m9", chunk=64).to_ints()
    y, w, x = (2, 24, 4, 4), (24, 16, 3, 3), (2, 16, 8, 8)
    call = Call("conv_dgrad", y, w, x, acc, (E5M2, E5M2), geometry=geometry)
    found = costs(call, "cuda", FAST).products
    # There are one tap, two, two and four for each output of dy and pair of channels.
    macs = 2 * 24 * 4 * 4 * 16 * 9
    assert sum(one.shape.macs for one in found) == macs
    assert [one.shape.k for one in found] == [24, 48, 48, 96]
    assert sum(one.fp32 for one in found) == pytest.approx(macs / (4 * 128))


def test_tensor_cores_have_a_rate_of_their_own() -> None:
    acc = Accumulator("fp32", order="native", chunk=64, outer="e6m9")
    (one,) = costs(matmul(128, 64, 128, acc), "cuda", FAST).products
    assert one.plan.kernel == "tensor cores, half"
    # The time is the longer of two: at 128 products a clock and instruction, and at the tensor
    # cores' 1280 products a clock.
    assert one.microseconds == pytest.approx(
        max(128 * 128 * 64 * one.instructions / 128, 128 * 128 * 64 / 1280)
    )


def test_triton_takes_its_own_counts() -> None:
    (one,) = costs(matmul(8, 64, 512, Accumulator("e6m9")), "triton", FAST).products
    assert one.plan.kernel == "fused"
    rows, cols = one.plan.tile
    made = one.plan.waves * rows * cols * 64
    assert one.microseconds == pytest.approx(made / 128 * one.instructions)


def test_sums_that_are_shared_are_written_and_added() -> None:
    """The time of the busiest program's chunks, then of the chunks of each sum, one after
    another."""
    acc = Accumulator("e6m9", chunk=64)
    device = FAST._replace(processors=132)
    (one,) = costs(matmul(8, 64 * 100, 512, acc), "triton", device).products
    assert one.plan.splits > 1
    rows, cols = one.plan.tile
    shared, outer = TRITON["fused, chunks, shared"], TRITON["outer"].product
    made = one.plan.waves * rows * cols * one.plan.chunks * (64 * shared.product + shared.closed)
    # 8 x 512 outputs are 128 warps, fewer than there are processors: each waits 24 clocks for every
    # addition.
    assert outer < 24
    assert one.microseconds == pytest.approx(made / 128 + 100 * 24)
    assert one.instructions == pytest.approx(shared.product + (shared.closed + outer) / 64)
    slow = device._replace(bandwidth=1e-9)
    (late,) = costs(matmul(8, 64 * 100, 512, acc), "triton", slow).products
    # Both operands with their padding and the result are moved; every sum of a chunk is written and
    # read.
    moved = 4 * (sum(late.shape.packed) + 8 * 512) + 2 * 4 * 8 * 512 * 100
    assert late.microseconds == pytest.approx(moved / 1e-9)


def test_ranges_come_from_formats() -> None:
    assert range_of(E5M2) == Range(3, -16, 4)
    assert range_of(as_quantizer("bf16").to_ints()) == Range(8, -23, 4)
    assert range_of(as_quantizer("fixed8_f4").to_ints()) == Range(8, -4, 3)
    assert range_of(()) == FLOAT32
    with pytest.raises(TypeError, match="expected a float or a fixed format"):
        range_of(as_quantizer("affine8").to_ints())


def test_devices_are_found_by_name() -> None:
    assert device("h100").processors == 132
    assert device_of("NVIDIA H100 80GB HBM3") == "h100"
    assert device_of("NVIDIA A100-SXM4-40GB") == ""
    with pytest.raises(ValueError, match=r"expected one of h100, got 'tpu'"):
        device("tpu")
