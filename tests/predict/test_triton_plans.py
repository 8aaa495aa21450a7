"""Plans of the triton backend, without Triton: tile, tier, splits, launches, scratch."""

import itertools
import subprocess
import sys

import pytest

from bench.predict.ranges import FLOAT32, Range, range_of
from bench.predict.shapes import Shape
from bench.predict.triton_plans import plan
from lpkernels.arithmetic import Accumulator, as_accumulator, as_quantizer
from lpkernels.backends.planning import triton_tiers, triton_tiles
from lpkernels.backends.planning.triton_splits import MOST, WHOLE, Share, scratch, share
from lpkernels.backends.planning.triton_tiles import Tile, certified_tile
from lpkernels.rounding import ROUNDINGS
from tests.loops import each, rows

E5M2, E4M3 = (range_of(as_quantizer(name).to_ints()) for name in ("e5m2", "e4m3fn"))


def shape(m: int = 4096, n: int = 4096, k: int = 128, **more: object) -> Shape:
    return Shape(1, m, n, k, E5M2, E5M2)._replace(**more)


@rows(
    "sizes, tile",
    ((4096, 4096, 1, 132), (4, 256, 4)), ((4096, 20, 1, 132), (8, 32, 4)),
    # Two programs for each processor: columns are halved, or rows where they are few.
    ((1, 4096, 1, 16), (1, 128, 4)), ((1, 4096, 1, 32), (1, 64, 2)),
    ((4, 256, 1, 2), (2, 128, 4)), ((1, 4096, 1, 132), (1, 32, 1)),
)  # fmt: skip
def test_tiles_of_the_exact_kernel(sizes: tuple[int, ...], tile: tuple[int, ...]) -> None:
    assert triton_tiles.exact_tile(*sizes) == tile


def test_large_products_take_the_largest_tile_and_few_outputs_smaller_ones() -> None:
    found = plan(shape(), Accumulator("e6m9", chunk=64), 132)
    assert (found.kernel, found.tile) == ("fused", (8, 512))
    assert (found.tiles, found.waves) == (512 * 8, 32)
    # Four bytes for each tile of both certified kernels.
    assert found.scratch == 2 * 4 * 512 * 8
    found = plan(shape(m=16, n=144, k=131072), Accumulator("e6m9"), 132)
    assert (found.tile, found.tiles, found.waves) == ((4, 128), 8, 1)


def test_programs_share_the_chunks_of_few_outputs() -> None:
    found = plan(shape(m=16, n=144, k=131072), Accumulator("e6m9", chunk=64), 132)
    # Five programs would cover all outputs; each of the 515 makes at most 20 of the 2048 chunks.
    assert (found.tile, found.tiles, found.splits) == ((16, 32), 5, 103)
    assert (found.waves, found.chunks) == (4, 20)
    # Scratch holds a number for each program of both certified kernels, and a float for each output
    # of each tile and chunk.
    assert found.scratch == 2 * 4 * 515 + 4 * 5 * 16 * 32 * 2048


def test_scratch_is_bounded() -> None:
    """Where the sums of chunks do not all fit, they are made and added in several passes."""
    acc = Accumulator("e6m9", chunk=64)
    found = plan(shape(m=64, n=576, k=200704), acc, 132)
    # A single pass would take 490 MiB.
    assert MOST / 2 < found.scratch < MOST + 8 * found.tiles * found.splits
    assert found.launches == 2 * 3
    assert plan(shape(m=64, n=576, k=2**30), acc, 132).scratch < MOST + 2**20


def test_what_fills_the_gpu_is_not_shared() -> None:
    acc = Accumulator("e6m9", chunk=64)
    assert plan(shape(m=4096, n=4096, k=4096), acc, 132).splits == 1
    assert plan(shape(m=16, n=512, k=131072), acc, 1).splits == 1
    # There is one chunk here, and below chunks so short that memory costs more than the programs
    # save.
    assert plan(shape(m=16, n=144, k=64), acc, 132).splits == 1
    short = Accumulator("e6m9", chunk=1)
    assert plan(shape(m=1100, n=512, k=4096), short, 132).splits == 1
    assert plan(shape(m=1100, n=512, k=4096), acc, 132).splits > 1


