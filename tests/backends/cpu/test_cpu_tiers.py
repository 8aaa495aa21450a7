"""Each tier of the CPU kernels, forced and compared with the reference to the bit.

The operands are low-precision values, like a layer's; such values certify the fast tiers.
"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.backends import cpu
from tests.backends.cpu_products import (
    PASSES,
    assert_convolution,
    assert_matmul,
    spread_values,
    tier_of,
)
from tests.cases import ConvCase
from tests.support.processor import Isas, choose


class TierCase(NamedTuple):
    """Operands of one format into one accumulator, and the tier that takes them with AVX-512. The
    hardware tier needs AVX512-FP16."""

    tier: str
    left: str
    right: str
    acc: lp.Accumulator


#: Accumulators, with spaces between them, by their tier and the formats of the operands.
_TIERS = [
    # The processor's half precision.
    ("hardware", "fp16", "fp16", "e5m10 e5m10_sat:product=e5m10 e5m10_sat_chunk7:toward_zero "
     "e5m10:toward_positive "
     "e5m10_chunk20:toward_negative:product=e5m10_sat:product_rounding=toward_negative "
     "e5m10_chunk7:outer_rounding=toward_negative"),
    ("hardware", "e5m2", "e4m3fn", "e5m10_chunk9"),
    ("hardware", "e5m2", "fp16", "e5m10_chunk16:outer=e6m12"),
    ("hardware", "e4m3fn", "e4m3fn", "e5m10:product=e5m10"),
    ("hardware", "e4m3fn", "e5m2", "e5m10_sat_chunk9:product=e5m10_sat"),
    # (B): products no wider than the accumulator, no subnormal sums.
    ("certified", "e4m3fn", "e4m3fn", "e5m10"),
    ("certified", "e5m2", "e5m2", "e6m9 e6m9_chunk64 e6m9_chunk5:outer=e5m3"),
    ("certified", "fp6_e3m2", "fp6_e3m2", "e4m6_sat"),
    ("certified", "fp4_e2m1", "fp4_e2m1", "e5m10_nosub"),
    ("certified", "e4m3", "e4m3", "e8m11"),
    # Subnormal sums.
    ("certified", "e5m2", "e5m2", "e5m10"),
    ("certified", "e5m2", "e4m3fn", "e4m8_chunk7"),
    # (C), (A): products wider than the accumulator.
    ("certified", "e4m3fn", "e4m3fn", "e5m6"),
    ("certified", "fp6_e2m3", "fp6_e2m3", "e5m4_sat"),
    # Rounded products, of which rounding changes none or many.
    ("certified", "e4m3fn", "e4m3fn", "e5m10:product=e6m9 e5m8:product=e4m3_sat "
     "e5m10:product=e4m3 e5m10:toward_zero:product=e6m6 e5m10:product=e3m2_sat"),
    ("certified", "e5m2", "e5m2", "e6m9:product=e4m3fn"),
    ("certified", "e4m3fn", "e5m2", "e5m10_chunk9:product=e6m5"),
    # Truncation, and draws.
    ("certified", "e5m2", "e5m2", "e6m9:toward_zero e6m9:toward_negative e6m9:stochastic "
     "e6m9:stochastic:bits=13 e6m9:stochastic:bits=1 e6m9_chunk10:stochastic:philox"),
    ("certified", "e4m3fn", "e4m3fn", "e8m13_chunk128:toward_zero"),
    # Truncation composes, however wide the products are.
    ("certified", "fp32", "fp32", "bf16:toward_zero bf16:stochastic:bits=15 e5m7:nearest_away "
     "bf16:nearest_away e5m7:toward_positive bf16:toward_positive e5m7_chunk6:toward_negative "
     "bf16:toward_negative e5m7_sat:stochastic e5m7_sat:toward_zero e8m22:toward_zero "
     "e8m22_chunk9:toward_negative e6m23:toward_positive e6m13:stochastic:bits=9 "
     "fp32:toward_negative"),
    # Products too wide for two roundings: their sums are made odd, with and without subnormal ones.
    ("certified", "fp32", "fp32", "e5m10 e6m21 e5m7_sat_chunk11"),
    ("certified", "bf16", "bf16", "bf16 e8m14"),
    ("certified", "fp16", "fp16", "bf16 e5m12:product=e6m12"),
    # Products of any width are rounded in one multiply-add: short ones, watched, and all others.
    ("certified", "fp32", "fp32", "e5m10:product=e4m3 e6m14_chunk9:product=e5m3 "
     "e5m10:product=e6m5 e5m7:product=bf16 e6m9:product=e2m14 e6m9_chunk16:product=e3m2_sat "
     "e6m9:toward_zero:product=e4m3 e6m9:stochastic:product=e4m3fn"),
    ("certified", "fp32", "bf16", "e5m4_sat:product=e5m10"),
    # There is no certificate, but float32 lanes are used all the same.
    ("float", "fp32", "fp32", "fp32 fp32:toward_zero e5m7_nosub_chunk12 "
     "e4m3fn_nosub:stochastic:bits=5"),
    ("float", "fp16", "fp16", "e4m3_nosub_sat:toward_zero"),
    # Fixed point: the addition rounds to the grid, or all values are whole quanta from the start.
    ("certified", "e5m2", "e5m2", "fixed16_f8"),
    ("certified", "fp32", "fp32", "fixed22_f14_chunk9:outer=e5m10 fixed10_f5_wrap_chunk9 "
     "fixed20_f10:toward_zero fixed12_f6_wrap:toward_zero ufixed9_f5_wrap ufixed9_f5_chunk3"),
    ("certified", "fixed8_f0", "fixed8_f0", "fixed24_f0:stochastic fixed16_f-3 fixed12_f-3_wrap"),
    ("certified", "fixed8_f4", "fixed8_f4", "fixed14_f8_wrap:to_odd"),
    ("certified", "fixed8_f4", "fixed8_f3", "fixed22_f7:product=fixed18_f7"),
    # The outer sum rounds in another way than the inner.
    ("certified", "e5m2", "e5m2", "e6m9_chunk9:outer_rounding=toward_zero "
     "e6m9_chunk9:outer_rounding=stochastic "
     "e6m9_chunk9:toward_zero:outer=fp32:outer_rounding=nearest_even"),
    # Sums made in double under a certificate: 22 and 23 bits, and fixed point of any width.
    ("certified", "bf16", "bf16", "e8m22"),
    ("certified", "e4m3fn", "e5m2", "e5m22_chunk9"),
    ("certified", "e5m2", "e5m2", "e6m23_sat_chunk7:outer=e5m10"),
    ("certified", "fp32", "fp32", "e8m22 e5m22_chunk5 e8m22_chunk20:product=e5m10 fixed24_f12 "
     "fixed24_f16_chunk9:toward_zero "
     "fixed24_f20_wrap_chunk6"),
    ("certified", "fp16", "bf16", "e8m22_sat_chunk8:outer=e8m22"),
    # Formats without a mantissa.
    ("float", "fp32", "fp32", "e6m0:toward_zero e5m0:stochastic"),
    ("double", "fp32", "fp32", "e6m0 e6m0:product=e4m3"),
    ("double", "e5m2", "e5m2", "e4m0_sat_chunk9 e6m0_nosub"),
    # Modes and fixed-point sums that have neither a certificate nor a rule in float32.
    ("double", "fp32", "fp32", "e5m7:to_odd bf16:to_odd fp32:to_odd e5m7_nosub:toward_positive "
     "e5m7_nosub:nearest_away e5m7_nosub:to_odd e6m0:to_odd e5m0:nearest_away "
     "fixed20_f10:toward_positive fixed12_f6_wrap:toward_negative fixed12_f6_chunk4:to_odd "
     "fixed24_f12:toward_negative fixed24_f12:to_odd"),
    ("double", "e5m2", "e5m2", "e4m0_sat:to_odd e5m0:toward_positive"),
    # Sums that only the double tier makes.
    ("double", "fp32", "fp32", "e8m0 e8m0:to_odd e6m23:nearest_away e8m22:to_odd e6m22_nosub "
     "e8m22:product=e8m23 e8m23:stochastic:bits=24 e5m22_sat:stochastic:philox "
     "fixed24_f12:stochastic:bits=13 ufixed24_f20_chunk8:nearest_away "
     "fixed12_f6:product=fixed12_f6 e6m22:product=fixed12_f6 fixed12_f6:stochastic:product=e4m3 "
     "fixed16_f8:stochastic fixed16_f8:nearest_away e5m14:stochastic:bits=12"),
    # -0 matters where sums round down.
    ("double", "e4m3fn", "e4m3fn", "e8m13:block=32:aligned_bits=13 "
     "e5m10:toward_negative:product=e4m3"),
    ("double", "e5m2", "e5m2", "e6m9:order=pairwise e6m9_chunk20:order=compensated"),
]  # fmt: skip
CASES = [TierCase(*row, lp.accumulator(name)) for *row, names in _TIERS for name in names.split()]
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.tier}-{case.acc}")


@EVERY_CASE
def test_products(case: TierCase, isas: Isas) -> None:
    generator = torch.Generator().manual_seed(1)
    for m, k, n in [(29, 70, 37), (3, 300, 17)]:
        a = spread_values(case.left, (m, k), generator, 0.0, 1.0, 4.0)
        b = spread_values(case.right, (k, n), generator, 0.0, 1.0, 4.0)
        assert_matmul(isas, a, b, case.acc, (m, k, n))
    if case.tier not in ("hardware", "certified"):
        return
    # In each product of the batch one value, or a few, break the certificate in one place: one
    # panel is done again, and all others stay.
    a = spread_values(case.left, (40, 80), generator, *[0.5] * 4)
    b = spread_values(case.right, (80, 40), generator, *[0.5] * 4)
    left, right = (lp.parse_format(fmt).max for fmt in (case.left, case.right))
    a[0, 13, 77], a[1, 13, 77] = float("inf"), float("nan")
    a[2, 13, 41:45], b[2, 41:45, 21] = left, right
    # All products of one output are the same, so its sum grows past any bound.
    a[3, 13], b[3, :, 21] = left, 1.0
    assert_matmul(isas, a, b, case.acc, "broken")


@EVERY_CASE
def test_convolutions(case: TierCase, isas: Isas) -> None:
    """Padding and strides leave taps out, so that the masked variants run."""
    conv = ConvCase((2, 6, 7, 9), (18, 3, 3, 3), (2, 1), (1, 2), (1, 1), 2)
    generator = torch.Generator().manual_seed(6)
    x = spread_values(case.left, conv.input_shape, generator, 1.0)[0]
    w = spread_values(case.right, conv.weight_shape, generator, 1.0)[0]
    grad = spread_values(case.left, conv.output_shape, generator, 1.0)[0]
    assert_convolution(isas, conv, case.acc, x, w, grad, passes=("dgrad", "wgrad"))
    w[4, 1, 0, 2] = float("inf")
    assert_convolution(isas, conv, case.acc, x, w, grad, passes=("fprop",))


@EVERY_CASE
def test_tier_is_taken(case: TierCase, monkeypatch: pytest.MonkeyPatch) -> None:
    choose("avx512fp16" if case.tier == "hardware" else "avx512", monkeypatch)
    generator = torch.Generator().manual_seed(2)
    small = 2.0**-2 if case.tier in ("hardware", "certified") or case.left == "e4m3fn" else 1.0
    a = lp.quantize(spread_values(case.left, (24, 64), generator, 0.0) * small, case.left)
    b = lp.quantize(spread_values(case.right, (64, 32), generator, 0.0) * small, case.right)
    assert tier_of(a, b, case.acc) == case.tier


def short(shape: tuple[int, ...], exponent: int, generator: torch.Generator) -> Tensor:
    """Values of few bits times 2^exponent."""
    size = torch.randint(4, 8, shape, generator=generator)
    sign = 2 * torch.randint(0, 2, shape, generator=generator) - 1
    return size * sign * 2.0 ** (exponent - 2)


@pytest.mark.parametrize(
    "name, exponents",
    [("fixed24_f149", (-63, -65)), ("fixed20_f140_chunk7:toward_zero", (-60, -64)),
     ("ufixed12_f128_wrap", (-10, -112)), ("e4m3_b144_chunk8:outer=fp32", (-70, -70)),
     ("e3m5_b142:toward_negative", (-68, -70)), ("e4m2none_b147_sat:stochastic", (-100, -38))],
)  # fmt: skip
def test_sums_at_the_ends_of_float32(name: str, exponents: tuple[int, int], isas: Isas) -> None:
    """No certificate scales sums by a power of two that float32 lacks."""
    generator = torch.Generator().manual_seed(8)
    a, b = map(short, ((13, 40), (40, 37)), exponents, (generator, generator))
    assert_matmul(isas, a, b, lp.accumulator(name))


def test_products_with_more_places_than_float32(isas: Isas) -> None:
    """The last places of one operand's elements are below float32's smallest normal number; or
    products have 24 bits, the last of them one quantum, and float32 has no room for their sums."""
    generator = torch.Generator().manual_seed(9)
    a = short((13, 40), 30, generator)
    b = (1 + torch.rand((40, 37), generator=generator)) * 2.0**-118
    assert_matmul(isas, a, b, lp.Accumulator("fixed20_f100", "toward_zero"))
    a, b = (torch.randint(2048, 4096, x.shape, generator=generator) / 16 for x in (a, b))
    assert_matmul(isas, a, b, lp.Accumulator("fixed12_f8_wrap"))


@pytest.mark.parametrize("left", ["e5m2", "fp32"])
@pytest.mark.parametrize(
    "name",
    ["e6m9", "e6m9:toward_zero", "e6m9:toward_positive", "e6m9:toward_negative",
     "e6m9:nearest_away", "e6m9:stochastic", "e6m9_chunk7:stochastic:bits=12:philox", "e8m21",
     "fp32", "e5m23", "e6m9_chunk16:toward_negative",
     "e6m9_chunk16:toward_zero:outer=e5m10:outer_rounding=to_odd",
     "fixed16_f8:toward_zero", "fixed16_f8_wrap:toward_zero", "fixed24_f12:toward_zero"],
)  # fmt: skip
def test_avx2_certifies_every_mode(name: str, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor rounds as the mode asks while sums are made, and as before afterwards."""
    choose("avx2", monkeypatch)
    generator = torch.Generator().manual_seed(7)
    a = lp.quantize(torch.randn(21, 70, generator=generator), left)
    b = lp.quantize(torch.randn(70, 37, generator=generator), left)
    assert_matmul(["avx2"], a, b, lp.accumulator(name))
    assert tier_of(a, b, lp.accumulator(name)) == "certified"
    third = torch.tensor(1.0) / torch.tensor(3.0)
    assert third.item() == 11184811 * 2.0**-25


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_zeros_of_underflowed_sums_keep_their_sign(isa: str, monkeypatch: pytest.MonkeyPatch):
    """The terms are absent taps and products of either sign below half of e5m10's smallest."""
    choose(isa, monkeypatch)
    tiny = 2.0**-16
    signs = torch.tensor([1.0, -1.0])
    x = tiny * signs[torch.randint(0, 2, (2, 3, 6, 5), generator=torch.Generator().manual_seed(4))]
    w = tiny * signs[torch.randint(0, 2, (20, 3, 3, 3), generator=torch.Generator().manual_seed(5))]
    case = ConvCase((2, 3, 6, 5), (20, 3, 3, 3), (1, 1), (1, 1), (1, 1))
    cpu.BACKEND.take_tiers()
    acc = lp.Accumulator("e5m10")
    assert_convolution([isa], case, acc, x, w, torch.zeros(case.output_shape), passes=PASSES[:1])
    assert cpu.BACKEND.take_tiers()["certified"] == 1.0
    recipe = lp.Recipe(fprop=acc)
    want = lp.functional.conv2d(x, w, padding=1, recipe=recipe, backend="cpu")
    assert torch.signbit(want).any()
