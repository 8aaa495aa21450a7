"""Convolutions of the cuda adapter: on the host by its kernels' own code, on a device where there
is one.

On the host the kernels' index maps, tables, plans and arithmetic are those of the device; what only
a device has (launches, barriers, its instructions) is not.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import Fused
from lpkernels.backends._conv_geometry import Frame
from lpkernels.backends.cuda import BACKEND, _conv, _products
from tests import cases
from tests.cases import ConvCase
from tests.compare import assert_bit_equal
from tests.support import cuda_host
from tests.support.conv_frames import ALL_CASES, in_frame

PASSES = ("fprop", "dgrad", "wgrad")
SEED = torch.tensor(-20240229)
ROLE = 4
REFERENCE = lp.backends.get("reference")
ALL_ORDERS = [acc for acc in cases.ACCUMULATORS if acc.order != "native"]
#: One accumulator for every family of kernels.
KERNELS = [
    lp.Accumulator("fp32"),
    lp.Accumulator("e5m10"),
    lp.Accumulator("e6m9", chunk=5, outer="e5m7"),
    lp.Accumulator("e4m3fn_sat"),
    lp.Accumulator("e5m7", "toward_zero", chunk=16),
    lp.Accumulator("e6m9", "stochastic", chunk=8),
    lp.Accumulator("e6m9", "stochastic", chunk=8, outer_rounding="nearest_even"),
    lp.Accumulator("e5m5", "stochastic", product="e4m3", product_rounding="stochastic", chunk=7),
    lp.Accumulator("e5m6", "stochastic", order="pairwise"),
    lp.Accumulator("e6m9", order="compensated", chunk=9),
    lp.Accumulator("e8m13", "toward_zero", block=8, aligned_bits=13),
]

host = pytest.mark.skipif(bool(cuda_host.reason()), reason=cuda_host.reason())


def output_shape(case: ConvCase) -> tuple[int, ...]:
    sizes = zip(
        case.input_shape[2:], case.weight_shape[2:], case.stride, case.padding, case.dilation,
        strict=True,
    )  # fmt: skip
    spatial = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes]
    return (case.input_shape[0], case.weight_shape[0], *spatial)


def few_bits(shape: tuple[int, ...]) -> Tensor:
    return torch.randint(-7, 8, shape) * torch.exp2(torch.randint(-4, 3, shape))


def special(shape: tuple[int, ...]) -> Tensor:
    """Values of few bits, zeros of both signs, an infinity, a NaN, a subnormal."""
    x = few_bits(shape).float()
    if x.numel() > 8:
        at = torch.randint(0, x.numel(), (4,))
        x.view(-1)[at] = torch.tensor([-0.0, float("inf"), -float("nan"), 1e-45])
    return x


def operands(name: str, case: ConvCase, make: Any) -> tuple[Tensor, ...]:
    """The three tensors of a pass: two operands, and fprop's bias."""
    x, w, dy = make(case.input_shape), make(case.weight_shape), make(output_shape(case))
    pair = {"fprop": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}[name]
    return tuple(t.float() for t in (*pair, make(case.weight_shape[:1])))


def run(
    backend: Any, name: str, case: ConvCase, tensors: tuple[Tensor, ...], acc: lp.Accumulator,
    fused: Fused | None = None, seed: Tensor = SEED,
) -> Tensor:  # fmt: skip
    left, right, bias = tensors
    third: Any = {"fprop": bias, "dgrad": list(case.input_shape), "wgrad": list(case.weight_shape)}
    geometry = (list(case.stride), list(case.padding), list(case.dilation), case.groups)
    arguments = (left, right, third[name], *geometry, acc.to_ints(), seed, ROLE)
    extra = {} if fused is None else {"fused": fused}
    return getattr(backend, f"conv_{name}")(*arguments, **extra)


