"""Rounded products in the processor's half precision, against the reference to the bit."""

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from tests.backends.cpu_products import assert_matmul, spread_values, tier_of
from tests.loops import each
from tests.support.processor import Isas, choose

#: Products that never, may and must round: they have fewer bits than five, five, and more.
PRODUCTS = (
    "e5m1", "e5m2_sat", "e4m3", "e4m3fn_sat", "e8m3", "e5m4", "e4m5", "e6m5", "e5m6", "e6m6", "e4m7"
)  # fmt: skip
OPERANDS = [
    ("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn"), ("e4m3", "e5m2"), ("fp6_e2m3", "e4m3"),
    ("e3m4", "fp6_e3m2"), ("e2m5", "e3m2"),
]  # fmt: skip
#: The formats of the operands, the accumulator, and the tier that takes them with AVX512-FP16.
CASES = [
    ("e4m3fn", "e4m3fn", "e5m10:product=e5m10", "hardware"),
    ("e4m3fn", "e5m2", "e5m10_sat_chunk9:product=e5m10_sat", "hardware"),
    ("e4m3fn", "e4m3fn", "e5m10:product=e4m3", "certified"),
    ("e4m3fn", "e4m3fn", "e5m10:toward_zero:product=e6m6", "certified"),
    # -0 matters where sums round down, and some of these products lie beyond half precision.
    ("e4m3fn", "e4m3fn", "e5m10:toward_negative:product=e4m3", "double"),
    ("e4m3fn", "e4m3fn", "e5m10:product=e3m2_sat", "certified"),
]


def codes(fmt: str, least: float, below: float) -> Tensor:
    x = torch.tensor(lp.parse_format(fmt).values(), dtype=torch.float32)
    return x[(x.abs() >= least) & (x.abs() < below)]


@each("product", PRODUCTS)
@pytest.mark.parametrize("operands", OPERANDS, ids="-".join)
def test_every_pair_of_values(operands: tuple[str, str], product: str, isas: Isas) -> None:
    # The last: products a little finer than some of the formats.
    for least, below in ((0.0, 2.0**9), (0.0, 8.0), (0.0, 1.0), (2.0**-7, 2.0)):
        a, b = codes(operands[0], least, below), codes(operands[1], least, below)
        for mode in ("nearest_even", "toward_negative"):
            acc = lp.Accumulator("e5m10", mode, product=product)
            assert_matmul(isas, a[:, None], b[None], acc, f"from {least} to {below}")


@each("left, right, name, tier", CASES)
def test_sums_match_reference(left: str, right: str, name: str, tier: str, isas: Isas) -> None:
    generator = torch.Generator().manual_seed(1)
    for m, k, n in [(29, 70, 37), (13, 300, 48)]:
        a = spread_values(left, (m, k), generator, 0.0, 1.0, 4.0)
        b = spread_values(right, (k, n), generator, 0.0, 1.0, 4.0)
        # In the second three products the scales of B change from one block of k, or of rows, to
        # the next.
        scaled = a.clone()
        scaled[..., k // 2 :] *= 2.0**-4
        a, b = torch.cat([a, scaled]), torch.cat([b, lp.quantize(b * 2.0**3, right)])
        assert_matmul(isas, a, b, lp.accumulator(name), (m, k, n))


@each("left, right, name, tier", CASES)
def test_tier(left: str, right: str, name: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose("avx512fp16", monkeypatch)
    generator = torch.Generator().manual_seed(2)
    a = lp.quantize(spread_values(left, (24, 64), generator, 0.0) / 4, left)
    b = lp.quantize(spread_values(right, (64, 32), generator, 0.0) / 4, right)
    assert tier_of(a, b, lp.accumulator(name)) == tier


@each("product", ["e6m5", "e4m3", "e4m3_sat"])
def test_values_beyond_a_certificate(product: str, isas: Isas) -> None:
    generator = torch.Generator().manual_seed(3)
    a = spread_values("e4m3fn", (40, 80), generator, 0.5, 0.5, 0.5)
    b = spread_values("e4m3fn", (80, 40), generator, 0.5, 0.5, 0.5)
    for entry, value in enumerate((float("inf"), float("nan"), 448.0)):
        a[entry, 13] = b[entry, :, 21] = value
    assert_matmul(isas, a, b, lp.Accumulator("e5m10", product=product, chunk=32))
