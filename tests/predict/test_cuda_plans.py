"""Plans of the cuda backend: tile, tier, splits, launches, scratch."""

import pytest

from bench.predict.cuda_plans import plan, tier
from bench.predict.ranges import FLOAT32, ONES, Range, range_of
from bench.predict.shapes import Shape
from lpkernels.arithmetic import Accumulator, as_accumulator, as_quantizer
from tests.loops import each, rows

E5M2, E4M3, FP16 = (range_of(as_quantizer(name).to_ints()) for name in ("e5m2", "e4m3fn", "fp16"))


def shape(m: int = 300, n: int = 20, k: int = 128, matrices: int = 1, **more: object) -> Shape:
    return Shape(matrices, m, n, k, E5M2, E5M2)._replace(**more)


def test_a_plan_covers_the_outputs_with_tiles() -> None:
    acc = Accumulator("e6m9", chunk=64)
    found = plan(shape(m=700, k=64), acc, 3)
    assert found.kernel == "two steps" and found.tile == (128, 32)
    # There are ceil(700 / 128) tiles of rows and one of columns; a processor should hold two.
    assert (found.tiles, found.splits, found.waves, found.chunks) == (6, 1, 2, 0)
    # The plan takes 256 bytes, and a flag for each tile follows.
    assert found.scratch == 256 + 256
    # Where other operands ask for square tiles, there is a float for each of their outputs, too.
    clipped = plan(shape(m=700, k=64), Accumulator("e6m9_sat", chunk=64), 3)
    assert clipped.scratch == 256 + 256 + 6 * 128 * 128 * 4


TILES = {
    (16_896, 256): (128, 128), (25_088, 64): (128, 64), (64, 25_088): (64, 128),
    (99_999, 32): (128, 32), (24, 99_999): (32, 128), (99_999, 16): (128, 16),
    (9, 99_999): (16, 128), (200_000, 1): (512, 1), (1, 99_999): (1, 32),
}  # fmt: skip


@each("outputs, tile", TILES.items())
def test_tiles_have_the_shape_of_the_outputs(outputs: tuple[int, int], tile: tuple[int, int]):
    m, n = outputs
    acc = Accumulator("e6m9", chunk=64)
    assert plan(shape(m=m, n=n, k=64), acc, 132).tile == tile
    # A sum without chunks is one chunk.
    assert plan(shape(m=m, n=n, k=64), Accumulator("e6m9"), 132).tile == tile
    # Where chunks end in double, and in other modes, there is one tile.
    nosub = Accumulator("e6m9", chunk=64, outer="e6m9_nosub")
    for other in (Accumulator("e6m9", "toward_zero"), nosub):
        assert plan(shape(m=m, n=n, k=64), other, 132).tile == (128, 128)


#: Accumulators and operands of the kernels that have other costs, by the kernel.
OTHERS = {
    "float32": ("fp32_chunk64", FLOAT32),
    "double, floor": ("e6m9_chunk64", range_of(as_quantizer("bf16").to_ints())),
    "odd, floor": ("e6m9_chunk64", FLOAT32),
}


@each("kernel", OTHERS)
def test_tiles_of_other_kernels_have_the_shape_of_the_outputs(kernel: str) -> None:
    name, operand = OTHERS[kernel]
    for (m, n), tile in TILES.items():
        found = plan(shape(m=m, n=n, k=64, left=operand, right=operand), as_accumulator(name), 132)
        launches = 2 + (kernel != "float32")
        assert (found.kernel, found.tile, found.launches) == (kernel, tile, launches)


# Sums that may be clipped, or made by arithmetic of 16 bits, share a kernel of square tiles with
# those in double.
@each("name", ["e6m9_sat_chunk64", "e5m10_chunk64", "bf16_chunk64"])
def test_kernels_that_clip_or_have_16_bits_keep_all_others_square(name: str) -> None:
    acc = as_accumulator(name)
    long = Range(12, -20, 8)
    found = plan(shape(m=99_999, n=16, k=64, left=long, right=long), acc, 132)
    assert found.tile == (128, 128) and found.kernel.startswith(("double", "odd"))
    assert plan(shape(m=99_999, n=16, k=64), acc, 132).launches == 3


