"""Convolutions whose sums leave out the taps between strides, and those of few channels, whose
lanes hold positions or the channels of several groups. The results are compared with the reference
to the bit."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpkernels.arithmetic import Accumulator
from lpkernels.backends import _reference, cpu
from tests.backends.cpu.test_conv_kernels import (
    arguments,
    check,
    check_values,
    conv_cases,
    output_shape,
    values,
)
from tests.backends.cpu.test_cpu import threads
from tests.cases import ConvCase, ids
from tests.compare import assert_bit_equal
from tests.support.processor import isa

__all__ = ["isa", "threads"]

pytestmark = pytest.mark.skipif(
    not cpu.BACKEND.available(), reason=f"cpu backend: {cpu.BACKEND.why_not()}"
)

#: Sums in which positions count, in every way: chunks that a phase of a stride leaves empty or that
#: end within a block, draws of sums, of products and of the outer sums, zeros of both signs.
POSITIONED = [
    Accumulator("e6m9", chunk=1),
    Accumulator("e6m9", chunk=4, outer="e4m3"),
    Accumulator("e6m9", chunk=64),
    Accumulator("e5m10", chunk=2, outer="e5m2"),
    Accumulator("e5m2", "toward_negative", chunk=3, outer="e4m3"),
    Accumulator("e5m3", "to_odd", chunk=5, outer="e4m2none_nosub_sat"),
    Accumulator("fp32", chunk=3, outer="e5m4"),
    Accumulator("e5m4", "stochastic", random_bits=8, chunk=3, outer="e5m2"),
    Accumulator("e5m4", "stochastic", random_bits=13, rng="philox"),
    Accumulator("e5m4", "stochastic", random_bits=24),
    Accumulator("e6m9", product="e4m2", product_rounding="stochastic", random_bits=3, chunk=6),
    Accumulator("e5m6", "stochastic", product="e4m2", product_rounding="stochastic", random_bits=5),
    Accumulator("fixed10_f4", chunk=4),
    Accumulator("fixed10_f4_wrap", chunk=2, outer="fixed9_f3"),
]


@pytest.mark.parametrize("acc", POSITIONED, ids=ids)
def test_strided_dgrad_counts_the_taps_that_it_leaves_out(acc: Accumulator, isa: str) -> None:
    """The phases have one tap, a few or none, and some sums underflow to -0 in the outer format."""
    cases = (
        ConvCase((1, 2, 9, 8), (21, 2, 3, 3), (2, 2), (1, 1), (1, 1)),
        ConvCase((1, 35, 4, 5), (5, 35, 1, 3), (3, 4), (0, 1), (1, 1)),
        ConvCase((1, 5, 9, 8), (10, 1, 3, 2), (2, 3), (1, 1), (1, 1), 5),
        ConvCase((1, 2, 11), (40, 2, 4), (3,), (2,), (2,)),
    )
    for case in cases:
        generator = torch.Generator().manual_seed(7)
        w = values(case.weight_shape, generator)
        grad = values(output_shape(case), generator)
        tail = arguments(case, acc)
        for scale in (1.0, 2.0**-6, 2.0**-12, 2.0**9):
            got = cpu.BACKEND.conv_dgrad(grad * scale, w, list(case.input_shape), *tail)
            want = _reference.BACKEND.conv_dgrad(grad * scale, w, list(case.input_shape), *tail)
            assert_bit_equal(got, want, f"{case} {acc} times {scale}")


def test_an_empty_chunk_makes_an_outer_sum_of_minus_zero_plus_zero() -> None:
    """The sums are worked out by hand: the first of two chunks underflows to -0, and the second has
    no product."""
    case = ConvCase((1, 1, 2), (1, 1, 2), (2,), (0,), (1,))
    w, grad = torch.ones(case.weight_shape), torch.full(output_shape(case), -(2.0**-30))
    for rounding, sign in (("nearest_even", False), ("toward_negative", True)):
        acc = Accumulator("fp32", rounding, chunk=1, outer="e4m3")
        got = cpu.BACKEND.conv_dgrad(grad, w, [1, 1, 2], *arguments(case, acc))
        want = _reference.BACKEND.conv_dgrad(grad, w, [1, 1, 2], *arguments(case, acc))
        assert_bit_equal(got, want)
        if rounding == "nearest_even":
            # dx[0] is the product of tap 0 and then an empty chunk; dx[1] has the two in the other
            # order.
            assert torch.signbit(got).tolist() == [[[sign, True]]]


#: Operands that no certificate covers, or that a certificate covers only in some blocks: ties,
#: overflow, zeros of both signs.
HARD = {
    "wide": lambda x: x * torch.exp2(torch.linspace(-40, 40, x.numel()).reshape(x.shape).round()),
    "large": lambda x: x * 2.0**13,
    "one_large": lambda x: torch.where(torch.arange(x.numel()).reshape(x.shape) == 5, x * 2e4, x),
    "tiny": lambda x: x * 2.0**-14,
    "signed_zeros": lambda x: torch.where(x.abs() < 0.3, -0.0 * x.sign(), x),
    "fine": lambda x: x * (1 + 2.0**-20),
    "specials": lambda x: torch.where(
        torch.arange(x.numel()).reshape(x.shape) % 61 == 3,
        torch.tensor([math.inf, -math.inf, math.nan, -0.0])[(x.abs() * 16).long() % 4],
        x,
    ),
}


FEW_CHANNELS = {
    "depthwise": ConvCase((1, 18, 7, 9), (18, 1, 3, 3), (1, 1), (1, 1), (1, 1), 18),
    "small_groups": ConvCase((1, 8, 7, 6), (12, 2, 3, 3), (2, 2), (1, 1), (1, 1), 4),
    "few_channels": ConvCase((1, 2, 7, 17), (14, 2, 3, 3), (1, 1), (1, 1), (1, 1)),
    "few_channels_stride": ConvCase((1, 2, 9, 15), (9, 2, 3, 3), (2, 2), (1, 1), (1, 1)),
    # Lines of sixteen positions and more, which overlap at the end.
    "lines": ConvCase((2, 2, 4, 35), (3, 2, 3, 3), (1, 1), (1, 1), (1, 1)),
    "lines_stride": ConvCase((1, 3, 5, 38), (4, 3, 3, 3), (2, 2), (1, 1), (1, 1)),
    "lines_far": ConvCase((1, 2, 40), (2, 1, 3), (1,), (9,), (7,), 2),
}


@pytest.mark.parametrize("data", HARD)
@pytest.mark.parametrize("name", FEW_CHANNELS)
def test_few_channels_with_hard_values(name: str, data: str, isa: str) -> None:
    case = FEW_CHANNELS[name]
    generator = torch.Generator().manual_seed(11)
    shapes = (case.input_shape, case.weight_shape, output_shape(case))
    x, w, grad = (HARD[data](values(shape, generator)) for shape in shapes)
    bias = values(case.weight_shape[:1], generator)
    for acc in (
        Accumulator("e5m10", chunk=7),
        Accumulator("e6m9"),
        Accumulator("e4m3fn", "toward_negative"),
        Accumulator("e5m6", "stochastic", random_bits=8),
        Accumulator("fp32"),
    ):
        check(case, acc, x, w, grad, bias)


def test_more_lines_of_one_channel_than_a_block_has(isa: str) -> None:
    case = ConvCase((80, 1, 1, 230), (1, 1, 1, 3), (1, 1), (0, 1), (1, 1))
    check_values(case, Accumulator("e6m9"), 5)


def test_phases_that_share_windows(isa: str, threads: Callable[[int], None]) -> None:
    """The phases are of one grid and of two, and the channels fill two blocks of k. Images come
    alone and among so many others that there are several blocks, which threads take in turns."""
    acc = Accumulator("e6m9", chunk=7)
    for case, images in (
        (ConvCase((1, 3, 8, 76), (9, 3, 5, 5), (2, 2), (2, 2), (1, 1)), 50),
        (ConvCase((1, 2, 3, 33), (512, 2, 3, 3), (2, 2), (1, 1), (1, 1)), 3),
    ):
        generator = torch.Generator().manual_seed(3)
        w = values(case.weight_shape, generator)
        grad = values((images, *output_shape(case)[1:]), generator)
        one, tail = list(case.input_shape), arguments(case, acc)
        alone = [cpu.BACKEND.conv_dgrad(image, w, one, *tail) for image in grad.split(1)]
        want = _reference.BACKEND.conv_dgrad(grad[:1], w, one, *tail)
        assert_bit_equal(alone[0], want)
        for count in (1, 2, 3):
            threads(count)
            got = cpu.BACKEND.conv_dgrad(grad, w, [images, *one[1:]], *tail)
            assert_bit_equal(got, torch.cat(alone), f"{case} on {count} threads")


#: Convolutions with one tap that is never on padding: the stride divides some images and not
#: others, and there are 1-d and 3-d ones.
POINTS = {
    "stride": ConvCase((3, 5, 5, 7), (9, 5, 1, 1), (2, 2), (0, 0), (1, 1)),
    "stride_even": ConvCase((2, 18, 8, 12), (20, 18, 1, 1), (2, 2), (0, 0), (1, 1)),
    "stride_one": ConvCase((2, 3, 6, 8), (34, 3, 1, 1), (1, 1), (0, 0), (1, 1)),
    "beyond_the_image": ConvCase((2, 3, 4, 5), (4, 3, 1, 1), (3, 6), (0, 0), (1, 1)),
    "groups": ConvCase((2, 24, 19), (24, 12, 1), (3,), (0,), (1,), 2),
    "small_groups": ConvCase((2, 8, 5, 5), (8, 2, 1, 1), (2, 2), (0, 0), (1, 1), 4),
    "volume": ConvCase((2, 3, 3, 4, 5), (5, 3, 1, 1, 1), (2, 3, 2), (0, 0, 0), (1, 1, 1)),
}


@pytest.mark.parametrize("name", POINTS)
def test_kernels_of_one_tap(name: str, isa: str) -> None:
    for acc in (Accumulator("e6m9", chunk=2), Accumulator("e5m10"), *POSITIONED[5:9]):
        check_values(POINTS[name], acc, 3)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=conv_cases(), acc=st.sampled_from(POSITIONED), seed=st.integers(0, 1000))
def test_random_shapes(case: ConvCase, acc: Accumulator, seed: int) -> None:
    check_values(case, acc, seed)
