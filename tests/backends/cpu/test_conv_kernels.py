"""Convolutions of the compiled kernels where packing goes wrong first: memory layouts, borders,
absent taps, strides and the taps between them, keys of draws, lanes that hold positions or the
channels of several groups. The results are compared with the reference to the bit."""

import math
from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Accumulator
from tests.backends.cpu_products import ROLE, SEED, assert_convolution
from tests.backends.crossed import LAYOUTS
from tests.cases import ConvCase, accumulators_named
from tests.compare import assert_bit_equal
from tests.support.processor import Isas, Threads
from tests.support.products import POSITIONED

#: Sums for which a product's place matters and sums for which it does not, with zeros of both
#: signs.
SUMS = accumulators_named("""
    e6m9 e5m4:toward_negative e5m10:product=e4m3 e6m9_chunk7 e5m6:stochastic
    e5m6:product=e4m3:product_rounding=stochastic:bits=16 fixed12_f6_wrap
""")
#: Convolutions larger than those that hypothesis draws.
GEOMETRY: dict[str, ConvCase] = {
    # More lines than a block of rows, more channels than a panel of lanes or a block of k.
    "wide": ConvCase((1, 3, 5, 70), (20, 3, 3, 3), (1, 1), (1, 1), (1, 1)),
    "deep": ConvCase((2, 40, 3, 4), (17, 40, 3, 3), (1, 1), (1, 1), (1, 1)),
    "many_small_images": ConvCase((40, 2, 2, 3), (3, 2, 3, 3), (1, 1), (1, 1), (1, 1)),
    "many_lines": ConvCase((80, 1, 1, 230), (1, 1, 1, 3), (1, 1), (0, 1), (1, 1)),
    "stride_beyond_image": ConvCase((1, 2, 3, 4), (3, 2, 3, 3), (5, 7), (1, 1), (1, 1)),
    "stride_2": ConvCase((2, 3, 9, 8), (18, 3, 3, 3), (2, 2), (1, 1), (1, 1)),
    "kernel_9": ConvCase((1, 2, 12, 11), (3, 2, 9, 9), (1, 1), (4, 4), (1, 1)),
    "kernel_beyond_a_block_of_k": ConvCase((1, 2, 20, 18), (3, 2, 17, 17), (1, 2), (3, 8), (1, 1)),
    "window_too_large": ConvCase((1, 1, 560, 560), (1, 1, 2, 2), (550, 550), (0, 0), (558, 559)),
    # More groups than a panel of lanes; more positions than a block of rows has.
    "depthwise_many": ConvCase((3, 19, 20, 22), (19, 1, 3, 3), (1, 1), (1, 1), (1, 1), 19),
    "depthwise_dilation": ConvCase((2, 17, 13, 15), (17, 1, 3, 5), (2, 3), (2, 4), (2, 1), 17),
    "depthwise_kernel_17": ConvCase((1, 2, 18, 19), (2, 1, 17, 17), (1, 1), (8, 8), (1, 1), 2),
    "depthwise_window": ConvCase((1, 3, 140, 140), (3, 1, 2, 2), (130, 130), (0, 0), (131, 139), 3),
    "small_groups": ConvCase((2, 18, 9, 7), (27, 2, 3, 3), (1, 1), (1, 1), (1, 1), 9),
    "groups_of_a_panel": ConvCase((1, 18, 6, 7), (18, 9, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    # Lines of sixteen positions and more, which overlap at the end.
    "lines": ConvCase((2, 2, 4, 35), (3, 2, 3, 3), (1, 1), (1, 1), (1, 1)),
    "lines_stride": ConvCase((1, 3, 5, 38), (4, 3, 3, 3), (2, 2), (1, 1), (1, 1)),
    "lines_far": ConvCase((1, 2, 40), (2, 1, 3), (1,), (9,), (7,), 2),
    # One row of channels meets more panels of positions than the kernels take at a time.
    "one_channel": ConvCase((2, 1, 13, 31), (1, 1, 3, 3), (1, 1), (1, 1), (1, 1)),
    "kernel_7": ConvCase((1, 3, 17, 19), (9, 3, 7, 7), (2, 2), (3, 3), (1, 1)),
    "33_channels": ConvCase((1, 33, 5, 6), (34, 33, 3, 3), (2, 2), (1, 1), (1, 1)),
    "phases_without_taps": ConvCase((2, 3, 9, 10), (5, 3, 2, 3), (4, 2), (1, 1), (2, 2)),
    "1d_long_kernel": ConvCase((1, 2, 700), (2, 2, 300), (1,), (10,), (1,)),
    "3d": ConvCase((2, 3, 5, 4, 6), (4, 3, 3, 2, 3), (2, 1, 2), (1, 1, 2), (1, 2, 1)),
    # Kernels of one tap that is never on padding; the stride divides the first image only.
    "points": ConvCase((2, 18, 8, 12), (20, 18, 1, 1), (2, 2), (0, 0), (1, 1)),
    "points_odd": ConvCase((3, 5, 5, 7), (9, 5, 1, 1), (2, 2), (0, 0), (1, 1)),
    "points_many": ConvCase((2, 3, 6, 8), (34, 3, 1, 1), (1, 1), (0, 0), (1, 1)),
    "points_of_groups": ConvCase((2, 24, 19), (24, 12, 1), (3,), (0,), (1,), 2),
}


def short_values(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Multiples of 2^-4 with three significant bits, as quantised operands have, some of them 0."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for shape in shapes:
        x = torch.randint(-7, 8, shape, generator=generator).float()
        made.append(x * torch.exp2(torch.randint(-4, 1, shape, generator=generator).float()))
    return made


def assert_drawn(
    ways: Iterable[str], case: ConvCase, acc: Accumulator, seed: int = 0, layout: str = "dense"
) -> None:
    """Every pass of a convolution of short values, with a bias, gives the reference's bits."""
    shapes = (case.input_shape, case.weight_shape, case.output_shape, case.weight_shape[:1])
    operands = map(LAYOUTS[layout], short_values(*shapes, seed=seed))
    assert_convolution(ways, case, acc, *operands)


HARD_SUMS = accumulators_named("e5m10_chunk7 e6m9 e4m3fn:toward_negative e5m6:stochastic fp32")
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


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry(name: str, isas: Isas) -> None:
    """Each convolution takes four of the sums, three layouts and two kinds of hard operands in
    turn."""
    number, case, layouts = list(GEOMETRY).index(name), GEOMETRY[name], list(LAYOUTS)
    for step in (0, 2, 4):
        layout = layouts[(number + step) % len(layouts)]
        assert_drawn(isas, case, SUMS[(number + step) % len(SUMS)], layout=layout)
    assert_drawn(isas, case, POSITIONED[number % len(POSITIONED)], 3)
    shapes = (case.input_shape, case.weight_shape, case.output_shape, case.weight_shape[:1])
    *operands, bias = short_values(*shapes, seed=11)
    for step in (0, 3):
        kind = list(HARD.values())[(number + step) % len(HARD)]
        acc = HARD_SUMS[(number + step) % len(HARD_SUMS)]
        assert_convolution(isas, case, acc, *map(kind, operands), bias)


@pytest.mark.parametrize("acc", SUMS, ids=str)
def test_zeros_beside_padding_keep_their_sign(acc: Accumulator, isas: Isas) -> None:
    """Sums are -0 or underflow from below, and absent taps come after them."""
    case = ConvCase((1, 1, 3, 3), (1, 1, 3, 3), (1, 1), (1, 1), (1, 1))
    for scale in (0.0, 2.0**-20, 2.0**-60):
        x, grad = torch.full(case.input_shape, scale), torch.full(case.output_shape, scale)
        w = torch.ones(case.weight_shape)
        assert_convolution(isas, case, acc, x, -w, grad)
        assert_convolution(isas, case, acc, -x, scale * w, -grad)


#: Positions of lines as lanes, channels as rows, positions as rows, channels of groups as lanes.
@pytest.mark.parametrize("channels, groups", [(3, 1), (20, 1), (40, 1), (6, 2)])
def test_a_block_of_k_that_begins_with_minus_zero_passes_over_absent_taps(channels, groups, isas):
    """Every product of the first block underflows from below. The next block's certificate says
    that no sum is -0, so where a sum goes on from -0 the exact tier must see the marks."""
    case = ConvCase((1, 192 * groups, 4), (channels, 192, 3), (1,), (1,), (1,), groups)
    first = (torch.arange(192 * groups) % 192 < 96)[:, None]
    x = torch.where(first, -1.0, torch.tensor([0.0, 0.0, 1.0, 1.0])).expand(case.input_shape)
    w = torch.where(first[:192], 2.0**-60, torch.tensor([1.0, -1.0, -1.0]))
    w = w.expand(case.weight_shape)
    assert_convolution(isas, case, Accumulator("e6m9"), x, w, torch.ones(case.output_shape))


@pytest.mark.parametrize("acc", [SUMS[0], SUMS[4]], ids=str)
def test_result_does_not_depend_on_threads(acc: Accumulator, threads: Threads) -> None:
    dense = ConvCase((3, 20, 9, 8), (24, 20, 3, 3), (2, 2), (1, 1), (1, 1))
    for case in (dense, GEOMETRY["depthwise_many"], GEOMETRY["one_channel"]):
        assert_drawn(threads, case, acc)


def test_an_empty_chunk_makes_an_outer_sum_of_minus_zero_plus_zero(isas: Isas) -> None:
    """By hand: the first chunk underflows to -0, and the second has no product."""
    case = ConvCase((1, 1, 2), (1, 1, 2), (2,), (0,), (1,))
    x, w, grad = torch.zeros(1, 1, 2), torch.ones(1, 1, 2), torch.full((1, 1, 1), -(2.0**-30))
    for rounding in ("nearest_even", "toward_negative"):
        acc = Accumulator("fp32", rounding, chunk=1, outer="e4m3")
        assert_convolution(isas, case, acc, x, w, grad, passes=["dgrad"])
        if rounding == "nearest_even":
            # dx[0] is the product of tap 0 and then an empty chunk; dx[1] has the two in the other
            # order.
            dx = input_gradient(grad, w, x.shape, case, acc)
            assert torch.signbit(dx).tolist() == [[[False, True]]]


def test_phases_that_share_windows(isas: Isas, threads: Threads) -> None:
    """The phases are of one grid and of two, and the channels fill two blocks of k. Images come
    alone and among so many others that there are several blocks, which threads take in turns."""
    acc = Accumulator("e6m9", chunk=7)
    for case, images in (
        (ConvCase((1, 3, 8, 76), (9, 3, 5, 5), (2, 2), (2, 2), (1, 1)), 50),
        (ConvCase((1, 2, 3, 33), (512, 2, 3, 3), (2, 2), (1, 1), (1, 1)), 3),
    ):
        w, grad = short_values(case.weight_shape, (images, *case.output_shape[1:]), seed=3)
        x = torch.zeros(images, *case.input_shape[1:])
        assert_convolution(isas, case, acc, x[:1], w, grad[:1], passes=["dgrad"])
        for isa in isas:
            alone = [input_gradient(image, w, x[:1].shape, case, acc) for image in grad.split(1)]
            for count in threads:
                got = input_gradient(grad, w, x.shape, case, acc)
                assert_bit_equal(got, torch.cat(alone), f"{isa} {case} on {count}")


def input_gradient(
    grad: Tensor, w: Tensor, shape: Sequence[int], case: ConvCase, acc: Accumulator
) -> Tensor:
    conv = ops.Convolution(*case.geometry)
    product = ops.Product("conv_dgrad", grad, w, shape, conv)
    return ops.multiply(product, ops.How(acc.to_ints(), SEED, ROLE), "cpu")
