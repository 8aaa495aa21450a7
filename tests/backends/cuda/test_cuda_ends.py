"""Products of the cuda adapter at both ends of float32's exponents, by its kernels' own code on the
host, and on a device where one is.

Certified kernels scale their sums (csrc/cuda/product/plan.h), by a normal float32 at either end.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.backends.cuda import BACKEND
from tests import cases
from tests.backends.cuda.test_cuda_conv import PASSES, output_shape, run
from tests.cases import ConvCase
from tests.compare import assert_bit_equal
from tests.support import cuda_host

REFERENCE = lp.backends.get("reference")
SEED = torch.tensor(-3)

FORMATS = ("e8m3", "e8m7", "e8m10", "e8m13", "e8m15", "e8m20", "e8m21")
#: Sums over the whole range of a format: in chunks, stopped at max, cut and drawn.
ACCUMULATORS = [
    acc
    for fmt in FORMATS
    for acc in (
        lp.Accumulator(fmt),
        lp.Accumulator(fmt, chunk=2),
        lp.Accumulator(fmt, chunk=3, outer="fp32"),
        lp.Accumulator(f"{fmt}_sat"),
        lp.Accumulator(f"{fmt}_sat", chunk=2),
        lp.Accumulator(fmt, "toward_zero"),
    )
] + [
    lp.Accumulator("e8m10", "stochastic", chunk=8, outer_rounding="nearest_even"),
    lp.Accumulator("e8m10", "stochastic", chunk=8, outer="e4m5_sat"),
    lp.Accumulator("e8m13", "toward_zero", chunk=3, outer="e8m9"),
    lp.Accumulator("e8m13", product="e8m10"),
    # Formats that begin, or end, far from 1.
    lp.Accumulator(lp.FloatFormat(3, 3, bias=-100)),
    lp.Accumulator(lp.FloatFormat(3, 3, bias=-100), chunk=2, outer="e8m13"),
    lp.Accumulator(lp.FloatFormat(4, 5, bias=130, specials="none", overflow="saturate")),
]

#: Exponents of the last places of both operands.
EXPONENTS = [
    (60, 44), (44, 60), (112, -8), (-9, 113), (120, 4), (60, 30), (20, 20), (-60, -60), (-77, -78),
    (-120, -20), (-20, -120), (-119, -119), (-110, 100),
]  # fmt: skip


def operands(shapes: tuple[tuple[int, ...], tuple[int, ...]], at: tuple[int, int]) -> list[Tensor]:
    """Values of at most eight bits, the widest among them."""
    made = []
    for shape, exponent in zip(shapes, at, strict=True):
        x = torch.randint(-255, 256, shape).double()
        x.view(-1)[0] = 129
        made.append((x * 2.0**exponent).float())
    return made


host = pytest.mark.skipif(bool(cuda_host.reason()), reason=cuda_host.reason())


@host
class TestOnHost:
    @pytest.fixture(autouse=True)
    def kernels(self):
        with cuda_host.on_host() as loaded:
            self.loaded = loaded
            yield

    @pytest.mark.parametrize("fmt", FORMATS)
    def test_one_product_below_two_to_the_120(self, fmt: str):
        """The product is exact in all of these formats or is rounded once; scaled by 2^-127, it
        would be NaN."""
        a, b = torch.tensor([[129 * 2.0**60]]), torch.tensor([[129 * 2.0**44]])
        want = lp.quantize(torch.tensor([[129.0 * 129 * 2.0**104]]), fmt)
        for acc in (lp.Accumulator(fmt), lp.Accumulator(f"{fmt}_sat", chunk=2)):
            got = BACKEND.matmul(a, b, None, acc.to_ints(), None, 0)
            assert_bit_equal(got, want, str(acc))

    def test_certified_kernels_keep_large_sums(self):
        a, b = operands(((3, 5), (5, 4)), (60, 44))
        BACKEND.matmul(a, b, None, lp.Accumulator("e8m10").to_ints(), None, 0)
        tier, redone = self.loaded.last_tier()
        assert tier > 0 and not redone

    @pytest.mark.parametrize("acc", ACCUMULATORS, ids=cases.ids)
    def test_matmul_matches_the_reference(self, acc: lp.Accumulator):
        for at in EXPONENTS:
            call = (*operands(((3, 7), (7, 4)), at), None, acc.to_ints(), SEED, 0)
            assert_bit_equal(BACKEND.matmul(*call), REFERENCE.matmul(*call), f"2^{at}")

    @pytest.mark.parametrize("acc", ACCUMULATORS[::3] + ACCUMULATORS[-5:], ids=cases.ids)
    @pytest.mark.parametrize("name", PASSES)
    def test_convolutions_match_the_reference(self, name: str, acc: lp.Accumulator):
        case = ConvCase((1, 2, 4, 5), (3, 2, 3, 2), (1, 2), (1, 1), (1, 1))
        for at in EXPONENTS:
            tensors = conv_operands(name, case, at)
            want = run(REFERENCE, name, case, tensors, acc)
            assert_bit_equal(run(BACKEND, name, case, tensors, acc), want, f"2^{at}")


def conv_operands(name: str, case: ConvCase, at: tuple[int, int]) -> tuple[Tensor, ...]:
    x, w, dy = case.input_shape, case.weight_shape, output_shape(case)
    shapes = {"fprop": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}[name]
    left, right = operands(shapes, at)
    return left, right, torch.zeros(case.weight_shape[:1])


@pytest.mark.cuda
@pytest.mark.skipif(not BACKEND.available(), reason=f"cuda: {BACKEND.why_not()}")
class TestOnDevice:
    @pytest.mark.parametrize("acc", ACCUMULATORS, ids=cases.ids)
    def test_all_match_the_cpu(self, acc: lp.Accumulator):
        cpu: Any = lp.backends.get("cpu")
        for at in EXPONENTS:
            a, b = operands(((30, 33), (33, 40)), at)
            got = BACKEND.matmul(a.cuda(), b.cuda(), None, acc.to_ints(), SEED.cuda(), 0)
            want = cpu.matmul(a, b, None, acc.to_ints(), SEED, 0)
            assert_bit_equal(got, want, f"2^{at}")
        case = ConvCase((1, 2, 4, 5), (3, 2, 3, 2), (1, 2), (1, 1), (1, 1))
        for name, at in itertools.product(PASSES, EXPONENTS[:4]):
            tensors = conv_operands(name, case, at)
            there = tuple(t.cuda() for t in tensors)
            want = run(cpu, name, case, tensors, acc)
            assert_bit_equal(run(BACKEND, name, case, there, acc), want, f"{name} 2^{at}")