def test_without_chunks_a_sum_has_one_program() -> None:
    found = plan(shape(m=16, n=144, k=131072), Accumulator("e6m9"), 132)
    assert (found.splits, found.chunks) == (1, 0)


SHARED = itertools.product([2, 3, 7, 64, 2048], [1, 5, 66, 131, 264], [1, 4])


@each("chunks, tiles, warps", SHARED)
def test_a_share_is_whole(chunks: int, tiles: int, warps: int) -> None:
    tile = Tile(8, 128 * warps, warps)
    for processors in (1, 16, 132):
        found = share(chunks, 64, tile, tiles, processors)
        assert 1 <= found.splits <= max(found.held, 1)
        assert scratch(found, tile, tiles) <= MOST
        # The chunks of the busiest program, times the number of programs, cover every chunk.
        assert found.longest(chunks) * found.splits >= chunks
        assert found.longest(chunks) <= chunks


def test_passes_share_apart() -> None:
    found = Share(3, 4)
    assert found.passes(10) == 3
    # The busiest program makes two of four chunks, again two of four, and both of the last two.
    assert found.longest(10) == 2 + 2 + 2
    # Four chunks in parts of two take two programs of three.
    assert found.pieces == 2
    # The last pass has one chunk, or three; of three, the busiest program makes two.
    assert (Share(2, 4).longest(9), Share(2, 4).longest(11)) == (5, 6)
    assert WHOLE.longest(7) == 7


@rows(
    "sums, tile, tiles, processors, expected",
    # Half the processors have a tile; two programs halve the time from 9 steps a chunk on, and
    # at 8 steps the writing and reading takes what they save.
    ((10, 9), Tile(8, 512, 4), 66, 132, Share(2, 10)),
    ((10, 8), Tile(8, 512, 4), 66, 132, WHOLE),
    # Memory holds 409 chunks of these tiles, so that four passes make 364 each at most.
    ((1454, 4), Tile(8, 1024, 8), 20, 132, Share(13, 364)),
    # There is more room for programs than 4 to a tile, but these are the least busy.
    ((259, 64), Tile(8, 256, 2), 7, 3, Share(4, 259)),
    # A second program would be as busy as the first alone.
    ((1143, 4), Tile(8, 256, 2), 131, 132, WHOLE),
    # Memory holds two chunks, or none.
    ((2, 64), Tile(8, 128, 1), 2**15, 10**6, Share(2, 2)),
    ((2, 64), Tile(8, 128, 1), 2**16 + 1, 10**6, WHOLE),
    ((2, 64), Tile(8, 128, 1), 2**17, 10**6, WHOLE),
    # There is nothing to share.
    ((0, 64), Tile(8, 512, 4), 1, 132, WHOLE),
    ((2, 64), Tile(8, 512, 4), 0, 132, WHOLE),
)
def test_the_share_is_the_one_whose_schedulers_have_the_least_to_do(
    sums: tuple[int, int], tile: Tile, tiles: int, processors: int, expected: Share
) -> None:
    assert share(*sums, tile, tiles, processors) == expected


