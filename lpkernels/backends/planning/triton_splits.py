"""The sharing of a sum's chunks among programs of the Triton backend: pure functions decide it,
here and nowhere else.

Sums of chunks do not depend on each other. Where tiles are too few to fill a GPU, several programs
make the chunks of one tile and leave their sums in memory; another kernel adds these in order.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from lpkernels.backends.planning.triton_tiles import Tile

#: Bytes that sums of chunks take in memory at a time. Beyond them, sums are made and added in
#: several passes.
MOST = 256 << 20
_FLOAT = 4
# A processor starts instructions of this many warps at once, and has room for four times as many.
_WARPS, _ROOM = 4, 16
# The cost of a chunk's end, in steps of its sum: if the sum is added in registers, and if it is
# written, read and added.
_ADDED, _WRITTEN = 4, 16


class Share(NamedTuple):
    """splits: programs that share the chunks of a tile.

    capacity: chunks whose sums they leave in memory before these are added; 0: one program makes
    all chunks and adds them in registers.
    """

    splits: int
    capacity: int

    def passes(self, chunks: int) -> int:
        """How often sums are made and added."""
        return -(-chunks // self.capacity) if self.capacity else 1

    @property
    def per_program(self) -> int:
        """How many chunks a program makes in a pass, at most."""
        return -(-self.capacity // self.splits)

    @property
    def pieces(self) -> int:
        """How many programs make chunks of one tile. The last pass may have fewer."""
        return -(-self.capacity // self.per_program) if self.capacity else 1

    def longest(self, chunks: int) -> int:
        """How many chunks the busiest program of a tile makes in all passes."""
        if not self.capacity:
            return chunks
        whole, rest = divmod(chunks, self.capacity)
        return whole * self.per_program + min(rest, self.per_program)


#: One program for each tile.
WHOLE = Share(1, 0)


@functools.lru_cache(maxsize=4096)
def share(chunks: int, chunk: int, tile: Tile, tiles: int, processors: int) -> Share:
    """How programs share so many tiles' sums of `chunks` chunks, `chunk` steps each at most.

    The choice is the share with the least work for the busiest of a processor's schedulers, or
    `WHOLE` if no other share saves more time than its writing and reading takes.
    """
    if chunks < 2 or tiles == 0:
        return WHOLE
    room = MOST // (_FLOAT * tile.bm * tile.bn * tiles)
    if room < 2:
        return WHOLE
    passes = -(-chunks // room)
    capacity = -(-chunks // passes)

    def busiest(splits: int) -> int:
        return -(-tiles * splits * tile.warps // (_WARPS * processors)) * -(-capacity // splits)

    most = min(capacity, -(-_ROOM * processors // (tile.warps * tiles)))
    splits = min(range(1, most + 1), key=busiest)
    alone = -(-tiles * tile.warps // (_WARPS * processors)) * chunks
    saves = busiest(splits) * passes * (chunk + _WRITTEN) < alone * (chunk + _ADDED)
    return Share(splits, capacity) if splits > 1 and saves else WHOLE


def scratch(share: Share, tile: Tile, tiles: int) -> int:
    """Bytes that the sums of chunks take in memory."""
    return _FLOAT * tile.bm * tile.bn * tiles * share.capacity
