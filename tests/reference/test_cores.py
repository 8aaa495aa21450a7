"""Blocks that are added exactly, and the adders of AMD's matrix cores: worked cases."""

import math
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.reference import exact, twin
from lpkernels.rounding import ROUNDINGS
from tests.compare import assert_bit_equal
from tests.support.products import CORES, KINDS, UNIT_ACCUMULATORS, operand

INF, NAN = math.inf, math.nan
WAYS = pytest.mark.parametrize("way", [exact, twin], ids=["exact", "twin"])


def total(acc: Accumulator, products: list, c: float, way: ModuleType = exact) -> float:
    a, b = (np.array([[p[side] for p in products]], np.float32) for side in (0, 1))
    return way.matmul(a, b.T, None, acc, initial=np.float32([[c]]))[0, 0].item()


ONE = [(1, 1), (2**-12, 2**-12), (-1, 1), (2**-12, 2**-12)]
TIES = [(1, 1), (2**-12, 2**-12), (2**-13, 2**-12), (2**-13, 2**-12)]
FAR = [(2**-64, 2**-63), (-(2**-64), 2**-61)]
APART = [(128, 128), (0, 0), (-128, 128)]
LOST = (-(2**-7), 2**-5)
HUGE = [(2**127, 2), (-(2**127), 2)]


@WAYS
@pytest.mark.parametrize("unit, products, c, d", [
    ("mi100_fp16", ONE, 2**-40, 2**-23 + 2**-40), ("mi250_fp16", ONE, 0, 2**-24),
    ("mi100_bf16", ONE, 0, 2**-24),
    ("mi100_fp16", TIES, 0, 1 + 2**-23), ("mi250_fp16", TIES, 0, 1), ("mi300_fp16", TIES, 0, 1),
    # CDNA2 flushes what CDNA3 keeps.
    ("mi250_bf16_1k", FAR, 2**-126, -(2**-126)), ("mi300_bf16", FAR, 2**-126, -(2**-127)),
    # A negative c, however small, takes a place away; far below products of fp8 it is lost.
    ("mi300_fp16", [(1, 1)], -(2**-100), 1 - 2**-24), ("mi300_fp16", [(-1, 1)], 2**-100, -1),
    ("mi300_e4m3fnuz", [(1, 1)], -(2**-100), 1),
    # Positions of two parities are added apart.
    ("mi300_e4m3fnuz", [*APART, LOST], 0, -(2**-10)),
    ("mi300_e4m3fnuz", [*APART, (0, 0), LOST], 0, 0),
    ("mi300_bf16", HUGE, 0, NAN), ("mi100_bf16", HUGE, 1, 1), ("mi250_bf16", HUGE, 0, NAN),
    # An MI300's own: the sum is floored once more.
    ("mi300_e4m3fnuz", [(10, 1), (2**-7, 1)], 2**25 - 8, 2**25),
    # RDNA3's complement without its carry, of zeros too: those behind an odd last position.
    ("rdna3_fp16", [(3, 8), (8, 4)], -1, 55 + 2**-18),
    ("rdna3_fp16", [(1, 1), (-1, 1)], 1, 1 - 2**-24),
    ("rdna3_fp16", [(1, 1)], -1, 2**-23), ("rdna3_fp16", [(1, 1), (-0.0, 1)], -1, 2**-24),
    ("rdna3_bf16", [(2**-127, 2**100), (0, 0)], 0, 0),
    ("rdna3_bf16", [(2**-126, 1 - 2**-8), (0, 1)], 0, 0),
    # RDNA4: pairs at places of their own, a c below every place is lost, and so is -c.
    ("rdna4_fp16", [(1, 1), (-(2**-12), 2**-13), (-1, 1), (0, 0)], 0, -(2**-24)),
    ("rdna4_fp16", [(1, 1)], -(2**-30), 1),
    ("mi300_fp16", [(INF, 1), (1, 1)], 0, INF), ("rdna3_fp16", [(INF, 1)], -INF, NAN),
    ("rdna4_bf16", [(INF, 0)], 0, NAN), ("mi100_fp16", [(-INF, 1)], 1, -INF),
    ("mi300_e5m2fnuz", [(NAN, 1)], 0, NAN), ("mi250_fp16", [(2**-20, INF)], 0, NAN),
])  # fmt: skip
def test_the_rule_of_each_unit(unit: str, products: list, c: float, d: float, way) -> None:
    got = total(accumulator(unit), products, c, way)
    assert got == d or (math.isnan(got) and math.isnan(d))


def test_a_wave_of_32_swaps_the_two_middle_steps() -> None:
    # 1 meets 2^-25 when it has come before 2^-24 does: the third quarter is the second step.
    products = [(0, 0)] * 16
    products[0], products[4], products[8] = (1, 1), (-1, 1), (2**-12, 2**-13)
    late, early = accumulator("rdna4_fp16_wave64"), accumulator("rdna4_fp16")
    assert total(late, products, 0) == 2**-25 and total(early, products, 0) == 0


CORE_UNITS = [acc for acc in UNIT_ACCUMULATORS.values() if acc.has_core]


@pytest.mark.parametrize("acc", CORE_UNITS, ids=str)
def test_zeros_behind_the_end_change_nothing(acc: Accumulator) -> None:
    rng = np.random.default_rng(1)
    a, b = operand("ties", (2, 5), rng), operand("ties", (5, 2), rng)
    start = operand("ties", (2, 2), rng)
    longer = np.pad(a, ((0, 0), (0, 17))), np.pad(b, ((0, 17), (0, 0)))
    got = exact.matmul(*longer, None, acc, initial=start)
    assert_bit_equal(got, exact.matmul(a, b, None, acc, initial=start))


@WAYS
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_exact_zeros_have_the_signs_of_other_sums_but_with_operands(rounding: str, way) -> None:
    acc = Accumulator("fp32", rounding, block=2)
    below = rounding == "toward_negative"
    for products, c, negative in (
        ([(-0.0, 1), (-0.0, 1)], -0.0, True), ([(-0.0, 1)], -0.0, True),
        ([(-0.0, 1), (0.0, 1)], -0.0, below), ([(1, 1), (-1, 1)], 0.0, below),
    ):  # fmt: skip
        assert math.copysign(1, total(acc, products, c, way)) == (-1 if negative else 1)
        assert math.copysign(1, total(replace(acc, operands="fp16"), products, c, way)) == 1


@pytest.mark.parametrize("acc", [*CORES, *CORE_UNITS], ids=str)
def test_the_twin_has_the_same_bits(acc: Accumulator) -> None:
    for seed, kind in enumerate(KINDS):
        rng = np.random.default_rng(seed)
        a, b, start = (operand(kind, shape, rng) for shape in ((1, 21), (21, 2), (1, 2)))
        want, got = (way.matmul(a, b, None, acc, seed=5, initial=start) for way in (exact, twin))
        assert_bit_equal(got, want, kind)
