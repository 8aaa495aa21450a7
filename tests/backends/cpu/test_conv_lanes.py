"""Convolutions whose sums leave out the taps between strides, and those of few channels, whose
lanes hold positions or the channels of several groups. The results are compared with the reference
to the bit."""

import math

import torch

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.backends import cpu
from tests.cases import ConvCase
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.convolutions import POSITIONED, assert_drawn, short_values
from tests.support.cpu_products import ROLE, SEED, assert_convolution, assert_same
from tests.support.processor import Isas, Threads


@each("acc", POSITIONED)
def test_strided_dgrad_counts_the_taps_that_it_leaves_out(acc: Accumulator, isas: Isas) -> None:
    """The phases have one tap, a few or none, and some sums underflow to -0 in the outer format."""
    for case in (
        ConvCase((1, 2, 9, 8), (21, 2, 3, 3), (2, 2), (1, 1), (1, 1)),
        ConvCase((1, 35, 4, 5), (5, 35, 1, 3), (3, 4), (0, 1), (1, 1)),
        ConvCase((1, 5, 9, 8), (10, 1, 3, 2), (2, 3), (1, 1), (1, 1), 5),
        ConvCase((1, 2, 11), (40, 2, 4), (3,), (2,), (2,)),
    ):
        x, w, grad = short_values(case.input_shape, case.weight_shape, case.output_shape, seed=7)
        for scale in (1.0, 2.0**-6, 2.0**-12, 2.0**9):
            assert_convolution(isas, case, acc, x, w, grad * scale, passes=["conv_dgrad"])


def test_an_empty_chunk_makes_an_outer_sum_of_minus_zero_plus_zero(isas: Isas) -> None:
    """The sums are worked out by hand: the first of two chunks underflows to -0, and the second has
    no product."""
    w, grad = torch.ones(1, 1, 2), torch.full((1, 1, 1), -(2.0**-30))
    geometry = ([1, 1, 2], [2], [0], [1], 1)
    for rounding in ("nearest_even", "toward_negative"):
        ints = Accumulator("fp32", rounding, chunk=1, outer="e4m3").to_ints()
        dx = assert_same(isas, "conv_dgrad", grad, w, *geometry, ints, SEED, ROLE)
        if rounding == "nearest_even":
            # dx[0] is the product of tap 0 and then an empty chunk; dx[1] has the two in the other
            # order.
            assert torch.signbit(dx).tolist() == [[[False, True]]]


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


@each("data", HARD)
@each("name", FEW_CHANNELS)
def test_few_channels_with_hard_values(name: str, data: str, isas: Isas) -> None:
    case = FEW_CHANNELS[name]
    shapes = (case.input_shape, case.weight_shape, case.output_shape, case.weight_shape[:1])
    *operands, bias = short_values(*shapes, seed=11)
    operands = [HARD[data](x) for x in operands]
    for acc in ("e5m10_chunk7", "e6m9", "e4m3fn:toward_negative", "e5m6:stochastic", "fp32"):
        assert_convolution(isas, case, accumulator(acc), *operands, bias)


def test_more_lines_of_one_channel_than_a_block_has(isas: Isas) -> None:
    case = ConvCase((80, 1, 1, 230), (1, 1, 1, 3), (1, 1), (0, 1), (1, 1))
    assert_drawn(isas, case, Accumulator("e6m9"), 5)


def test_phases_that_share_windows(isas: Isas, threads: Threads) -> None:
    """The phases are of one grid and of two, and the channels fill two blocks of k. Images come
    alone and among so many others that there are several blocks, which threads take in turns."""
    acc = Accumulator("e6m9", chunk=7)
    for case, images in (
        (ConvCase((1, 3, 8, 76), (9, 3, 5, 5), (2, 2), (2, 2), (1, 1)), 50),
        (ConvCase((1, 2, 3, 33), (512, 2, 3, 3), (2, 2), (1, 1), (1, 1)), 3),
    ):
        w, grad = short_values(case.weight_shape, (images, *case.output_shape[1:]), seed=3)
        one, tail = list(case.input_shape), (*case.geometry, acc.to_ints(), SEED, ROLE)
        assert_same(isas, "conv_dgrad", grad[:1], w, one, *tail)
        for isa in isas:
            alone = [cpu.BACKEND.conv_dgrad(image, w, one, *tail) for image in grad.split(1)]
            for count in threads:
                got = cpu.BACKEND.conv_dgrad(grad, w, [images, *one[1:]], *tail)
                assert_bit_equal(got, torch.cat(alone), f"{isa} {case} on {count}")


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


@each("name", POINTS)
def test_kernels_of_one_tap(name: str, isas: Isas) -> None:
    for acc in (Accumulator("e6m9", chunk=2), Accumulator("e5m10"), *POSITIONED[5:9]):
        assert_drawn(isas, POINTS[name], acc, 3)
