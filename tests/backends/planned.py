"""What the planner of the triton backend says of a product, as its adapter asks it."""

from lpkernels.arithmetic import accumulator
from lpkernels.backends.planning import triton_tiers, triton_tiles
from lpkernels.backends.planning.triton_splits import Share, share
from lpkernels.backends.planning.triton_tiles import Tile


def planned(text: str, m: int, n: int, k: int) -> tuple[list[Tile], Share]:
    """The tiles of the certified kernels of a product on 132 processors, and the share of the first
    one's chunks."""
    acc = accumulator(text)
    groups = triton_tiers.groups(triton_tiers.tiers(acc.to_ints()))
    most = [triton_tiles.largest_tile(group, acc.to_ints(), False) for group in groups]
    chunks = 1 if acc.chunk is None else -(-k // acc.chunk)
    tiles = triton_tiles.certified_tiles(m, n, 1, 132, most, chunks, groups)
    programs = -(-m // tiles[0].bm) * -(-n // tiles[0].bn)
    return tiles, share(chunks, acc.chunk or 0, tiles[0], programs, 132)
