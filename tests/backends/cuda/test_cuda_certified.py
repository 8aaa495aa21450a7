"""Certified sums on CUDA: the kernels' own code runs on the host, on a grid of shapes and in every
tier; every result has the cpu backend's bits. Sums at both ends of float32's exponents, and every
tier, run on a device too."""

import itertools

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.backends.cuda import BACKEND
from tests.backends import by_hand
from tests.cases import ConvCase, accumulators_named
from tests.support.cuda_host import needs_device
from tests.support.products import assert_pass, assert_product

# Tiers that the operands choose (csrc/cuda/product/tier.h), each with a format, the bits of the
# factors and the exponents by which steps in turn are scaled: splitting in two steps and in three,
# and the floor, proved, watched, clipped and made odd; in double; by conversions; and float32's own
# arithmetic. The factors of those made odd lie further apart than doubles reach.
TIERS = (
    ("e6m9", 1, 3, (0,)), ("e4m9", 2, 3, (0,)), ("e4m9_sat", 3, 3, (0,)),
    ("e8m10", 4, 24, (0, -60)), ("e6m12", 5, 3, (0,)), ("e4m12", 6, 3, (0,)),
    ("e4m11_sat", 7, 3, (0,)), ("e8m14", 8, 24, (0, -60)), ("e4m9", 9, 3, (-17,)),
    ("e4m9", 10, 3, (-17, 0)), ("e4m9_sat", 11, 3, (-17, 0)), ("e6m9", 12, 24, (2, -40)),
    ("e8m14", 13, 16, (0,)), ("e6m9", 14, 16, (0, -12)), ("e5m10", 17, 3, (0,)),
    ("fp32", 18, 24, (0,)),
)  # fmt: skip

EVERY_TIER = pytest.mark.parametrize(
    "tier, outer", list(itertools.product(TIERS, ["e6m9", "fp32", None])), ids=str
)


def factors(bits: int, exponents: tuple[int, ...], m: int, n: int) -> tuple[Tensor, Tensor]:
    """Integers of few bits, or fractions of many; now and then a zero of either sign."""
    generator = torch.Generator().manual_seed(bits)
    a, b = (
        torch.randint(1 - 2**bits, 2**bits, shape, generator=generator).float()
        for shape in ((m, 21), (21, n))
    )
    if bits > 3:
        a, b = a / 2.0**bits, b / 2.0**bits
    a[torch.rand(a.shape, generator=generator) < 0.1] = -0.0
    a[0, 0], b[0, 0] = 1.0, 1.0
    return a * torch.tensor([2.0 ** exponents[i % len(exponents)] for i in range(21)]), b


@EVERY_TIER
def test_every_tier_is_taken_and_has_the_cpus_bits(tier, outer: str | None, host) -> None:
    fmt, number, bits, exponents = tier
    acc = lp.Accumulator(fmt, **({} if outer is None else {"chunk": 8, "outer": outer}))
    for m, n in ((5, 7), (140, 3), (1, 130)):
        a, b = factors(bits, exponents, m, n)
        assert_product(BACKEND, a, b, acc, bias=torch.randn(n), by="cpu")
        assert host.last_tier()[0] == number, fmt


@needs_device
@EVERY_TIER
def test_every_tier_has_the_cpus_bits_on_a_device(tier, outer: str | None) -> None:
    fmt, _, bits, exponents = tier
    acc = lp.Accumulator(fmt, **({} if outer is None else {"chunk": 8, "outer": outer}))
    a, b = factors(bits, exponents, 300, 140)
    assert_product(BACKEND, a, b, acc, "cuda", bias=torch.randn(140), by="cpu")
    # The same sums as a convolution of one tap, whose operands lie behind tables.
    case = ConvCase((1, 21, 300), (140, 21, 1), (1,), (0,), (1,))
    tensors = a.T[None].contiguous(), b.T[:, :, None].contiguous(), torch.zeros(1, 140, 300)
    assert_pass(BACKEND, "fprop", case, (*tensors, torch.randn(140)), acc, "cuda", by="cpu")


FORMATS = ("e8m3", "e8m7", "e8m10", "e8m13", "e8m15", "e8m20", "e8m21")
#: Sums over the whole range of a format: in chunks, stopped at max, cut and drawn; formats that
#: begin, or end, far from 1.
END_ACCUMULATORS = [
    *(
        lp.accumulator(fmt + rest)
        for fmt in FORMATS
        for rest in ("", "_chunk2", "_chunk3:outer=fp32", "_sat", "_sat_chunk2", ":toward_zero")
    ),
    *accumulators_named("""
        e8m10_chunk8:stochastic:outer_rounding=nearest_even e8m10_chunk8:stochastic:outer=e4m5_sat
        e8m13_chunk3:toward_zero:outer=e8m9 e8m13:product=e8m10 e3m3_b-100
        e3m3_b-100_chunk2:outer=e8m13 e4m5none_b130_sat
    """),
]

#: Exponents of the last places of both operands.
EXPONENTS = [
    (60, 44), (44, 60), (112, -8), (-9, 113), (120, 4), (60, 30), (20, 20), (-60, -60), (-77, -78),
    (-120, -20), (-20, -120), (-119, -119), (-110, 100),
]  # fmt: skip


def end_values(shape: tuple[int, ...], exponent: int) -> Tensor:
    """Values of at most eight bits, the widest among them."""
    x = torch.randint(-255, 256, shape).double()
    x.view(-1)[0] = 129
    return (x * 2.0**exponent).float()


@pytest.mark.parametrize("fmt", FORMATS)
def test_one_product_below_two_to_the_120(fmt: str, device: str) -> None:
    """It is exact or rounded once; scaled by 2^-127, it would be NaN."""
    a, b = torch.tensor([[129 * 2.0**60]]), torch.tensor([[129 * 2.0**44]])
    for text in (fmt, f"{fmt}_sat_chunk2"):
        assert_product(BACKEND, a, b, lp.accumulator(text), device)


def test_certified_kernels_keep_large_sums(host) -> None:
    a, b = end_values((3, 5), 60), end_values((5, 4), 44)
    by_hand.matmul(BACKEND, a, b, None, lp.Accumulator("e8m10").to_ints(), None, 0)
    tier, redone = host.last_tier()
    assert tier > 0 and not redone


@pytest.mark.parametrize("acc", END_ACCUMULATORS, ids=str)
def test_matmul_matches_the_cpu(acc: lp.Accumulator, device: str) -> None:
    m, k, n = (30, 33, 40) if device == "cuda" else (3, 7, 4)
    for left, right in EXPONENTS:
        a, b = end_values((m, k), left), end_values((k, n), right)
        assert_product(BACKEND, a, b, acc, device, by="cpu", name=f"2^{left}, 2^{right}")
