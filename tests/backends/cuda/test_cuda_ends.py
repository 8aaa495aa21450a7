"""Products of the cuda adapter at both ends of float32's exponents, by its kernels' own code on the
host, and on a device where one is.

Certified kernels scale their sums (csrc/cuda/product/plan.h), by a normal float32 at either end.
"""

from __future__ import annotations

import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.backends.cuda import BACKEND
from tests.cases import ConvCase
from tests.loops import each
from tests.support.products import PASSES, assert_pass, assert_product, output_shape

FORMATS = ("e8m3", "e8m7", "e8m10", "e8m13", "e8m15", "e8m20", "e8m21")
#: Sums over the whole range of a format: in chunks, stopped at max, cut and drawn; formats that
#: begin, or end, far from 1.
ACCUMULATORS = [
    *(
        lp.accumulator(fmt + rest)
        for fmt in FORMATS
        for rest in ("", "_chunk2", "_chunk3:outer=fp32", "_sat", "_sat_chunk2", ":toward_zero")
    ),
    *map(
        lp.accumulator,
        (
            "e8m10_chunk8:stochastic:outer_rounding=nearest_even",
            "e8m10_chunk8:stochastic:outer=e4m5_sat",
            "e8m13_chunk3:toward_zero:outer=e8m9",
            "e8m13:product=e8m10",
            "e3m3_b-100",
            "e3m3_b-100_chunk2:outer=e8m13",
            "e4m5none_b130_sat",
        ),
    ),
]

#: Exponents of the last places of both operands.
EXPONENTS = [
    (60, 44), (44, 60), (112, -8), (-9, 113), (120, 4), (60, 30), (20, 20), (-60, -60), (-77, -78),
    (-120, -20), (-20, -120), (-119, -119), (-110, 100),
]  # fmt: skip


def values(shape: tuple[int, ...], exponent: int) -> Tensor:
    """Values of at most eight bits, the widest among them."""
    x = torch.randint(-255, 256, shape).double()
    x.view(-1)[0] = 129
    return (x * 2.0**exponent).float()


@each("fmt", FORMATS)
def test_one_product_below_two_to_the_120(fmt: str, device: str) -> None:
    """The product is exact in all of these formats or is rounded once; scaled by 2^-127, it
    would be NaN."""
    a, b = torch.tensor([[129 * 2.0**60]]), torch.tensor([[129 * 2.0**44]])
    for text in (fmt, f"{fmt}_sat_chunk2"):
        assert_product(BACKEND, a, b, lp.accumulator(text), device)


def test_certified_kernels_keep_large_sums(host) -> None:
    a, b = values((3, 5), 60), values((5, 4), 44)
    BACKEND.matmul(a, b, None, lp.Accumulator("e8m10").to_ints(), None, 0)
    tier, redone = host.last_tier()
    assert tier > 0 and not redone


@each("acc", ACCUMULATORS)
def test_matmul_matches_the_cpu(acc: lp.Accumulator, device: str) -> None:
    m, k, n = (30, 33, 40) if device == "cuda" else (3, 7, 4)
    for left, right in EXPONENTS:
        a, b = values((m, k), left), values((k, n), right)
        assert_product(BACKEND, a, b, acc, device, by="cpu", name=f"2^{left}, 2^{right}")


@each("acc", ACCUMULATORS[::3] + ACCUMULATORS[-5:])
def test_convolutions_match_the_cpu(acc: lp.Accumulator, device: str) -> None:
    case = ConvCase((1, 2, 4, 5), (3, 2, 3, 2), (1, 2), (1, 1), (1, 1))
    for left, right in EXPONENTS[:4] if device == "cuda" else EXPONENTS:
        for name in PASSES:
            tensors = (
                values(case.input_shape, left),
                values(case.weight_shape, right),
                values(output_shape(case), right if name == "wgrad" else left),
                torch.zeros(case.weight_shape[0]),
            )
            assert_pass(BACKEND, name, case, tensors, acc, device, by="cpu")
