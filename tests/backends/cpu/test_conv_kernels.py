"""Convolutions of the compiled kernels where packing goes wrong first: memory layouts, borders,
absent taps, strides, keys of draws. The results are compared with the reference to the bit."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lpkernels.arithmetic import Accumulator
from lpkernels.backends import _reference, cpu
from tests.cases import ConvCase, ids
from tests.compare import assert_bit_equal
from tests.support.processor import isa

__all__ = ["isa"]

pytestmark = pytest.mark.skipif(
    not cpu.BACKEND.available(), reason=f"cpu backend: {cpu.BACKEND.why_not()}"
)

SEED = torch.tensor(987654321987654321)
ROLE = 4
PASSES = ("conv_fprop", "conv_dgrad", "conv_wgrad")

#: Sums for which a product's place matters and sums for which it does not, with zeros of both
#: signs.
ACCUMULATORS = [
    Accumulator("e6m9"),
    Accumulator("e5m4", "toward_negative"),
    Accumulator("e5m10", product="e4m3"),
    Accumulator("e6m9", chunk=7),
    Accumulator("e5m6", "stochastic", random_bits=8),
    Accumulator("e5m6", product="e4m3", product_rounding="stochastic", random_bits=16),
    Accumulator("fixed12_f6_wrap"),
]


def values(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Multiples of 2^-4 with three significant bits, as quantised operands have, some of them 0."""
    x = torch.randint(-7, 8, shape, generator=generator).float()
    return x * torch.exp2(torch.randint(-4, 1, shape, generator=generator).float())


def arguments(case: ConvCase, acc: Accumulator) -> tuple[object, ...]:
    how = [list(v) for v in (case.stride, case.padding, case.dilation)]
    return (*how, case.groups, acc.to_ints(), SEED, ROLE)


def output_shape(case: ConvCase) -> tuple[int, ...]:
    spatial = [
        (size + 2 * pad - step * (taps - 1) - 1) // jump + 1
        for size, taps, jump, pad, step in zip(
            case.input_shape[2:],
            case.weight_shape[2:],
            case.stride,
            case.padding,
            case.dilation,
            strict=True,
        )
    ]
    return (case.input_shape[0], case.weight_shape[0], *spatial)


def operands(
    name: str, x: Tensor, w: Tensor, grad: Tensor, bias: Tensor | None
) -> tuple[object, ...]:
    return {
        "conv_fprop": (x, w, bias),
        "conv_dgrad": (grad, w, list(x.shape)),
        "conv_wgrad": (x, grad, list(w.shape)),
    }[name]


def check(
    case: ConvCase,
    acc: Accumulator,
    x: Tensor,
    w: Tensor,
    grad: Tensor,
    bias: Tensor | None = None,
) -> None:
    """Every pass is compared with the reference, which reads contiguous copies."""
    tail = arguments(case, acc)
    plain = [t.contiguous() for t in (x, w, grad)]
    for name in PASSES:
        got = getattr(cpu.BACKEND, name)(*operands(name, x, w, grad, bias), *tail)
        want = getattr(_reference.BACKEND, name)(*operands(name, *plain, bias), *tail)
        assert_bit_equal(got, want, f"{name} {case} {acc}")


