"""Blocks aligned by their operands on the CPU: large products against the reference, to the bit, on
every instruction set, and the tiers that make them. test_shared.py has the small ones."""

from dataclasses import replace

import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.backends import cpu
from tests.backends.cpu_products import assert_matmul, tier_of
from tests.backends.crossed import NO_FUSED, ProductCall, assert_call
from tests.cases import accumulators_named
from tests.support.processor import Isas
from tests.support.products import ODD_BLOCKS

INF = float("inf")


#: One unit of every arithmetic.
CHOSEN = accumulators_named("""
    v100_fp16 a100_tf32 h100_bf16 h100_fp16_fp16 ada_e5m2 ada_e4m3_fp16 h100_e4m3 h100_fp8_mma
    h100_fp8_mma_fp16
""")


@pytest.mark.parametrize("acc", [*CHOSEN, *ODD_BLOCKS], ids=str)
def test_several_panels_and_blocks_of_k(acc: Accumulator, isas: Isas) -> None:
    # The runs of the last are longer than the driver's blocks of k.
    length = 1600 if acc == ODD_BLOCKS[-1] else 300
    for number, kind in enumerate(("short", "special", "rare", "cancelling"), start=1):
        call = ProductCall(acc, (3, length, 83), kind, kind, "dense", "initial", NO_FUSED, number)
        assert_call(cpu.BACKEND, call, ways=isas)


@pytest.mark.parametrize(
    "name, size",
    [("e2m4_b-117:block=4:aligned_bits=13:operands=e2m1", 0.0),
     ("e8m2_b142:toward_zero:block=2:aligned_bits=13:operands=e2m2_b64", -63.0)],
)  # fmt: skip
def test_sums_at_the_ends_of_float32(name: str, size: float, isas: Isas) -> None:
    """The least exponent of the sums is above float32's room for it, or below its own."""
    draw = torch.Generator().manual_seed(7)
    a, b = (
        torch.randint(-7, 8, shape, generator=draw) * 2.0 ** (size - 2)
        for shape in ((5, 40), (40, 33))
    )
    assert_matmul(isas, a, b, accumulator(name))


E4M3 = replace(accumulator("h100_e4m3"), block=4)


@pytest.mark.parametrize(
    "acc, tier",
    [(accumulator("h100_e4m3"), "certified"), (accumulator("a100_fp16"), "certified"),
     (accumulator("h100_fp16_fp16"), "certified"), (replace(E4M3, rounding="to_odd"), "double"),
     # A block of zeros would cut the running sum that an absent block leaves alone.
     (replace(E4M3, aligned_bits=12), "double")],
    ids=str,
)  # fmt: skip
def test_operands_choose_the_tier(acc: Accumulator, tier: str, isas: Isas) -> None:
    draw, (left, right) = torch.Generator().manual_seed(3), acc.operands
    a, b = (
        lp.quantize(torch.randn(shape, generator=draw), fmt)
        for shape, fmt in (((8, 64), left), ((64, 96), right))
    )
    for isa in isas:
        assert tier_of(a, b, acc) == ("double" if isa == "scalar" else tier)


def test_a_sum_beyond_the_format_is_made_again(isas: Isas) -> None:
    a, b = torch.full((4, 64), 100.0), torch.ones(64, 48)
    b[:, 20] = 60.0
    b[32:, 20] = -60.0
    sums = assert_matmul(isas, a, b, accumulator("h100_fp16_fp16"))
    assert sums[0, 20] == INF and sums[0, 0] == 6400
