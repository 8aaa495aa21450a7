"""One product as its launches get it: a single value in place of many arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.backends.triton._launch import EXACT
from lpkernels.backends.triton._layout import Operand, Sums
from lpkernels.backends.triton._roundings import Constants, Roundings
from lpkernels.backends.triton._tile import Outputs, Side

#: The arguments of every kernel of sums that vary from call to call without another kernel.
VARYING = ["left_step", "right_step", "role", "M", "N", "K", "chunk", "chunks"]

#: A chunk past the end of every sum that a kernel can hold, and a number of 32 bits.
LONGEST = 2**31 - 1


class TileTiers(NamedTuple):
    """The tiers of the certified kernels that summed the tiles of the outputs.

    values: int32 for every piece of every tile, the pieces of a tile side by side: 1 + the tier
    that summed it, or 0 where none did. Tiles are numbered as `tile_corner` does and have this
    size, with powers of two as sides; where programs share the chunks of a tile, each of them makes
    a piece.
    """

    values: Tensor
    tile: tuple[int, int]
    pieces: int


class Problem(NamedTuple):
    """One product: its operands, its outputs, and the rounding of its sums."""

    left: Operand
    right: Operand
    sums: Sums
    #: The two results of `roundings_of`.
    roundings: Roundings
    constants: Constants
    #: The integers of the Accumulator.
    acc: tuple[int, ...]
    #: The tensor of `seed_on`, and the role of the call.
    seed: Tensor
    role: int

    def programs(self, bm: int, bn: int) -> int:
        """How many tiles of bm x bn cover the outputs of all matrices."""
        matrices, m, n, _ = self.sums.sizes
        return int(matrices * triton.cdiv(m, bm) * triton.cdiv(n, bn))

    def arguments(self) -> tuple[Any, ...]:
        """The first arguments of every kernel of sums: `Side` and step of both operands, the
        `Outputs`, the seed and its role, and M, N and K."""
        left, right, sums = self.left, self.right, self.sums
        scales = (None, None) if sums.scaling is None else sums.scaling[:2]
        return (
            Side(*left[:4]), left.step, Side(*right[:4]), right.step,
            Outputs(*sums[:8], sums.bias, sums.positions, sums.starts, sums.initial, *scales),
            self.seed, self.role, *sums.sizes[1:],
        )  # fmt: skip

    def options(self, bm: int, bn: int, warps: int) -> dict[str, Any]:
        """The constants and options of every kernel of sums, for tiles of bm x bn outputs."""
        return {
            "R": self.roundings, "SWAPPED": self.sums.swapped, "LEFT_ABSENT": self.left.absent,
            "RIGHT_ABSENT": self.right.absent, "BM": bm, "BN": bn, "num_warps": warps, **EXACT,
        }  # fmt: skip

    def chunks(self) -> tuple[int, int]:
        """The length of a chunk (at most K, if steps are positions) and the number of chunks; (0,
        1) if all steps are one sum."""
        chunk, k, starts = self.acc[InAccumulator.CHUNK], self.sums.sizes[3], self.sums.starts
        if not self.roundings.chunked:
            return 0, 1
        if starts is not None:
            return min(chunk, LONGEST), starts.numel() - 1
        chunk = min(chunk, k)
        return chunk, -(-k // chunk) if k else 0
