"""The certified kernels, compiled as for large products of the accumulators that they serve."""

from typing import Any, NamedTuple

import torch

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.planning.triton_tiers import single_outer
from lpkernels.backends.planning.triton_tiles import Tile, largest_tile, outer_tile
from lpkernels.backends.triton._roundings import Roundings, roundings_of
from lpkernels.backends.triton._tile import Outputs, Side
from lpkernels.backends.triton.certified import stages
from lpkernels.backends.triton.certified.certificate import STRIDE
from lpkernels.backends.triton.exact.sequential import exact_kernel

#: All tiers by the length of their loops, where they share a kernel.
_LENGTHS = (
    _tiers.HALF, _tiers.BRAIN, _tiers.PLAIN, _tiers.FUSED, _tiers.SPLIT, _tiers.FUSED64,
    _tiers.FLOOR, _tiers.RANGE, _tiers.NEAREST, _tiers.DIRECTED, _tiers.FIXED, _tiers.CUT,
)  # fmt: skip


class CertifiedCase(NamedTuple):
    """One tier in one variant of `certified_kernel`, with all the tiers that share the kernel."""

    name: str
    tier: int
    acc: Accumulator
    #: Instructions a product and thread in the main loop on sm_90, at most.
    most: float
    #: Floating-point additions, multiplications and multiply-adds among these instructions,
    #: exactly.
    arithmetic: float
    #: The right operand has absent taps and tables, as an image has.
    image: bool = False
    #: Programs share chunks and leave their sums in memory.
    shared: bool = False

    @property
    def tiers(self) -> tuple[int, ...]:
        """The tiers of the kernel; of a tier that NVIDIA's GPUs need not have, it alone."""
        groups = _tiers.groups(_tiers.tiers(self.acc.to_ints()))
        return next((group for group in groups if self.tier in group), (self.tier,))

    @property
    def place(self) -> tuple[int, int]:
        """The place of the tier's main loop among the kernel's main loops, by their length."""
        return sorted(self.tiers, key=_LENGTHS.index).index(self.tier), len(self.tiers)

    @property
    def tile(self) -> Tile:
        """The tile of a large product on a GPU."""
        return largest_tile(self.tiers, self.acc.to_ints(), swapped=False)

    @property
    def roundings(self) -> Roundings:
        return roundings_of(self.acc.to_ints())[0]

    @property
    def products(self) -> float:
        """Products of one thread in one pass of the main loop."""
        return products_of(self.tile)

    def arguments(self, tile: Tile | None = None) -> dict[str, Any]:
        """Arguments for `launches.compiled`; tile stands in place of the large one."""
        roundings, constants = roundings_of(self.acc.to_ints())
        tile = tile or self.tile
        table = torch.int64 if self.image else None
        left, right = (
            Side(torch.float32, torch.int64, None, None),
            Side(torch.float32, torch.int64, table, table),
        )
        return {
            "left": left, "left_step": 1024, "left_facts": torch.int32,
            "right": right, "right_step": 1024, "right_facts": torch.int32,
            "out": Outputs(torch.float32, *[torch.int64] * 7, None, None, None),
            "before": None, "made": torch.int32, "pieces": 1, "again": 0,
            "seed_ptr": torch.int64, "role": 0,
            "M": 960, "N": 960, "K": 960, "chunk": 64, "begin": 0, "end": 15, "share": 15,
            "parts": torch.float32 if self.shared else None, "part_step": 1 << 20, "C": constants,
            "R": roundings, "TIERS": self.tiers,
            "SINGLE": roundings.chunked and single_outer(self.acc.to_ints()), "SWAPPED": False,
            "LEFT_ABSENT": False, "RIGHT_ABSENT": self.image, "BM": tile.bm, "BN": tile.bn,
            "BEFORE_M": 1, "BEFORE_N": 1, "num_warps": tile.warps,
        }  # fmt: skip

    def last(self, tile: Tile | None = None) -> dict[str, Any]:
        """The arguments of the last kernel, which finishes what this one made where programs share
        chunks. tile: its tile; by default the one that adds the sums of chunks."""
        arguments = self.arguments(tile or outer_tile(self.tile))
        arguments |= {"final": 1, "chunks": 15, "FINISHES": self.shared}
        arguments |= {"MADE_M": self.tile.bm, "MADE_N": self.tile.bn}
        names = {parameter.name for parameter in exact_kernel.params} | {"num_warps"}
        return {name: value for name, value in arguments.items() if name in names}

    @property
    def options(self) -> dict[str, int]:
        return stages.options_of(self.tiers, self.roundings, self.image, self.shared)


