"""Machine code of the certified kernels, compiled without a GPU.

Small tiles show that nothing spills and nothing is contracted. The numbers of instructions have
ceilings for the tiles of large products, whose compilation takes minutes: pytest -m slow.
"""

import pytest
import torch

from lpkernels.arithmetic import UNITS, Accumulator, as_quantizer
from lpkernels.backends import Fused
from lpkernels.backends.planning.triton_tiles import Tile
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.certified.tiles import certified_kernel
from lpkernels.backends.triton.exact.sequential import AHEAD, exact_kernel, options_of
from tests.backends import by_hand
from tests.backends.triton.certified_cases import CERTIFIED_CASES, CertifiedCase, products_of
from tests.backends.triton.launches import COUNTED, compiled_launch, recorded
from tests.backends.triton.machine_code import counts, innermost, machine_code, main_loop
from tests.cases import ConvCase
from tests.support.products import convolve, tensors_of

COUNTS = pytest.mark.skipif(not COUNTED, reason="the counts are those of Triton 3.7")
NAMED = {case.name: case for case in CERTIFIED_CASES}
SMALL = Tile(4, 64, 1)
#: The first case of each combination of tiers that share a kernel.
FAMILIES = {case.tiers: case for case in reversed(CERTIFIED_CASES)}.values()


@COUNTS
@pytest.mark.parametrize("case", FAMILIES, ids=[case.name for case in FAMILIES])
def test_a_small_tile_spills_and_contracts_nothing(case: CertifiedCase) -> None:
    loop = main_loop(certified_kernel, options=case.options, **case.arguments(SMALL))
    assert loop.stack == 0
    assert loop.arithmetic / products_of(SMALL) >= case.arithmetic


@pytest.mark.slow
@COUNTS
@pytest.mark.parametrize("name", NAMED)
def test_main_loop(name: str) -> None:
    case = NAMED[name]
    loop = main_loop(certified_kernel, place=case.place, options=case.options, **case.arguments())
    assert loop.stack == 0
    assert loop.instructions / case.products <= case.most
    # Nothing was contracted.
    assert loop.arithmetic / case.products == pytest.approx(case.arithmetic, abs=0.02)


@pytest.mark.slow
@COUNTS
@pytest.mark.parametrize(
    ("name", "most"), [("fused, chunks", 23.0), ("fused, chunks, outer64", 31.5)]
)
def test_the_loop_that_adds_the_sums_of_chunks(name: str, most: float) -> None:
    case = NAMED[name]._replace(shared=True)
    options = options_of(case.roundings)
    loop = main_loop(exact_kernel, loads=AHEAD.value, options=options, **case.last())
    assert loop.stack == 0
    assert loop.instructions / AHEAD.value <= most
    assert loop.arithmetic / AHEAD.value == 8


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


@pytest.mark.slow
@COUNTS
@pytest.mark.parametrize(
    ("unit", "single", "most"),
    [("h100_e4m3", True, 16.8), ("h100_e4m3", False, 19.0), ("h100_fp16", False, 19.0)],
)
def test_both_loops_of_blocks_with_operands(unit: str, single: bool, most: float) -> None:
    ints = UNITS[unit].accumulator.to_ints()
    with recorded() as made:
        by_hand.matmul(BACKEND, torch.zeros(512, 512), torch.zeros(512, 512), None, ints, None, 0)
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
    ("formats", "outer"), [((), "e6m9"), (("e5m2", "e4m3fn"), "e6m9"), (("bf16", "bf16"), "fp32")]
)
def test_tensor_cores_take_halves(formats: tuple[str, ...], outer: str) -> None:
    acc = Accumulator("fp32", order="native", chunk=64, outer=outer)
    case = ConvCase((8, 32, 24, 24), (128, 32, 3, 3), (1, 1), (1, 1), (1, 1))
    fused = Fused(*(as_quantizer(fmt).to_ints() for fmt in formats))
    with recorded() as made:
        convolve(BACKEND, "fprop", case, tensors_of(case, torch.zeros), acc, fused)
    (launch,) = (launch for launch in made if launch.name == "native_kernel")
    ptx = compiled_launch(launch, "sm_90").asm["ptx"]
    assert ("mma" in ptx) == bool(formats)
    # float32 stays float32.
    assert "tf32" not in ptx