@host
class TestOnHost:
    @pytest.fixture(autouse=True)
    def kernels(self):
        with cuda_host.on_host() as loaded:
            self.loaded = loaded
            yield

    @pytest.mark.parametrize("acc", KERNELS, ids=cases.ids)
    @pytest.mark.parametrize("name", PASSES)
    @pytest.mark.parametrize("make", [few_bits, torch.randn, special], ids=lambda m: m.__name__)
    def test_all_geometries_match_the_reference(self, name: str, acc: lp.Accumulator, make: Any):
        for label, case in ALL_CASES.items():
            tensors = operands(name, case, make)
            want = run(REFERENCE, name, case, tensors, acc)
            assert_bit_equal(run(BACKEND, name, case, tensors, acc), want, label)

    @pytest.mark.parametrize("acc", ALL_ORDERS, ids=cases.ids)
    def test_all_accumulators_match_the_reference(self, acc: lp.Accumulator):
        case = ConvCase((2, 4, 5, 6), (6, 2, 3, 3), (2, 1), (1, 2), (1, 2), 2)
        for name in PASSES:
            tensors = operands(name, case, torch.randn)
            want = run(REFERENCE, name, case, tensors, acc)
            assert_bit_equal(run(BACKEND, name, case, tensors, acc), want, name)

    @pytest.mark.parametrize("name", PASSES)
    def test_operands_and_result_are_rounded(self, name: str):
        case, acc = cases.CONV_CASES["conv2d_stride"], lp.Accumulator("e6m9")
        tensors = operands(name, case, torch.randn)
        formats = ("e4m3", "e5m2", "e3m4")
        fused = Fused(*(Quantizer(fmt).to_ints() for fmt in formats))
        got = run(BACKEND, name, case, tensors, acc, fused)
        rounded = [lp.quantize(t, f) for t, f in zip(tensors[:2], formats, strict=False)]
        want = run(REFERENCE, name, case, (*rounded, tensors[2]), acc)
        assert_bit_equal(got, lp.quantize(want, formats[2]))

    @pytest.mark.parametrize("name", PASSES)
    def test_any_strides(self, name: str):
        case, acc = cases.CONV_CASES["conv2d_dilation"], lp.Accumulator("e5m10", chunk=4)
        tensors = operands(name, case, torch.randn)
        strided = (tensors[0].to(memory_format=torch.channels_last), tensors[1].mT.contiguous().mT)
        want = run(REFERENCE, name, case, tensors, acc)
        assert_bit_equal(run(BACKEND, name, case, (*strided, tensors[2]), acc), want)

    @pytest.mark.parametrize("name", PASSES)
    def test_several_tiles(self, name: str):
        case = ConvCase((1, 6, 13, 12), (150, 6, 5, 5), (1, 1), (2, 2), (1, 1))
        tensors, acc = operands(name, case, few_bits), lp.Accumulator("e6m9")
        want = run(lp.backends.get("cpu"), name, case, tensors, acc)
        assert_bit_equal(run(BACKEND, name, case, tensors, acc), want)

    def test_certified_kernels_keep_what_they_did(self):
        case = cases.CONV_CASES["conv2d"]
        for name in PASSES:
            for acc in (lp.Accumulator("e6m9"), lp.Accumulator("e5m10"), lp.Accumulator("fp32")):
                run(BACKEND, name, case, operands(name, case, few_bits), acc)
                tier, redone = self.loaded.last_tier()
                assert tier > 0 and not redone, (name, acc)

    @pytest.mark.parametrize("acc", ["e5m10", "fp32", "fp32:toward_zero"])
    def test_zeros_beside_padding_are_done_once(self, acc: str):
        case = cases.CONV_CASES["conv2d"]
        x, w, bias = operands("fprop", case, few_bits)
        w[1] = 0
        run(BACKEND, "fprop", case, (x, w, bias), lp.accumulator(acc))
        tier, redone = self.loaded.last_tier()
        assert tier > 0 and not redone

    @pytest.mark.parametrize("channels_last", [False, True], ids=["channels first", "last"])
    @pytest.mark.parametrize("fold", [1, 2, 3])
    def test_frames(self, fold: int, channels_last: bool):
        image = torch.randn(2, 5, 3, 4, 7)
        frame = Frame((4, 6, 9), (1, -1, 2), fold, channels_last, 1, 5)
        facts = _products.new_facts(image.device)
        got = _conv.framed(image, frame, facts[0], ())
        assert got.absent
        assert_bit_equal(got.values.view(torch.int32), in_frame(image.numpy(), frame))


def random_case(number: int) -> tuple[str, ConvCase, lp.Accumulator, float]:
    """One of the cases (pass, convolution, accumulator, scale) that a GPU is checked on."""
    source = np.random.default_rng(number)

    def some(low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(int(i) for i in source.integers(low, high, count))

    dims, groups = some(1, 4, 1)[0], some(1, 4, 1)[0]
    kernel, stride, dilation = (some(1, high, dims) for high in (4, 4, 3))
    padding, spare = some(0, 4, dims), some(0, 12 // dims + 4, dims)
    size = [d * (k - 1) + 1 + more for d, k, more in zip(dilation, kernel, spare, strict=True)]
    channels, out_channels = (groups * i for i in some(1, 40, 2))
    case = ConvCase(
        (some(1, 4, 1)[0], channels, *size), (out_channels, channels // groups, *kernel),
        stride, padding, dilation, groups,
    )  # fmt: skip
    acc = ALL_ORDERS[source.integers(len(ALL_ORDERS))]
    return PASSES[source.integers(3)], case, acc, float(2.0 ** source.integers(-12, 12))


@pytest.mark.cuda
@pytest.mark.skipif(not BACKEND.available(), reason=f"cuda: {BACKEND.why_not()}")
class TestOnDevice:
    def check(self, name: str, case: ConvCase, tensors: tuple, acc: lp.Accumulator, where: str):
        want = run(lp.backends.get("cpu"), name, case, tensors, acc)
        there = tuple(t.cuda() for t in tensors)
        assert_bit_equal(run(BACKEND, name, case, there, acc), want, where)

    @pytest.mark.parametrize("acc", KERNELS, ids=cases.ids)
    @pytest.mark.parametrize("make", [few_bits, torch.randn, special], ids=lambda m: m.__name__)
    def test_all_geometries_match_the_cpu(self, acc: lp.Accumulator, make: Any):
        for name in PASSES:
            for label, case in ALL_CASES.items():
                self.check(name, case, operands(name, case, make), acc, f"{name} {label}")

    @pytest.mark.parametrize("first", range(0, 200, 50))
    def test_random_cases_match_the_cpu(self, first: int):
        for number in range(first, first + 50):
            name, case, acc, scale = random_case(number)
            tensors = tuple(scale * t for t in operands(name, case, torch.randn))
            self.check(name, case, tensors, acc, f"case {number}: {name} {case} {acc}")

    def test_channels_last_and_a_seed_on_the_device(self):
        case, acc = cases.CONV_CASES["conv2d_groups"], lp.Accumulator("e5m4", "stochastic")
        for name in PASSES:
            tensors = operands(name, case, torch.randn)
            want = run(lp.backends.get("cpu"), name, case, tensors, acc)
            there = (tensors[0].cuda().to(memory_format=torch.channels_last), tensors[1].cuda())
            got = run(BACKEND, name, case, (*there, tensors[2].cuda()), acc, seed=SEED.cuda())
            assert_bit_equal(got, want, name)


def test_random_cases_are_convolutions():
    for number in range(200):
        _, case, _, _ = random_case(number)
        assert math.prod(output_shape(case)) > 0