def test_tiles_of_tensor_cores_are_128_or_64_wide() -> None:
    acc = as_accumulator("native_chunk64:outer=e6m9")
    for outputs, tile in {**TILES, (99_999, 32): (128, 64), (24, 99_999): (64, 128)}.items():
        m, n = outputs
        found = plan(shape(m=m, n=n, k=64, packed=(1, 1)), acc, 132).tile
        assert found == (tile if 64 in tile or tile == (128, 128) else wide(tile))


def wide(tile: tuple[int, int]) -> tuple[int, int]:
    return (128, 64) if tile[0] > tile[1] else (64, 128)


@each("matrices, processors, waves", [(1, 132, 1), (44, 132, 1), (45, 132, 2), (45, 1, 135)])
def test_waves_are_the_tiles_of_the_busiest_processor(matrices: int, processors: int, waves: int):
    acc = Accumulator("e6m9", "toward_zero")
    assert plan(shape(matrices=matrices), acc, processors).waves == waves


def test_a_depthwise_layer_has_tiles_for_every_channel() -> None:
    found = plan(shape(m=1, n=9, k=800, matrices=32), Accumulator("e6m9", "toward_zero"), 132)
    assert (found.tile, found.tiles, found.waves) == ((128, 128), 32, 1)
    assert found.scratch == 256 + 256
    chunks = plan(shape(m=9000, n=1, k=9, matrices=32), Accumulator("e6m9", chunk=64), 132)
    assert (chunks.tile, chunks.tiles, chunks.waves) == ((512, 1), 32 * 18, 6)
    # A tile is a row of 32 outputs of three channels and more.
    wgrad = plan(shape(m=1, n=9, k=800, matrices=32), Accumulator("e6m9", chunk=64), 132)
    assert (wgrad.tile, wgrad.tiles, wgrad.splits) == ((1, 32), 9, 13)


def test_long_sums_of_few_outputs_are_split() -> None:
    acc = Accumulator("e6m9", chunk=64)
    found = plan(shape(m=16, n=144, k=131_072), acc, 132)
    # Two tiles of 16 x 128 have 2048 chunks in 256 parts of 8; a processor should hold four.
    assert (found.tiles, found.splits, found.chunks, found.waves) == (2, 256, 8, 4)
    # Scratch holds the plan, a count for each of 3 exact tiles, a flag for each part and the sums
    # that wait.
    assert found.scratch == 256 + 256 + 2 * 256 + 16 * 144 * 2048 * 4
    # Two certified kernels and the last one.
    assert found.launches == 2 + 1


def test_what_waits_is_bounded() -> None:
    acc = Accumulator("e6m9", chunk=64)
    found = plan(shape(m=64, n=147, k=802_816), acc, 132)
    # Of 12,544 chunks 256 MiB hold 7,133, so there are two passes of 6,272 chunks: 66 parts of 96.
    assert (found.tiles, found.splits, found.chunks, found.waves) == (2, 66, 96, 2)
    assert found.scratch <= 256 + 256 + 256 + 2**28
    assert found.launches == 2 * (2 + 1)


def test_nothing_is_split_that_fills_the_processors() -> None:
    acc = Accumulator("e6m9", chunk=64)
    assert plan(shape(m=128 * 132, n=128), acc, 132).splits == 1
    assert plan(shape(m=128 * 131, n=128), acc, 132).splits == 1
    # One sum, without chunks.
    assert plan(shape(k=100_000), Accumulator("e6m9"), 132).splits == 1
    # One chunk.
    assert plan(shape(k=64), acc, 132).splits == 1


