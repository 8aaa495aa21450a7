"""Machine code of the certified kernels, compiled without a GPU.

Small tiles show that nothing spills and nothing is contracted. The numbers of instructions have
ceilings for the tiles of large products, whose compilation takes minutes: pytest -m slow.
"""

import pytest
import torch

from lpkernels.arithmetic import UNITS, Accumulator
from lpkernels.backends.triton import BACKEND, _native
from lpkernels.backends.triton._config import Tile, dot_tile
from lpkernels.backends.triton._native import native_kernel
from lpkernels.backends.triton._parts import AHEAD
from lpkernels.backends.triton._roundings import roundings_of
from lpkernels.backends.triton._tile import Outputs, Side
from lpkernels.backends.triton.certified.tiles import certified_kernel
from lpkernels.backends.triton.exact.sequential import exact_kernel, options_of
from tests.backends.triton.ahead_of_time import COUNTED, compiled
from tests.backends.triton.certified_cases import CERTIFIED_CASES, CertifiedCase, products_of
from tests.backends.triton.launches import compiled_launch, recorded
from tests.backends.triton.machine_code import counts, innermost, machine_code, main_loop

CASES = pytest.mark.parametrize(
    "case", CERTIFIED_CASES, ids=[case.name for case in CERTIFIED_CASES]
)
SPLIT = next(case for case in CERTIFIED_CASES if case.name == "split")
FUSED = next(case for case in CERTIFIED_CASES if case.name == "fused")
SMALL = Tile(4, 64, 1)
#: The first case of each combination of tiers that share a kernel.
FAMILIES = {case.tiers: case for case in reversed(CERTIFIED_CASES)}.values()


@pytest.mark.skipif(not COUNTED, reason="the counts are those of Triton 3.7")
@pytest.mark.parametrize("case", FAMILIES, ids=[case.name for case in FAMILIES])
def test_a_small_tile_spills_and_contracts_nothing(case: CertifiedCase) -> None:
    loop = main_loop(certified_kernel, options=case.options, **case.arguments(SMALL))
    assert loop.stack == 0
    assert loop.arithmetic / products_of(SMALL) >= case.arithmetic


@pytest.mark.slow
@pytest.mark.skipif(not COUNTED, reason="the counts are those of Triton 3.7")
@CASES
def test_main_loop(case: CertifiedCase) -> None:
    loop = main_loop(certified_kernel, place=case.place, options=case.options, **case.arguments())
    assert loop.stack == 0
    assert loop.instructions / case.products <= case.most
    # Nothing was contracted.
    assert loop.arithmetic / case.products == pytest.approx(case.arithmetic, abs=0.02)


@pytest.mark.slow
@pytest.mark.skipif(not COUNTED, reason="the counts are those of Triton 3.7")
@pytest.mark.parametrize(
    ("name", "most"), [("fused, chunks", 23.0), ("fused, chunks, outer64", 31.5)]
)
def test_the_loop_that_adds_the_sums_of_chunks(name: str, most: float) -> None:
    case = next(case for case in CERTIFIED_CASES if case.name == name)._replace(shared=True)
    options = options_of(case.roundings)
    loop = main_loop(exact_kernel, loads=AHEAD.value, options=options, **case.last())
    assert loop.stack == 0
    assert loop.instructions / AHEAD.value <= most
    assert loop.arithmetic / AHEAD.value == 8


def test_contraction_would_undo_the_rounding() -> None:
    fusion = {"enable_fp_fusion": True}
    exact = main_loop(certified_kernel, options=SPLIT.options, **SPLIT.arguments(SMALL))
    fused = main_loop(certified_kernel, options=fusion | SPLIT.options, **SPLIT.arguments(SMALL))
    assert exact.counts["FADD"] == 2 * exact.counts["FMUL"]
    assert fused.counts["FADD"] + fused.counts["FMUL"] == 0
    # The splitting by multiply-adds has nothing to contract.
    there = main_loop(certified_kernel, options=fusion | FUSED.options, **FUSED.arguments(SMALL))
    assert there.arithmetic / products_of(SMALL) == pytest.approx(FUSED.arithmetic, abs=0.02)


@pytest.mark.slow
@pytest.mark.skipif(not COUNTED, reason="the counts are those of Triton 3.7")
@pytest.mark.parametrize(
    ("unit", "single", "most"),
    [("h100_e4m3", True, 16.8), ("h100_e4m3", False, 19.0), ("h100_fp16", False, 19.0)],
)
def test_both_loops_of_blocks_with_operands(unit: str, single: bool, most: float) -> None:
    with recorded() as made:
        BACKEND.matmul(
            torch.zeros(512, 512), torch.zeros(512, 512), None,
            UNITS[unit].accumulator.to_ints(), None, 0,
        )  # fmt: skip
    (launch,) = (x for x in made if x.constant("SINGLE") is single)
    function, _, _ = machine_code(compiled_launch(launch, "sm_90"))
    loops = [counts(loop) for loop in innermost(function)]
    products = launch.told["BM"] * launch.told["BN"] / (32 * launch.told["num_warps"])
    measuring = max(loops, key=lambda loop: loop["VIADDMNMX"])
    adding = max(loops, key=lambda loop: loop["FFMA"] + loop["DFMA"])
    assert (measuring.total() + adding.total()) / products <= most
    # A product is cut by one multiply-add, and nothing was contracted.
    assert adding["FFMA"] + adding["DFMA"] == products
    assert adding["FADD"] + adding["DADD"] == 2 * products


@pytest.mark.parametrize(
    ("kind", "single"), [("FLOAT32", True), ("FLOAT16", True), ("BFLOAT16", False)]
)
def test_tensor_cores_take_halves(kind: str, single: bool) -> None:
    acc = Accumulator("fp32", order="native", chunk=64, outer="e6m9")
    roundings, constants = roundings_of(acc.to_ints())
    values, table = torch.float32, torch.int64
    tile = dot_tile(4096, 4096, 1, 132, halves=kind != "FLOAT32")
    result = compiled(
        native_kernel, num_warps=tile.warps,
        left=Side(values, table, None, None), left_step=4096,
        right=Side(values, table, None, None), right_step=4096,
        out=Outputs(values, *[table] * 7, None, None, None), seed_ptr=table, role=0,
        M=4096, N=4096, K=4096, chunk=64, chunks=64, C=constants, R=roundings,
        SWAPPED=False, LEFT_ABSENT=False, RIGHT_ABSENT=True, TYPE=getattr(_native, kind),
        SINGLE=single, BM=tile.bm, BN=tile.bn, BK=tile.bk,
    )  # fmt: skip
    assert ("mma" in result.asm["ptx"]) == (kind != "FLOAT32")
    # float32 stays float32.
    assert "tf32" not in result.asm["ptx"]
