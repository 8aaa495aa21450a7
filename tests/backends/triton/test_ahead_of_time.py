"""Machine code of the certified kernels, compiled without a GPU.

Small tiles show that nothing spills and nothing is contracted.
"""

from typing import Any, NamedTuple

import pytest
import torch

from lpkernels.arithmetic import Accumulator, accumulator, as_quantizer
from lpkernels.backends import Fused
from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.planning.triton_tiers import single_outer
from lpkernels.backends.planning.triton_tiles import Tile
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton._roundings import Roundings, roundings_of
from lpkernels.backends.triton._tile import Outputs, Side
from lpkernels.backends.triton.certified import stages
from lpkernels.backends.triton.certified.certificate import STRIDE
from lpkernels.backends.triton.certified.tiles import certified_kernel
from tests.backends.triton.launches import COUNTED, compiled_launch, recorded
from tests.backends.triton.machine_code import main_loop
from tests.cases import ConvCase
from tests.support.products import convolve, tensors_of


class CertifiedCase(NamedTuple):
    """One tier in one variant of `certified_kernel`, with all the tiers that share the kernel."""

    name: str
    tier: int
    acc: Accumulator
    #: Floating-point additions, multiplications and multiply-adds a product and thread in the main
    #: loop on sm_90, at least.
    arithmetic: float

    @property
    def tiers(self) -> tuple[int, ...]:
        """The tiers of the kernel; of a tier that NVIDIA's GPUs need not have, it alone."""
        groups = _tiers.groups(_tiers.tiers(self.acc.to_ints()))
        return next((group for group in groups if self.tier in group), (self.tier,))

    @property
    def roundings(self) -> Roundings:
        return roundings_of(self.acc.to_ints())[0]

    def arguments(self, tile: Tile) -> dict[str, Any]:
        """Arguments for `launches.compiled`."""
        roundings, constants = roundings_of(self.acc.to_ints())
        side = Side(torch.float32, torch.int64, None, None)
        return {
            "left": side, "left_step": 1024, "left_facts": torch.int32,
            "right": side, "right_step": 1024, "right_facts": torch.int32,
            "out": Outputs(torch.float32, *[torch.int64] * 7, None, None, None),
            "before": None, "tile_tiers": torch.int32, "pieces": 1, "again": 0,
            "seed_ptr": torch.int64, "role": 0,
            "M": 960, "N": 960, "K": 960, "chunk": 64, "begin": 0, "end": 15, "share": 15,
            "parts": None, "part_step": 1 << 20, "C": constants,
            "R": roundings, "TIERS": self.tiers,
            "SINGLE": roundings.chunked and single_outer(self.acc.to_ints()), "SWAPPED": False,
            "LEFT_ABSENT": False, "RIGHT_ABSENT": False, "BM": tile.bm, "BN": tile.bn,
            "BEFORE_M": 1, "BEFORE_N": 1, "num_warps": tile.warps,
        }  # fmt: skip

    @property
    def options(self) -> dict[str, int]:
        return stages.options_of(self.tiers, self.roundings, False, False)


def products_of(tile: Tile) -> float:
    """Products of one thread in one pass of a main loop with this tile."""
    return tile.bm * tile.bn * STRIDE.value / (32 * tile.warps)


#: One case for each combination of tiers that share a kernel.
CERTIFIED_CASES = [
    CertifiedCase(name, tier, accumulator(acc), least)
    for name, tier, acc, least in (
        ("half", _tiers.HALF, "e5m10", 0.5),
        ("brain", _tiers.BRAIN, "bf16", 0.5),
        ("plain", _tiers.PLAIN, "fp32", 1),
        ("fused", _tiers.FUSED, "e6m9", 3),
        ("split", _tiers.SPLIT, "e6m12", 4),
        ("range", _tiers.RANGE, "e4m3_sat", 3),
        ("stochastic", _tiers.DIRECTED, "e6m9:stochastic", 1.38),
        ("fixed", _tiers.FIXED, "fixed16_f8", 1),
        ("fused64", _tiers.FUSED64, "e6m9", 3),
        ("cut64, stochastic", _tiers.CUT, "e6m9:stochastic", 1),
    )
]


COUNTS = pytest.mark.skipif(not COUNTED, reason="the counts are those of Triton 3.7")
NAMED = {case.name: case for case in CERTIFIED_CASES}
SMALL = Tile(4, 64, 1)


@COUNTS
@pytest.mark.parametrize("case", CERTIFIED_CASES, ids=[case.name for case in CERTIFIED_CASES])
def test_a_small_tile_spills_and_contracts_nothing(case: CertifiedCase) -> None:
    loop = main_loop(certified_kernel, options=case.options, **case.arguments(SMALL))
    assert loop.stack == 0
    assert loop.arithmetic / products_of(SMALL) >= case.arithmetic


def test_contraction_would_undo_the_rounding() -> None:
    split, fused = (
        main_loop(
            certified_kernel, options={"enable_fp_fusion": True} | NAMED[name].options,
            **NAMED[name].arguments(SMALL),
        )
        for name in ("split", "fused")
    )  # fmt: skip
    exact = main_loop(
        certified_kernel, options=NAMED["split"].options, **NAMED["split"].arguments(SMALL)
    )
    assert exact.counts["FADD"] == 2 * exact.counts["FMUL"]
    assert split.counts["FADD"] + split.counts["FMUL"] == 0
    # The splitting by multiply-adds has nothing to contract.
    arithmetic = fused.arithmetic / products_of(SMALL)
    assert arithmetic == pytest.approx(NAMED["fused"].arithmetic, abs=0.02)


@pytest.mark.parametrize(
    ("formats", "outer"), [((), "e6m9"), (("e5m2", "e4m3fn"), "e6m9"), (("bf16", "bf16"), "fp32")]
)
def test_tensor_cores_take_halves(formats: tuple[str, ...], outer: str) -> None:
    acc = Accumulator("fp32", order="native", chunk=64, outer=outer)
    case = ConvCase((8, 32, 24, 24), (128, 32, 3, 3), (1, 1), (1, 1), (1, 1))
    fused = Fused(*(as_quantizer(fmt).to_ints() for fmt in formats))
    with recorded() as launches:
        convolve(BACKEND, "fprop", case, tensors_of(case, torch.zeros), acc, fused)
    (launch,) = (launch for launch in launches if launch.name == "native_kernel")
    ptx = compiled_launch(launch, "sm_90").asm["ptx"]
    assert ("mma" in ptx) == bool(formats)
    # float32 stays float32.
    assert "tf32" not in ptx