#: The operands of native chunks are copied in 16 bits before.
LAUNCHES = {
    3: "e6m9 e6m9_chunk64 e6m9_sat e5m10 bf16_chunk64",
    2: "e8m22 e8m22_chunk64 fp32 e6m9:toward_zero e6m9:stochastic",
    1 + 3: "native_chunk64:outer=e6m9",
}


@each("count, names", LAUNCHES.items())
def test_three_kernels_are_started_at_most(count: int, names: str) -> None:
    for name in names.split():
        found = plan(shape(m=4096, n=4096, packed=(1, 1)), as_accumulator(name), 132)
        assert (found.launches, found.tile) == (count, (128, 128)), name


@each("name", ["e6m9:to_odd", "e6m9:order=pairwise"])
def test_sums_that_were_not_counted_are_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"cuda: e6m9.*instructions are not counted"):
        plan(shape(), as_accumulator(name), 132)


@rows(
    "name, left, right, kernel",
    ("e6m9_chunk64", E5M2, E5M2, "two steps"), ("e6m9_chunk64", ONES, E5M2, "two steps"),
    ("e6m11", E5M2, E5M2, "split"), ("e6m12", E5M2, E5M2, "double, split"),
    ("e6m9", Range(3, -16, 16), Range(3, -16, 16), "two steps, watched"),
    ("e5m9", Range(3, -30, 8), Range(3, -30, 8), "floor, watched"),
    ("e4m7none_sat", E5M2, E5M2, "floor, clipped"), ("e5m10", E4M3, E4M3, "half precision"),
    ("e5m10", Range(12, -20, 8), E5M2, "double, floor"), ("e8m22", FP16, FP16, "double, split"),
    ("fp32", FLOAT32, FLOAT32, "float32"), ("bf16", E4M3, E4M3, "bfloat16"),
    ("native_chunk64:outer=e6m9", E4M3, E5M2, "tensor cores, half"),
    ("native_chunk64:outer=e6m9", FLOAT32, E5M2, "float32"),
    ("e6m9", FLOAT32, FLOAT32, "odd, floor"), ("e6m9:toward_zero", E5M2, E5M2, "toward zero"),
    ("e6m9:stochastic", E5M2, E5M2, "stochastic"),
    ("e6m9_chunk8:stochastic", E5M2, E5M2, "stochastic"),
    ("e6m9_chunk8:toward_zero", E5M2, E5M2, "toward zero"),
    ("e6m9_chunk8:outer_rounding=stochastic", E5M2, E5M2, "exact"),
    ("e6m9:to_odd", E5M2, E5M2, "exact"), ("e6m9:order=compensated", E5M2, E5M2, "ordered"),
)  # fmt: skip
def test_the_tier_is_that_of_the_devices_plan(name: str, left: Range, right: Range, kernel: str):
    found = tier(as_accumulator(name), shape(left=left, right=right))
    assert found == kernel


def test_scratch_holds_the_operands_of_tensor_cores() -> None:
    acc = as_accumulator("native_chunk64:outer=e6m9")
    found = plan(shape(m=1, n=1, left=E4M3, right=E4M3, packed=(300, 10)), acc, 1)
    # An element takes two bytes, and each operand is padded to a multiple of 256. Other operands
    # might have sums that are split, which an exact tile counts.
    assert found.scratch == 256 + 256 + 256 + 128 * 128 * 4 + 768 + 256


@pytest.mark.parametrize(
    ("outer", "tile"), [("e7m10_sat", (128, 32)), ("e8m10", (128, 32)), ("e8m10_sat", (128, 128))]
)
def test_outer_formats_that_reach_the_end_of_float32_close_in_double(outer, tile):
    """In float32 there is no room above the value at which these formats saturate."""
    acc = Accumulator("e6m9", chunk=64, outer=outer)
    assert plan(shape(m=99_999, n=32, k=64), acc, 132).tile == tile