def products_of(tile: Tile) -> float:
    """Products of one thread in one pass of a main loop with this tile."""
    return tile.bm * tile.bn * STRIDE.value / (32 * tile.warps)


CERTIFIED_CASES = [
    CertifiedCase(name, tier, accumulator(acc), most, least, "image" in name, "shared" in name)
    for name, tier, acc, most, least in (
        ("half", _tiers.HALF, "e5m10", 0.8, 0.5),
        ("brain", _tiers.BRAIN, "bf16", 0.8, 0.5),
        ("half, chunks", _tiers.HALF, "e5m10_chunk64", 1.2, 0.5),
        ("half, image", _tiers.HALF, "e5m10", 1.5, 0.5),
        ("plain", _tiers.PLAIN, "fp32", 1.4, 1),
        ("fused", _tiers.FUSED, "e6m9", 3.6, 3),
        ("fused, chunks", _tiers.FUSED, "e6m9_chunk64", 3.8, 3),
        ("fused, chunks, outer64", _tiers.FUSED, "e6m9_chunk64:outer=fp32", 3.8, 3),
        ("fused, rounded products", _tiers.FUSED, "e6m9:product=e4m3", 10.0, 6),
        ("fused, image", _tiers.FUSED, "e6m9", 4.0, 3),
        ("fused, chunks, image", _tiers.FUSED, "e6m9_chunk64", 4.3, 3),
        ("fused, chunks, shared", _tiers.FUSED, "e6m9_chunk64", 3.8, 3),
        ("fused, chunks, image, shared", _tiers.FUSED, "e6m9_chunk64", 4.3, 3),
        ("split", _tiers.SPLIT, "e6m12", 4.6, 4),
        ("floor", _tiers.FLOOR, "e6m9", 6.5, 3),
        ("floor, chunks", _tiers.FLOOR, "e6m9_chunk64", 6.5, 3),
        ("floor, image", _tiers.FLOOR, "e6m9", 8.0, 3),
        ("range", _tiers.RANGE, "e4m3_sat", 9.0, 3),
        ("stochastic", _tiers.DIRECTED, "e6m9:stochastic", 9.0, 1.38),
        ("stochastic, philox", _tiers.DIRECTED, "e6m9:stochastic:philox", 16.0, 1.63),
        ("toward_zero", _tiers.DIRECTED, "e6m9:toward_zero", 2.8, 1.32),
        ("toward_positive", _tiers.DIRECTED, "e6m9:toward_positive", 6.0, 1.32),
        ("to_odd", _tiers.DIRECTED, "e6m9:to_odd", 7.0, 2.32),
        ("fixed", _tiers.FIXED, "fixed16_f8", 3.6, 1),
        ("fixed, wraps", _tiers.FIXED, "fixed16_f8_wrap", 2.6, 1),
        ("fused64", _tiers.FUSED64, "e6m9", 5.0, 3),
        ("fused64, chunks", _tiers.FUSED64, "e6m9_chunk64", 5.0, 3),
        ("nearest64", _tiers.NEAREST, "e6m9", 9.5, 3),
        ("nearest64, chunks", _tiers.NEAREST, "e6m9_chunk64", 10.0, 3),
        ("nearest_away", _tiers.DIRECTED, "e6m9:nearest_away", 4.0, 1.32),
        ("fixed, nearest_away", _tiers.FIXED, "fixed16_f8:nearest_away", 8.0, 3),
        ("fixed, wraps, toward_zero", _tiers.FIXED, "fixed16_f8_wrap:toward_zero", 7.0, 2),
        ("cut64, stochastic", _tiers.CUT, "e6m9:stochastic", 11.0, 1),
        ("cut64, toward_zero", _tiers.CUT, "e6m9:toward_zero", 4.3, 1),
        ("cut64, nearest_away", _tiers.CUT, "e6m9:nearest_away", 5.3, 1),
    )
]