@each("n", [1, 9, 27, 64, 144, 147, 576, 1152, 4608, 10**6])
def test_tiles_that_share_leave_few_columns_over(n: int) -> None:
    most = Tile(8, 512, 4)
    tile = certified_tile(64, n, 1, 132, most, chunks=2048)
    covered = -(-n // tile.bn) * tile.bn
    assert covered <= -(-n // 32) * 32 * 9 / 8
    # A thread has as many sums as in the largest tile.
    assert tile.bm * tile.bn == 1024 * tile.warps


def test_sums_of_chunks_in_float64_have_room() -> None:
    """A thread has 16 sums of float64, where it has 32 of float32."""
    place, most = (64, 576, 1, 132), Tile(8, 512, 4)
    assert certified_tile(*place, most, chunks=2048) == Tile(8, 128, 1)
    assert certified_tile(*place, most, chunks=2048, doubles=True) == Tile(8, 128, 2)
    large = (4096, 4096, 1, 132)
    assert certified_tile(*large, most, chunks=64) == most
    assert certified_tile(*large, most, chunks=64, doubles=True) == Tile(8, 512, 8)
    assert certified_tile(*large, most, doubles=True) == most


LAUNCHES = {
    3: "e6m9 e6m9_chunk64 e5m10 bf16_chunk64 e4m3_sat",
    2: "e8m22 e6m9:stochastic fixed16_f8",
    1: "fixed16_f8:stochastic",
}


@each("launches, accumulators", LAUNCHES.items())
def test_a_product_starts_at_most_three_kernels(launches: int, accumulators: str) -> None:
    for text in accumulators.split():
        assert plan(shape(m=4096, n=4096, k=64), as_accumulator(text), 132).launches == launches


_FORMATS = (
    "e6m9", "e5m10", "bf16", "fp32", "e6m12", "e4m3", "e4m3_sat", "e6m9_nosub", "e8m22", "e5m0",
    "fixed16_f8", "fixed8_f4_wrap",
)  # fmt: skip


def test_tiers_share_two_kernels_at_most() -> None:
    """Each tier has one kernel, and the second kernel's tiles lie inside the first kernel's."""
    for fmt, rounding in itertools.product(_FORMATS, ROUNDINGS):
        for chunk in (None, 64):
            acc = Accumulator(fmt, rounding, chunk=chunk)
            kinds = triton_tiers.tiers(acc.to_ints())
            found = triton_tiers.groups(kinds)
            assert len(found) <= 2
            assert tuple(itertools.chain(*found)) == kinds
            needs = triton_tiles.beside(acc.to_ints())
            most = [triton_tiles.largest_tile(kinds, needs, False) for kinds in found]
            for m, n in ((4096, 4096), (16, 144), (1, 9)):
                tiles = triton_tiles.certified_tiles(m, n, 1, 132, most, 2048, found)
                for first, second in itertools.pairwise(tiles):
                    assert first.bm % second.bm == first.bn % second.bn == 0


@rows(
    "name, left, right, kernel",
    ("e6m9", E5M2, E5M2, "fused"), ("e6m11", E5M2, E5M2, "split"),
    ("e5m9", Range(3, -30, 2), Range(3, -30, 2), "floor"), ("e5m10", E4M3, E4M3, "half"),
    ("bf16", E5M2, E5M2, "brain"), ("fp32", E5M2, E5M2, "plain"),
    ("e4m3_sat", E4M3, E4M3, "range"), ("e8m22", E4M3, E4M3, "fused64"),
    ("e6m9", Range(14, -28, 2), Range(14, -28, 2), "nearest64"),
    ("e6m9", FLOAT32, FLOAT32, "exact"), ("e6m9:stochastic", E5M2, E5M2, "stochastic"),
    ("e6m9:stochastic:philox", E5M2, E5M2, "stochastic, philox"),
    ("e6m9:toward_negative", E5M2, E5M2, "toward_positive"),
    ("fixed16_f8:nearest_away", E5M2, E5M2, "fixed, nearest_away"),
    ("fixed16_f8_wrap", Range(3, -2, 4), Range(3, -2, 4), "fixed, wraps"),
)  # fmt: skip
def test_the_tier_is_the_first_whose_certificate_holds(name, left, right, kernel):
    assert plan(shape(left=left, right=right), as_accumulator(name), 132).kernel == kernel


def test_sums_that_were_not_counted_are_refused() -> None:
    for name in ("native_chunk64:outer=e6m9", "e6m9:order=pairwise"):
        with pytest.raises(NotImplementedError, match=r"triton: .* are not counted"):
            plan(shape(), as_accumulator(name), 132)


def test_neither_triton_nor_the_extension_is_needed() -> None:
    absent = "import sys; sys.modules['triton'] = sys.modules['lpkernels._C'] = None"
    asked = "from bench.predict.triton_plans import plan; from bench.predict.costs import costs"
    subprocess.run([sys.executable, "-c", f"{absent}; {asked}"], check=True)


@pytest.mark.parametrize(
    ("name", "operand", "wider", "kernel"),
    [
        ("e5m10", Range(11, -24, 16), Range(12, -24, 16), "half"),
        ("bf16", Range(8, -133, 128), Range(9, -133, 128), "brain"),
    ],
)
def test_operands_of_half_precision_fill_their_format(name, operand, wider, kernel):
    for left, found in ((operand, True), (wider, False)):
        call = shape(left=left, right=operand)
        assert (plan(call, as_accumulator(name), 132).kernel == kernel) == found