def check_values(case: ConvCase, acc: Accumulator, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = (case.input_shape, case.weight_shape, output_shape(case))
    x, w, grad = (values(shape, generator) for shape in shapes)
    check(case, acc, x, w, grad, values(case.weight_shape[:1], generator))


GEOMETRY: dict[str, ConvCase] = {
    # More lines than a block of rows, more channels than a panel of lanes or a block of k.
    "wide": ConvCase((1, 3, 5, 70), (20, 3, 3, 3), (1, 1), (1, 1), (1, 1)),
    "deep": ConvCase((2, 40, 3, 4), (17, 40, 3, 3), (1, 1), (1, 1), (1, 1)),
    "many_small_images": ConvCase((40, 2, 2, 3), (3, 2, 3, 3), (1, 1), (1, 1), (1, 1)),
    "padding_beyond_kernel": ConvCase((1, 2, 3, 3), (3, 2, 2, 2), (1, 1), (5, 4), (1, 1)),
    "stride_beyond_image": ConvCase((1, 2, 3, 4), (3, 2, 3, 3), (5, 7), (1, 1), (1, 1)),
    "stride_beyond_kernel": ConvCase((2, 3, 9, 8), (5, 3, 1, 2), (2, 3), (0, 1), (1, 1)),
    "stride_2": ConvCase((2, 3, 9, 8), (18, 3, 3, 3), (2, 2), (1, 1), (1, 1)),
    "stride_4_dilation_2": ConvCase((1, 3, 17, 19), (3, 3, 3, 3), (4, 4), (3, 2), (2, 2)),
    "stride_3_dilation_2": ConvCase((1, 3, 17, 19), (3, 3, 3, 4), (3, 2), (3, 2), (2, 3)),
    "kernel_9": ConvCase((1, 2, 12, 11), (3, 2, 9, 9), (1, 1), (4, 4), (1, 1)),
    "kernel_beyond_a_block_of_k": ConvCase((1, 2, 20, 18), (3, 2, 17, 17), (1, 2), (3, 8), (1, 1)),
    "window_too_large": ConvCase((1, 1, 560, 560), (1, 1, 2, 2), (550, 550), (0, 0), (558, 559)),
    "groups": ConvCase((2, 6, 6, 5), (9, 2, 3, 3), (1, 1), (1, 1), (1, 1), 3),
    "depthwise": ConvCase((2, 5, 7, 6), (5, 1, 3, 3), (1, 1), (1, 1), (1, 1), 5),
    "depthwise_stride": ConvCase((1, 5, 8, 9), (10, 1, 3, 3), (2, 2), (1, 1), (1, 1), 5),
    # More groups than a panel of lanes; more positions than a block of rows has.
    "depthwise_many": ConvCase((3, 19, 20, 22), (19, 1, 3, 3), (1, 1), (1, 1), (1, 1), 19),
    "depthwise_stride_dilation": ConvCase(
        (2, 17, 13, 15), (17, 1, 3, 5), (2, 3), (2, 4), (2, 1), 17
    ),
    "depthwise_kernel_beyond_a_block": ConvCase(
        (1, 2, 18, 19), (2, 1, 17, 17), (1, 1), (8, 8), (1, 1), 2
    ),
    "depthwise_window_too_large": ConvCase(
        (1, 3, 140, 140), (3, 1, 2, 2), (130, 130), (0, 0), (131, 139), 3
    ),
    "small_groups": ConvCase((2, 18, 9, 7), (27, 2, 3, 3), (1, 1), (1, 1), (1, 1), 9),
    "small_groups_stride": ConvCase((2, 18, 9, 8), (24, 3, 3, 2), (2, 2), (1, 1), (1, 1), 6),
    "groups_of_a_panel": ConvCase((1, 18, 6, 7), (18, 9, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "depthwise_1d": ConvCase((2, 18, 33), (18, 1, 4), (3,), (2,), (2,), 18),
    "depthwise_3d": ConvCase(
        (2, 17, 4, 5, 6), (34, 1, 3, 2, 3), (2, 1, 2), (1, 1, 2), (1, 2, 1), 17
    ),
    # One row of channels meets more panels of positions than the kernels take at a time.
    "one_channel": ConvCase((2, 1, 13, 31), (1, 1, 3, 3), (1, 1), (1, 1), (1, 1)),
    "three_channels_stride": ConvCase((1, 3, 17, 19), (9, 3, 7, 7), (2, 2), (3, 3), (1, 1)),
    "33_channels": ConvCase((1, 33, 5, 6), (34, 33, 3, 3), (2, 2), (1, 1), (1, 1)),
    "phases_without_taps": ConvCase((2, 3, 9, 10), (5, 3, 2, 3), (4, 2), (1, 1), (2, 2)),
    "1d": ConvCase((2, 3, 40), (4, 3, 5), (2,), (4,), (3,)),
    "1d_long_kernel": ConvCase((1, 2, 700), (2, 2, 300), (1,), (10,), (1,)),
    "3d": ConvCase((2, 3, 5, 4, 6), (4, 3, 3, 2, 3), (2, 1, 2), (1, 1, 2), (1, 2, 1)),
}


@pytest.mark.parametrize("acc", ACCUMULATORS, ids=ids)
@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry(name: str, acc: Accumulator) -> None:
    slow = ("window_too_large", "1d_long_kernel", "depthwise_kernel_beyond_a_block")
    if name in slow and acc.rounding == "stochastic":
        pytest.skip("the long sums of the slow path are drawn in kernel_beyond_a_block_of_k")
    check_values(GEOMETRY[name], acc)


@pytest.mark.parametrize(
    "name",
    [
        "wide",
        "stride_2",
        "stride_3_dilation_2",
        "groups",
        "3d",
        "depthwise_many",
        "depthwise_stride_dilation",
        "small_groups_stride",
        "three_channels_stride",
        "33_channels",
    ],
)
def test_every_isa(name: str, isa: str) -> None:
    for acc in (ACCUMULATORS[0], ACCUMULATORS[2], ACCUMULATORS[3], ACCUMULATORS[4]):
        check_values(GEOMETRY[name], acc)


def layouts(t: Tensor) -> dict[str, Tensor]:
    """The values of a 4-d tensor in other layouts, and views of one element or line."""
    n, c, h, w = t.shape
    padded = torch.full((n, c + 1, h + 2, 2 * w + 3), math.nan)
    padded[:, 1:, 1:-1, 2:-1:2] = t
    return {
        "channels_last": t.to(memory_format=torch.channels_last),
        "sliced": padded[:, 1:, 1:-1, 2:-1:2],
        "transposed": t.transpose(2, 3).contiguous().transpose(2, 3),
        "batch_inside": t.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
        "expanded": t[:1, :, :, :1].expand(n, c, h, w),
        "one_channel": t[:, :1].expand(n, c, h, w),
    }


LAYOUTS = ("channels_last", "sliced", "transposed", "batch_inside", "expanded", "one_channel")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "case",
    [
        ConvCase((2, 18, 6, 5), (20, 18, 3, 3), (1, 1), (1, 1), (1, 1)),
        ConvCase((2, 18, 6, 5), (20, 9, 3, 3), (2, 2), (1, 1), (1, 1), 2),
        ConvCase((2, 20, 6, 5), (18, 20, 1, 1), (1, 1), (0, 0), (1, 1)),
        ConvCase((2, 20, 6, 5), (18, 20, 1, 1), (2, 2), (0, 0), (1, 1)),
        ConvCase((2, 40, 6, 5), (36, 40, 3, 3), (2, 2), (1, 1), (1, 1)),
        ConvCase((2, 18, 6, 5), (36, 1, 3, 3), (2, 2), (1, 1), (1, 1), 18),
        ConvCase((2, 18, 6, 5), (18, 2, 3, 3), (1, 1), (1, 1), (1, 1), 9),
    ],
    ids=[
        "3x3",
        "3x3_stride_2_groups",
        "1x1",
        "1x1_stride_2",
        "3x3_stride_2_wide",
        "depthwise",
        "small_groups",
    ],
)
def test_reads_any_strides(case: ConvCase, layout: str) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = (case.input_shape, case.weight_shape, output_shape(case))
    x, w, grad = (layouts(values(shape, generator))[layout] for shape in shapes)
    for acc in (ACCUMULATORS[0], ACCUMULATORS[3]):
        check(case, acc, x, w, grad)


@pytest.mark.parametrize("acc", ACCUMULATORS, ids=ids)
@pytest.mark.parametrize("stride", [1, 2])
def test_absent_taps_add_nothing_whatever_the_weight(stride: int, acc: Accumulator) -> None:
    """The weights are inf and NaN, and they meet only padding, or only some positions."""
    case = ConvCase((1, 2, 4, 4), (3, 2, 3, 3), (stride, stride), (1, 1), (1, 1))
    generator = torch.Generator().manual_seed(2)
    x, w = values(case.input_shape, generator), values(case.weight_shape, generator)
    grad = values(output_shape(case), generator)
    w[0, 0, 0, 0], w[1, 1, 2, 1], w[2, 0, 1, 2] = math.inf, math.nan, -math.inf
    x[0, 1, 3, 3], grad[0, 2, 0, 0] = math.inf, math.nan
    check(case, acc, x, w, grad, torch.tensor([0.5, -math.inf, math.nan]))


@pytest.mark.parametrize("acc", ACCUMULATORS, ids=ids)
def test_zeros_beside_padding_keep_their_sign(acc: Accumulator) -> None:
    """Sums are -0 or underflow from below, and absent taps come after them."""
    case = ConvCase((1, 1, 3, 3), (1, 1, 3, 3), (1, 1), (1, 1), (1, 1))
    for scale in (0.0, 2.0**-20, 2.0**-60):
        x = torch.full(case.input_shape, scale)
        grad = torch.full(output_shape(case), scale)
        check(case, acc, x, torch.full(case.weight_shape, -1.0), grad)
        check(case, acc, -x, torch.full(case.weight_shape, scale), -grad)


#: Positions of lines as lanes, channels as rows, positions as rows, channels of groups as lanes.
CHANNELS = {"segments": (3, 1), "channels": (20, 1), "positions": (40, 1), "spread": (6, 2)}


@pytest.mark.parametrize("channels, groups", CHANNELS.values(), ids=CHANNELS)
def test_a_block_of_k_that_begins_with_minus_zero_passes_over_absent_taps(
    channels: int, groups: int
) -> None:
    """Every product of the first block underflows from below. The next block's certificate is one
    of sums that are never -0, so where it goes on from -0 the exact tier must see the marks."""
    case = ConvCase((1, 192 * groups, 4), (channels, 192, 3), (1,), (1,), (1,), groups)
    first = (torch.arange(192 * groups) % 192 < 96)[:, None]
    x = torch.where(first, -1.0, torch.tensor([0.0, 0.0, 1.0, 1.0])).expand(case.input_shape)
    w = torch.where(first[:192], 2.0**-60, torch.tensor([1.0, -1.0, -1.0]))
    w = w.expand(case.weight_shape)
    check(case, Accumulator("e6m9"), x, w, torch.ones(output_shape(case)))


def test_result_does_not_depend_on_the_batch() -> None:
    """An image is convolved alone and among others, where blocks of rows lie differently."""
    case = ConvCase((5, 3, 7, 6), (4, 3, 3, 3), (2, 1), (1, 1), (1, 1))
    generator = torch.Generator().manual_seed(3)
    x, w = values(case.input_shape, generator), values(case.weight_shape, generator)
    tail = arguments(case, ACCUMULATORS[0])
    whole = cpu.BACKEND.conv_fprop(x, w, None, *tail)
    assert_bit_equal(cpu.BACKEND.conv_fprop(x[3:4], w, None, *tail), whole[3:4])


def test_result_does_not_depend_on_threads() -> None:
    cases = (
        ConvCase((3, 20, 9, 8), (24, 20, 3, 3), (2, 2), (1, 1), (1, 1)),
        GEOMETRY["depthwise_many"],
        GEOMETRY["one_channel"],
    )
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for case in cases:
                for acc in (ACCUMULATORS[0], ACCUMULATORS[4]):
                    check_values(case, acc)
    finally:
        torch.set_num_threads(before)


@st.composite
def conv_cases(draw: st.DrawFn) -> ConvCase:
    rank = draw(st.integers(1, 3))
    largest = {1: 30, 2: 9, 3: 5}[rank]

    def sizes(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    kernel, stride, padding, dilation = sizes(1, 4), sizes(1, 4), sizes(0, 4), sizes(1, 3)
    spatial = [
        max(size, step * (taps - 1) + 1 - 2 * pad, 1)
        for size, taps, pad, step in zip(sizes(1, largest), kernel, padding, dilation, strict=True)
    ]
    groups = draw(st.sampled_from((1, 1, 2, 3, 17)))
    batch, c_in, c_out = (draw(st.integers(1, high)) for high in (3, 4, 6))
    return ConvCase(
        (batch, groups * c_in, *spatial),
        (groups * c_out, c_in, *kernel),
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        groups,
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=conv_cases(), acc=st.sampled_from(ACCUMULATORS), seed=st.integers(0, 1000))
def test_random_shapes(case: ConvCase, acc: Accumulator, seed: int) -> None:
    check_values(case, acc, seed)
