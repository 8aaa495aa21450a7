"""Each tier of the CPU kernels, forced and compared with the reference to the bit.

The operands are low-precision values, as a layer's are; such values certify the fast tiers.
"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Accumulator
from lpkernels.backends import _reference, cpu
from tests.backends.cpu.test_cpu import SEED
from tests.cases import ids
from tests.compare import assert_bit_equal
from tests.support.processor import choose, isa

__all__ = ["isa"]

pytestmark = pytest.mark.skipif(
    not cpu.BACKEND.available(), reason=f"cpu backend: {cpu.BACKEND.why_not()}"
)

ROLE = 4


class TierCase(NamedTuple):
    """Operands of one format into one accumulator, and the tier that takes them with AVX-512. The
    hardware tier needs AVX512-FP16."""

    left: str
    right: str
    acc: Accumulator
    tier: str

    def __str__(self) -> str:
        return f"{self.left}x{self.right}-{self.acc}"


CASES = [
    # The processor's half precision.
    TierCase("fp16", "fp16", Accumulator("e5m10"), "hardware"),
    TierCase("e5m2", "e4m3fn", Accumulator("e5m10", chunk=9), "hardware"),
    TierCase("e5m2", "fp16", Accumulator("e5m10", chunk=16, outer="e6m12"), "hardware"),
    TierCase("fp16", "fp16", Accumulator("e5m10_sat", product="e5m10"), "hardware"),
    TierCase("fp16", "fp16", Accumulator("e5m10_sat", "toward_zero", chunk=7), "hardware"),
    TierCase("fp16", "fp16", Accumulator("e5m10", "toward_positive"), "hardware"),
    TierCase(
        "fp16",
        "fp16",
        Accumulator(
            "e5m10",
            "toward_negative",
            product="e5m10_sat",
            product_rounding="toward_negative",
            chunk=20,
        ),
        "hardware",
    ),
    # (B): products no wider than the accumulator, no subnormal sums.
    TierCase("e4m3fn", "e4m3fn", Accumulator("e5m10"), "certified"),
    TierCase("e5m2", "e5m2", Accumulator("e6m9"), "certified"),
    TierCase("e5m2", "e5m2", Accumulator("e6m9", chunk=64), "certified"),
    TierCase("e5m2", "e5m2", Accumulator("e6m9", chunk=5, outer="e5m3"), "certified"),
    TierCase("fp6_e3m2", "fp6_e3m2", Accumulator("e4m6_sat"), "certified"),
    TierCase("fp4_e2m1", "fp4_e2m1", Accumulator("e5m10_nosub"), "certified"),
    TierCase("e4m3", "e4m3", Accumulator("e8m11"), "certified"),
    # Subnormal sums.
    TierCase("e5m2", "e5m2", Accumulator("e5m10"), "certified"),
    TierCase("e5m2", "e4m3fn", Accumulator("e4m8", chunk=7), "certified"),
    # (C), (A): products wider than the accumulator.
    TierCase("e4m3fn", "e4m3fn", Accumulator("e5m6"), "certified"),
    TierCase("fp6_e2m3", "fp6_e2m3", Accumulator("e5m4_sat"), "certified"),
    # Rounded products, of which rounding changes none or many.
    TierCase("e4m3fn", "e4m3fn", Accumulator("e5m10", product="e6m9"), "certified"),
    TierCase("e5m2", "e5m2", Accumulator("e6m9", product="e4m3fn"), "certified"),
    TierCase("e4m3fn", "e5m2", Accumulator("e5m10", product="e6m5", chunk=9), "certified"),
    TierCase("e4m3fn", "e4m3fn", Accumulator("e5m8", product="e4m3_sat"), "certified"),
    # Truncation, and draws.
    TierCase("e5m2", "e5m2", Accumulator("e6m9", "toward_zero"), "certified"),
    TierCase("e4m3fn", "e4m3fn", Accumulator("e8m13", "toward_zero", chunk=128), "certified"),
    TierCase("e5m2", "e5m2", Accumulator("e6m9", "stochastic"), "certified"),
    TierCase("e5m2", "e5m2", Accumulator("e6m9", "stochastic", random_bits=13), "certified"),
    TierCase("e5m2", "e5m2", Accumulator("e6m9", "stochastic", random_bits=1), "certified"),
    TierCase(
        "e5m2", "e5m2", Accumulator("e6m9", "stochastic", chunk=10, rng="philox"), "certified"
    ),
    # Truncation composes, however wide the products are.
    TierCase("fp32", "fp32", Accumulator("bf16", "toward_zero"), "certified"),
    TierCase("fp32", "fp32", Accumulator("bf16", "stochastic", random_bits=15), "certified"),
    TierCase("fp32", "fp32", Accumulator("e5m7", "nearest_away"), "certified"),
    TierCase("fp32", "fp32", Accumulator("bf16", "nearest_away"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e5m7", "toward_positive"), "certified"),
    TierCase("fp32", "fp32", Accumulator("bf16", "toward_positive"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e5m7", "toward_negative", chunk=6), "certified"),
    TierCase("fp32", "fp32", Accumulator("bf16", "toward_negative"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e5m7_sat", "stochastic"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e5m7_sat", "toward_zero"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e8m22", "toward_zero"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e8m22", "toward_negative", chunk=9), "certified"),
    TierCase("e5m2", "e5m2", Accumulator("e6m9", "toward_negative"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e6m23", "toward_positive"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e6m13", "stochastic", random_bits=9), "certified"),
    # Products too wide for two roundings: their sums are made odd, with and without subnormal ones.
    TierCase("fp32", "fp32", Accumulator("e5m10"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e6m21"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e5m7_sat", chunk=11), "certified"),
    TierCase("bf16", "bf16", Accumulator("bf16"), "certified"),
    TierCase("bf16", "bf16", Accumulator("e8m14"), "certified"),
    TierCase("fp16", "fp16", Accumulator("bf16"), "certified"),
    TierCase("fp16", "fp16", Accumulator("e5m12", product="e6m12"), "certified"),
    # Products of any width are rounded in one multiply-add: short ones, watched, and all others.
    TierCase("fp32", "fp32", Accumulator("e5m10", product="e4m3"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e6m14", product="e5m3", chunk=9), "certified"),
    TierCase("fp32", "fp32", Accumulator("e5m10", product="e6m5"), "certified"),
    TierCase("fp32", "bf16", Accumulator("e5m4_sat", product="e5m10"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e5m7", product="bf16"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e6m9", product="e3m2_sat", chunk=16), "certified"),
    TierCase("fp32", "fp32", Accumulator("e6m9", product="e2m14"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e6m9", "toward_zero", product="e4m3"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e6m9", "stochastic", product="e4m3fn"), "certified"),
    # There is no certificate, but float32 lanes are used all the same.
    TierCase("fp32", "fp32", Accumulator("e5m7", "to_odd"), "float"),
    TierCase("fp32", "fp32", Accumulator("bf16", "to_odd"), "float"),
    TierCase("fp32", "fp32", Accumulator("fp32"), "float"),
    TierCase("fp32", "fp32", Accumulator("fp32", "toward_zero"), "float"),
    TierCase("fp32", "fp32", Accumulator("fp32", "to_odd"), "float"),
    TierCase("fp32", "fp32", Accumulator("e5m7_nosub", chunk=12), "float"),
    TierCase("fp16", "fp16", Accumulator("e4m3_nosub_sat", "toward_zero"), "float"),
    TierCase("fp32", "fp32", Accumulator("e5m7_nosub", "toward_positive"), "float"),
    TierCase("fp32", "fp32", Accumulator("e5m7_nosub", "nearest_away"), "float"),
    TierCase("fp32", "fp32", Accumulator("e5m7_nosub", "to_odd"), "float"),
    TierCase("fp32", "fp32", Accumulator("e4m3fn_nosub", "stochastic", random_bits=5), "float"),
    # Fixed point: the addition rounds to the grid, or all values are whole quanta from the start.
    TierCase("e5m2", "e5m2", Accumulator("fixed16_f8"), "certified"),
    TierCase("fp32", "fp32", Accumulator("fixed22_f14", chunk=9, outer="e5m10"), "certified"),
    TierCase("fp32", "fp32", Accumulator("fixed10_f5_wrap", chunk=9), "certified"),
    TierCase("fp32", "fp32", Accumulator("fixed20_f10", "toward_zero"), "certified"),
    TierCase("fp32", "fp32", Accumulator("fixed20_f10", "toward_positive"), "certified"),
    TierCase("fp32", "fp32", Accumulator("fixed12_f6_wrap", "toward_negative"), "certified"),
    TierCase("fp32", "fp32", Accumulator("fixed12_f6", "to_odd", chunk=4), "certified"),
    TierCase("fixed8_f0", "fixed8_f0", Accumulator("fixed24_f0", "stochastic"), "certified"),
    TierCase("fixed8_f4", "fixed8_f4", Accumulator("fixed14_f8_wrap", "to_odd"), "certified"),
    TierCase("fp32", "fp32", Accumulator("ufixed9_f5_wrap"), "certified"),
    TierCase("fp32", "fp32", Accumulator("ufixed9_f5", chunk=3), "certified"),
    TierCase(
        "fixed8_f4", "fixed8_f3", Accumulator("fixed22_f7", product="fixed18_f7"), "certified"
    ),
    # The outer sum rounds in another way than the inner.
    TierCase(
        "e5m2", "e5m2", Accumulator("e6m9", chunk=9, outer_rounding="toward_zero"), "certified"
    ),
    TierCase(
        "e5m2", "e5m2", Accumulator("e6m9", chunk=9, outer_rounding="stochastic"), "certified"
    ),
    TierCase(
        "e5m2",
        "e5m2",
        Accumulator("e6m9", "toward_zero", chunk=9, outer="fp32", outer_rounding="nearest_even"),
        "certified",
    ),
    TierCase(
        "fp16",
        "fp16",
        Accumulator("e5m10", chunk=7, outer_rounding="toward_negative"),
        "hardware",
    ),
    # Sums made in double under a certificate: 22 and 23 bits, and fixed point of any width.
    TierCase("bf16", "bf16", Accumulator("e8m22"), "certified"),
    TierCase("e4m3fn", "e5m2", Accumulator("e5m22", chunk=9), "certified"),
    TierCase("e5m2", "e5m2", Accumulator("e6m23_sat", chunk=7, outer="e5m10"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e8m22"), "certified"),
    TierCase("fp32", "fp32", Accumulator("e5m22", chunk=5), "certified"),
    TierCase("fp32", "fp32", Accumulator("e8m22", product="e5m10", chunk=20), "certified"),
    TierCase("fp16", "bf16", Accumulator("e8m22_sat", chunk=8, outer="e8m22"), "certified"),
    TierCase("fp32", "fp32", Accumulator("fixed24_f12"), "certified"),
    TierCase("fp32", "fp32", Accumulator("fixed24_f12", "toward_negative"), "certified"),
    TierCase("fp32", "fp32", Accumulator("fixed24_f16", "toward_zero", chunk=9), "certified"),
    TierCase("fp32", "fp32", Accumulator("fixed24_f12", "to_odd"), "certified"),
    TierCase("fp32", "fp32", Accumulator("fixed24_f20_wrap", chunk=6), "certified"),
    # Formats without a mantissa.
    TierCase("fp32", "fp32", Accumulator("e6m0"), "float"),
    TierCase("e5m2", "e5m2", Accumulator("e4m0_sat", chunk=9), "float"),
    TierCase("e5m2", "e5m2", Accumulator("e6m0_nosub"), "float"),
    TierCase("fp32", "fp32", Accumulator("e6m0", product="e4m3"), "float"),
    TierCase("fp32", "fp32", Accumulator("e6m0", "to_odd"), "float"),
    TierCase("e5m2", "e5m2", Accumulator("e4m0_sat", "to_odd"), "float"),
    TierCase("fp32", "fp32", Accumulator("e6m0", "toward_zero"), "float"),
    TierCase("fp32", "fp32", Accumulator("e5m0", "stochastic"), "float"),
    TierCase("fp32", "fp32", Accumulator("e5m0", "nearest_away"), "float"),
    TierCase("e5m2", "e5m2", Accumulator("e5m0", "toward_positive"), "float"),
    # Sums that only the double tier makes.
    TierCase("fp32", "fp32", Accumulator("e8m0"), "double"),
    TierCase("fp32", "fp32", Accumulator("e8m0", "to_odd"), "double"),
    TierCase("fp32", "fp32", Accumulator("e6m23", "nearest_away"), "double"),
    TierCase("fp32", "fp32", Accumulator("e8m22", "to_odd"), "double"),
    TierCase("fp32", "fp32", Accumulator("e6m22_nosub"), "double"),
    TierCase("fp32", "fp32", Accumulator("e8m22", product="e8m23"), "double"),
    TierCase("fp32", "fp32", Accumulator("e8m23", "stochastic", random_bits=24), "double"),
    TierCase("fp32", "fp32", Accumulator("e5m22_sat", "stochastic", rng="philox"), "double"),
    TierCase("fp32", "fp32", Accumulator("fixed24_f12", "stochastic", random_bits=13), "double"),
    TierCase("fp32", "fp32", Accumulator("ufixed24_f20", "nearest_away", chunk=8), "double"),
    TierCase("fp32", "fp32", Accumulator("fixed12_f6", product="fixed12_f6"), "double"),
    TierCase("fp32", "fp32", Accumulator("e6m22", product="fixed12_f6"), "double"),
    TierCase("fp32", "fp32", Accumulator("fixed12_f6", "stochastic", product="e4m3"), "double"),
    TierCase("e4m3fn", "e4m3fn", Accumulator("e8m13", block=32, aligned_bits=13), "double"),
    TierCase("e5m2", "e5m2", Accumulator("e6m9", order="pairwise"), "double"),
    TierCase("e5m2", "e5m2", Accumulator("e6m9", order="compensated", chunk=20), "double"),
    TierCase("fp32", "fp32", Accumulator("fixed16_f8", "stochastic"), "double"),
    TierCase("fp32", "fp32", Accumulator("fixed16_f8", "nearest_away"), "double"),
    TierCase("fp32", "fp32", Accumulator("e5m14", "stochastic", random_bits=12), "double"),
]


def values(shape: tuple[int, ...], fmt: str, generator: torch.Generator, spread: float) -> Tensor:
    """Values of a format: normally distributed, ``spread`` binades apart in size, zeros of both
    signs among them."""
    x = torch.randn(shape, generator=generator)
    x *= torch.exp2(spread * torch.randn(shape, generator=generator))
    x *= (torch.rand(shape, generator=generator) > 0.2).float()
    return lp.quantize(x, fmt)


def assert_matches(a: Tensor, b: Tensor, acc: Accumulator, name: str) -> None:
    args = (a, b, None, acc.to_ints(), SEED, ROLE)
    assert_bit_equal(cpu.BACKEND.matmul(*args), _reference.BACKEND.matmul(*args), name)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_tier_matches_reference(case: TierCase, isa: str) -> None:
    generator = torch.Generator().manual_seed(1)
    for m, k, n in [(29, 70, 37), (3, 300, 17)]:
        for spread in (0.0, 1.0, 4.0):
            a = values((m, k), case.left, generator, spread)
            b = values((k, n), case.right, generator, spread)
            assert_matches(a, b, case.acc, f"{(m, k, n)} spread {spread}")


def short(shape: tuple[int, ...], exponent: int, generator: torch.Generator) -> Tensor:
    """Values of few bits times 2^exponent."""
    size = torch.randint(4, 8, shape, generator=generator)
    sign = 2 * torch.randint(0, 2, shape, generator=generator) - 1
    return size * sign * 2.0 ** (exponent - 2)


@pytest.mark.parametrize(
    ("name", "exponents"),
    [
        ("fixed24_f149", (-63, -65)),
        ("fixed20_f140_chunk7:toward_zero", (-60, -64)),
        ("ufixed12_f128_wrap", (-10, -112)),
        ("e4m3_b144_chunk8:outer=fp32", (-70, -70)),
        ("e3m5_b142:toward_negative", (-68, -70)),
        ("e4m2none_b147_sat:stochastic", (-100, -38)),
    ],
)
def test_sums_at_the_ends_of_float32(name: str, exponents: tuple[int, int], isa: str) -> None:
    """No certificate scales sums by a power of two that float32 lacks."""
    generator = torch.Generator().manual_seed(8)
    a, b = (
        short(shape, exponent, generator)
        for shape, exponent in zip(((13, 40), (40, 37)), exponents, strict=True)
    )
    assert_matches(a, b, lp.accumulator(name), name)


def test_products_finer_than_float32_are_no_whole_quanta(isa: str) -> None:
    """The last places of one operand's elements are below float32's smallest normal number."""
    generator = torch.Generator().manual_seed(9)
    a = short((13, 40), 30, generator)
    b = (1 + torch.rand((40, 37), generator=generator)) * 2.0**-118
    acc = Accumulator("fixed20_f100", "toward_zero")
    assert_matches(a, b, acc, "finer")


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_tier_is_taken(case: TierCase, monkeypatch: pytest.MonkeyPatch) -> None:
    isa_name = "avx512fp16" if case.tier == "hardware" else "avx512"
    choose(isa_name, monkeypatch)
    generator = torch.Generator().manual_seed(2)
    small = 2.0**-2 if case.tier in ("hardware", "certified") else 1.0
    a = lp.quantize(values((24, 64), case.left, generator, 0.0) * small, case.left)
    b = lp.quantize(values((64, 32), case.right, generator, 0.0) * small, case.right)
    cpu.BACKEND.take_tiers()
    cpu.BACKEND.matmul(a, b, None, case.acc.to_ints(), SEED, ROLE)
    assert cpu.BACKEND.take_tiers()[case.tier] == 1.0


@pytest.mark.parametrize("case", [c for c in CASES if c.tier in ("hardware", "certified")], ids=ids)
@pytest.mark.parametrize("poison", [float("inf"), float("nan"), "huge", "long"])
def test_broken_certificate_is_redone(case: TierCase, poison: float | str, isa: str) -> None:
    """One value in one place breaks the certificate: one panel is done again, and all others
    stay."""
    generator = torch.Generator().manual_seed(3)
    a = values((40, 80), case.left, generator, 0.5)
    b = values((80, 40), case.right, generator, 0.5)
    if poison == "huge":
        a[13, 41:45] = lp.parse_format(case.left).max
        b[41:45, 21] = lp.parse_format(case.right).max
    elif poison == "long":
        # All products of one output are the same, so its sum grows past any bound.
        a[13] = lp.parse_format(case.left).max
        b[:, 21] = 1.0
    else:
        a[13, 77] = poison
    assert_matches(a, b, case.acc, str(poison))


@pytest.mark.parametrize("left", ["e5m2", "fp32"])
@pytest.mark.parametrize(
    "name",
    ["e6m9", "e6m9:toward_zero", "e6m9:toward_positive", "e6m9:toward_negative",
     "e6m9:nearest_away", "e6m9:stochastic", "e6m9_chunk7:stochastic:bits=12:philox", "e8m21",
     "fp32", "e5m23", "e6m9_chunk16:toward_negative",
     "e6m9_chunk16:toward_zero:outer=e5m10:outer_rounding=to_odd",
     "fixed16_f8:toward_zero", "fixed16_f8_wrap:toward_negative", "fixed24_f12:to_odd"],
)  # fmt: skip
def test_avx2_certifies_every_mode(name: str, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor rounds as the mode asks while sums are made, and as before afterwards."""
    choose("avx2", monkeypatch)
    generator = torch.Generator().manual_seed(7)
    a = lp.quantize(torch.randn(21, 70, generator=generator), left)
    b = lp.quantize(torch.randn(70, 37, generator=generator), left)
    cpu.BACKEND.take_tiers()
    assert_matches(a, b, lp.accumulator(name), name)
    assert cpu.BACKEND.take_tiers()["certified"] == 1.0
    third = torch.tensor(1.0) / torch.tensor(3.0)
    assert third.item() == 11184811 * 2.0**-25


