"""The planner of the triton backend, without Triton: tiers that share a kernel, tiles, shares of
chunks."""

import itertools
import subprocess
import sys

import pytest

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning import triton_tiers, triton_tiles
from lpkernels.backends.planning.triton_splits import MOST, WHOLE, Share, scratch, share
from lpkernels.backends.planning.triton_tiles import Tile
from lpkernels.rounding import ROUNDINGS
from tests.backends.planned import planned


@pytest.mark.parametrize(
    "sizes, tile",
    [
    ((4096, 4096, 1, 132), (4, 256, 4)), ((4096, 20, 1, 132), (8, 32, 4)),
    # Two programs for each processor: columns are halved, or rows where they are few.
    ((1, 4096, 1, 16), (1, 128, 4)), ((1, 4096, 1, 32), (1, 64, 2)),
    ((4, 256, 1, 2), (2, 128, 4)), ((1, 4096, 1, 132), (1, 32, 1)),
    ],
)  # fmt: skip
def test_tiles_of_the_exact_kernel(sizes: tuple[int, ...], tile: tuple[int, ...]) -> None:
    assert triton_tiles.exact_tile(*sizes) == tile


@pytest.mark.parametrize(
    "text, sizes, tiles, shared",
    [
    # A large product has the largest tiles, and tiles of float64 have twice as many warps.
    ("e6m9_chunk64", (4096, 4096, 4096), [(8, 512, 4), (8, 512, 8)], WHOLE),
    # Few outputs have smaller tiles, and programs share the chunks of each.
    ("e6m9", (16, 144, 131072), [(4, 128, 1)] * 2, WHOLE),
    ("e6m9_chunk64", (16, 144, 131072), [(16, 32, 1)] * 2, Share(103, 2048)),
    # In one pass the sums of 3136 chunks would take 490 MiB.
    ("e6m9_chunk64", (64, 576, 200704), [(8, 128, 1), (8, 128, 2)], Share(13, 1568)),
    # There is one chunk, and below chunks so short that memory costs more than programs save.
    ("e6m9_chunk64", (16, 144, 64), [(4, 128, 1)] * 2, WHOLE),
    ("e6m9_chunk1", (1100, 512, 4096), [(8, 512, 4), (8, 512, 8)], WHOLE),
    ("e6m9_chunk64", (1100, 512, 4096), [(8, 512, 4), (8, 512, 8)], Share(4, 64)),
    ],
)  # fmt: skip
def test_plans_of_products(text, sizes, tiles, shared):
    assert planned(text, *sizes) == ([Tile(*tile) for tile in tiles], shared)


def test_passes_are_as_many_as_memory_asks_for():
    tiles, shared = planned("e6m9_chunk64", 64, 576, 200704)
    assert shared.passes(3136) == 2
    assert MOST / 2 < scratch(shared, tiles[0], 8 * 5) <= MOST


@pytest.mark.parametrize("chunks", [2, 3, 7, 64, 2048])
@pytest.mark.parametrize("tiles", [1, 5, 66, 131, 264])
@pytest.mark.parametrize("warps", [1, 4])
def test_a_share_is_whole(chunks: int, tiles: int, warps: int) -> None:
    tile = Tile(8, 128 * warps, warps)
    for processors in (1, 16, 132):
        found = share(chunks, 64, tile, tiles, processors)
        assert 1 <= found.splits <= max(found.capacity, 1)
        assert scratch(found, tile, tiles) <= MOST
        # The chunks of the busiest program, times the number of programs, cover every chunk.
        assert found.longest(chunks) * found.splits >= chunks
        assert found.longest(chunks) <= chunks


@pytest.mark.parametrize(
    "sums, tile, tiles, processors, expected",
    [
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
    ],
)  # fmt: skip
def test_the_share_is_the_one_whose_schedulers_have_the_least_to_do(
    sums: tuple[int, int], tile: Tile, tiles: int, processors: int, expected: Share
) -> None:
    assert share(*sums, tile, tiles, processors) == expected


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
            most = [triton_tiles.largest_tile(kinds, acc.to_ints(), False) for kinds in found]
            for m, n in ((4096, 4096), (16, 144), (1, 9)):
                tiles = triton_tiles.certified_tiles(m, n, 1, 132, most, 2048, found)
                for first, second in itertools.pairwise(tiles):
                    assert first.bm % second.bm == first.bn % second.bn == 0


def test_neither_triton_nor_the_extension_is_needed() -> None:
    absent = "import sys; sys.modules['triton'] = sys.modules['lpkernels._C'] = None"
    asked = "from lpkernels.backends.planning import triton_splits, triton_tiers, triton_tiles"
    subprocess.run([sys.executable, "-c", f"{absent}; {asked}"], check=True)
