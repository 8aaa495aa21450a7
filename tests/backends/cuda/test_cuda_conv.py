"""Convolutions of the cuda adapter, on the host and on a device."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.backends._conv_geometry import Frame
from lpkernels.backends.cuda import BACKEND, _conv, _products
from tests import cases
from tests.cases import ConvCase
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.conv_frames import ALL_CASES, in_frame
from tests.support.cuda_host import needs_device
from tests.support.products import (
    KERNELS,
    PASSES,
    assert_pass,
    convolve,
    few_bits,
    output_shape,
    special,
    tensors_of,
)

CPU = lp.backends.get("cpu")


@pytest.mark.parametrize("make", [few_bits, torch.randn, special], ids=lambda m: m.__name__)
def test_all_geometries_match_the_cpu(device: str, make) -> None:
    """On the host the values take turns with the accumulators."""
    turn = (few_bits, torch.randn, special).index(make)
    for case in ALL_CASES.values():
        tensors = tensors_of(case, make)
        for i, acc in enumerate(KERNELS):
            for name in PASSES if device == "cuda" else (PASSES[(turn + i) % 3],):
                assert_pass(BACKEND, name, case, tensors, acc, device, by="cpu")


@each("acc", cases.ACCUMULATORS)
def test_all_accumulators_match_the_cpu(acc: lp.Accumulator, device: str) -> None:
    case = ConvCase((2, 4, 5, 6), (6, 2, 3, 3), (2, 1), (1, 2), (1, 2), 2)
    for name in PASSES:
        assert_pass(BACKEND, name, case, tensors_of(case, torch.randn), acc, device, by="cpu")


@each("name", PASSES)
def test_several_tiles(name: str, device: str) -> None:
    case = ConvCase((1, 6, 13, 12), (150, 6, 5, 5), (1, 1), (2, 2), (1, 1))
    tensors, acc = tensors_of(case, few_bits), lp.Accumulator("e6m9")
    assert_pass(BACKEND, name, case, tensors, acc, device, by="cpu")


def test_certified_kernels_keep_what_they_did(host) -> None:
    case = cases.CONV_CASES["conv2d"]
    x, w, dy, bias = tensors_of(case, few_bits)
    beside_padding = w.clone()
    beside_padding[1] = 0
    for weight in (w, beside_padding):
        for name in PASSES:
            for text in ("e6m9", "e5m10", "fp32", "fp32:toward_zero"):
                acc = lp.accumulator(text)
                convolve(BACKEND, name, case, (x, weight, dy, bias), acc)
                tier, redone = host.last_tier()
                assert tier > 0 and not redone, (name, acc)


@pytest.mark.parametrize("channels_last", [False, True], ids=["channels first", "last"])
def test_frames(channels_last: bool, host) -> None:
    image = torch.randn(2, 5, 3, 4, 7)
    for fold in (1, 2, 3):
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
    acc = cases.ACCUMULATORS[source.integers(len(cases.ACCUMULATORS))]
    return PASSES[source.integers(3)], case, acc, float(2.0 ** source.integers(-12, 12))


def test_random_cases_are_convolutions() -> None:
    for number in range(200):
        _, case, _, _ = random_case(number)
        assert math.prod(output_shape(case)) > 0


@needs_device
@each("number", range(200))
def test_random_cases_match_the_cpu(number: int) -> None:
    name, case, acc, scale = random_case(number)
    x, w, dy, bias = (scale * t for t in tensors_of(case, torch.randn))
    assert_pass(BACKEND, name, case, (x, w, dy, bias), acc, "cuda", by="cpu")


@needs_device
@each("name", PASSES)
def test_channels_last_and_a_seed_on_the_device(name: str) -> None:
    case, acc = cases.CONV_CASES["conv2d_groups"], lp.Accumulator("e5m4", "stochastic")
    x, w, dy, bias = tensors_of(case, torch.randn)
    want = convolve("cpu", name, case, (x, w, dy, bias), acc)
    x, w, dy, bias = (t.cuda() for t in (x, w, dy, bias))
    x, dy = (t.to(memory_format=torch.channels_last) for t in (x, dy))
    seed = torch.tensor(-1234567890123456789, device="cuda")
    assert_bit_equal(convolve(BACKEND, name, case, (x, w, dy, bias), acc, seed=seed), want, name)