@pytest.mark.parametrize("isa_name", ["avx2", "avx512"])
def test_zeros_of_underflowed_sums_keep_their_sign(
    isa_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terms are e5m2 products below half of e5m10's smallest number, of either sign, and absent
    taps."""
    choose(isa_name, monkeypatch)
    tiny = 2.0**-16
    signs = torch.tensor([1.0, -1.0])
    x = tiny * signs[torch.randint(0, 2, (2, 3, 6, 5), generator=torch.Generator().manual_seed(4))]
    w = tiny * signs[torch.randint(0, 2, (20, 3, 3, 3), generator=torch.Generator().manual_seed(5))]
    acc = Accumulator("e5m10")
    tail = ([1, 1], [1, 1], [1, 1], 1, acc.to_ints(), None, 0)
    cpu.BACKEND.take_tiers()
    got = cpu.BACKEND.conv_fprop(x, w, None, *tail)
    assert cpu.BACKEND.take_tiers()["certified"] == 1.0
    want = _reference.BACKEND.conv_fprop(x, w, None, *tail)
    assert torch.signbit(want).any()
    assert_bit_equal(got, want)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_tier_matches_reference_on_convolutions(case: TierCase, isa: str) -> None:
    """Padding and strides leave taps out, so that the masked variants run."""
    generator = torch.Generator().manual_seed(6)
    x = values((2, 6, 7, 9), case.left, generator, 1.0)
    w = values((18, 3, 3, 3), case.right, generator, 1.0)
    w[4, 1, 0, 2] = float("inf")
    tail = ([2, 1], [1, 2], [1, 1], 2, case.acc.to_ints(), SEED, ROLE)
    y = _reference.BACKEND.conv_fprop(x, w, None, *tail)
    assert_bit_equal(cpu.BACKEND.conv_fprop(x, w, None, *tail), y, "fprop")
    g = values(tuple(y.shape), case.left, generator, 1.0)
    w = values((18, 3, 3, 3), case.right, generator, 1.0)
    for name, args in {
        "conv_dgrad": (g, w, list(x.shape)),
        "conv_wgrad": (x, g, list(w.shape)),
    }.items():
        want = getattr(_reference.BACKEND, name)(*args, *tail)
        assert_bit_equal(getattr(cpu.BACKEND, name)(*args, *tail), want, name)
