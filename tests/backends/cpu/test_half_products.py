"""Rounded products in the processor's half precision, against the reference to the bit."""

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Accumulator
from tests.backends.cpu.test_cpu_tiers import TierCase, assert_matches, cpu, values
from tests.cases import ids
from tests.support.processor import choose, isa

__all__ = ["isa"]

pytestmark = pytest.mark.skipif(
    not cpu.BACKEND.available(), reason=f"cpu backend: {cpu.BACKEND.why_not()}"
)

#: Products that never, may and must round: they have fewer bits than five, five, and more.
PRODUCTS = [
    "e5m1",
    "e5m2_sat",
    "e4m3",
    "e4m3fn_sat",
    "e8m3",
    "e5m4",
    "e4m5",
    "e6m5",
    "e5m6",
    "e6m6",
    "e4m7",
]
OPERANDS = [
    ("e4m3fn", "e4m3fn"),
    ("e5m2", "e4m3fn"),
    ("e4m3", "e5m2"),
    ("fp6_e2m3", "e4m3"),
    ("e3m4", "fp6_e3m2"),
    ("e2m5", "e3m2"),
]
CASES = [
    TierCase("e4m3fn", "e4m3fn", Accumulator("e5m10", product="e6m5"), "hardware"),
    TierCase("e4m3fn", "e4m3fn", Accumulator("e5m10", product="e4m3"), "hardware"),
    TierCase("e4m3fn", "e5m2", Accumulator("e5m10", product="e4m3fn_sat", chunk=9), "hardware"),
    TierCase("e5m2", "e4m3fn", Accumulator("e5m10_sat", product="e5m2_sat"), "hardware"),
    TierCase("e4m3fn", "e4m3fn", Accumulator("e5m10", "toward_zero", product="e6m6"), "hardware"),
    TierCase(
        "e4m3fn", "e4m3fn", Accumulator("e5m10", "toward_positive", product="e5m3"), "hardware"
    ),
    # -0 matters where sums round down, and some of these products lie beyond half precision.
    TierCase("e4m3fn", "e4m3fn", Accumulator("e5m10", "toward_negative", product="e4m3"), "double"),
    TierCase("e4m3fn", "e4m3fn", Accumulator("e5m10", product="e3m2_sat"), "certified"),
]


def codes(fmt: str, least: float, below: float) -> Tensor:
    x = torch.tensor(lp.parse_format(fmt).values(), dtype=torch.float32)
    return x[(x.abs() >= least) & (x.abs() < below)]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("operands", OPERANDS, ids="-".join)
def test_every_pair_of_values(operands: tuple[str, str], product: str, isa: str) -> None:
    # The last: products a little finer than some of the formats.
    for least, below in ((0.0, 2.0**9), (0.0, 8.0), (0.0, 1.0), (2.0**-7, 2.0)):
        a, b = codes(operands[0], least, below), codes(operands[1], least, below)
        for mode in ("nearest_even", "toward_negative"):
            acc = Accumulator("e5m10", mode, product=product)
            assert_matches(a[:, None], b[None], acc, f"{mode}, from {least} to {below}")


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_sums_match_reference(case: TierCase, isa: str) -> None:
    generator = torch.Generator().manual_seed(1)
    for m, k, n in [(29, 70, 37), (13, 300, 48)]:
        for spread in (0.0, 1.0, 4.0):
            a = values((m, k), case.left, generator, spread)
            b = values((k, n), case.right, generator, spread)
            assert_matches(a, b, case.acc, f"{(m, k, n)} spread {spread}")
            # The scales of B change from one block of k, or of rows, to the next.
            a[:, k // 2 :] *= 2.0**-4
            assert_matches(a, lp.quantize(b * 2.0**3, case.right), case.acc, "other scales")


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_tier(case: TierCase, monkeypatch: pytest.MonkeyPatch) -> None:
    choose("avx512fp16", monkeypatch)
    generator = torch.Generator().manual_seed(2)
    a = lp.quantize(values((24, 64), case.left, generator, 0.0) / 4, case.left)
    b = lp.quantize(values((64, 32), case.right, generator, 0.0) / 4, case.right)
    cpu.BACKEND.take_tiers()
    cpu.BACKEND.matmul(a, b, None, case.acc.to_ints(), torch.tensor(1), 4)
    assert cpu.BACKEND.take_tiers()[case.tier] == 1.0


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "max"])
def test_values_beyond_a_certificate(value: float | str, isa: str) -> None:
    generator = torch.Generator().manual_seed(3)
    a = values((40, 80), "e4m3fn", generator, 0.5)
    b = values((80, 40), "e4m3fn", generator, 0.5)
    a[13] = b[:, 21] = 448.0 if value == "max" else float(value)
    for product in ("e6m5", "e4m3", "e4m3_sat"):
        assert_matches(a, b, Accumulator("e5m10", product=product, chunk=32), product)
