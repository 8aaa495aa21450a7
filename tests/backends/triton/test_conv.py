"""Convolutions of the triton backend against the reference, to the bit."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels import ops
from lpkernels.arithmetic import Accumulator
from lpkernels.backends import NOT_FUSED, Fused
from tests.cases import ACCUMULATORS, CONV_CASES, ConvCase, ids
from tests.compare import assert_bit_equal

backend = pytest.importorskip("lpkernels.backends.triton").BACKEND
_images = pytest.importorskip("lpkernels.backends.triton.operands.images")
_geometry = pytest.importorskip("lpkernels.backends._conv_geometry")
pytestmark = pytest.mark.triton

SEED = torch.tensor(987654321987654321)
ROLE = 4
PASSES = ("fprop", "dgrad", "wgrad")
CHUNKED = Accumulator("e5m4", chunk=3, outer="e5m3")
#: An accumulator with draws of sums and of products, and with chunks that end within a word.
DRAWN = Accumulator(
    "e5m5", "stochastic", product="e4m4", product_rounding="stochastic", random_bits=5, chunk=6,
    outer="e5m3",
)  # fmt: skip
STRIDES = ConvCase((1, 2, 3, 5), (3, 2, 2, 3), (2, 2), (1, 1), (1, 1))
#: Every kind of sum occurs once; tests/backends/triton/test_matmul.py has all of them.
KINDS = [
    *(acc for acc in ACCUMULATORS[::4] if acc.in_sequence),
    Accumulator("e5m3", "stochastic", order="pairwise", chunk=7),
    Accumulator("e4m3", "toward_negative", order="pairwise", product="e5m2"),
    Accumulator("e4m3", order="compensated", chunk=5),
    Accumulator("e5m4", "toward_negative", block=4, aligned_bits=3),
    Accumulator("e5m4", "stochastic", block=3, aligned_bits=5, chunk=7),
]


def output_shape(case: ConvCase) -> tuple[int, ...]:
    sizes = zip(
        case.input_shape[2:], case.weight_shape[2:], case.stride, case.padding, case.dilation,
        strict=True,
    )  # fmt: skip
    spatial = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes]
    return (case.input_shape[0], case.weight_shape[0], *spatial)


def values(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Few significant bits at several scales, zeros of both signs, one infinity and one NaN."""
    x = torch.randint(-7, 8, shape, generator=generator).float()
    x *= torch.exp2(torch.randint(-6, 3, shape, generator=generator).float())
    if x.numel() > 8:
        at = torch.randint(0, x.numel(), (4,), generator=generator)
        x.view(-1)[at] = torch.tensor([-0.0, float("inf"), -float("nan"), 1e-45])
    return x


def tensors(case: ConvCase, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, w, dy and the bias."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (case.input_shape, case.weight_shape, output_shape(case), case.weight_shape[:1])
    x, w, dy, bias = (values(shape, generator) for shape in shapes)
    return x, w, dy, bias


def arguments(
    name: str, case: ConvCase, acc: Accumulator, operands: tuple[Tensor, ...]
) -> tuple[Any, ...]:
    """The arguments of one pass, up to the role."""
    x, w, dy, bias = operands
    first: dict[str, tuple[Any, ...]] = {
        "fprop": (x, w, bias),
        "dgrad": (dy, w, list(case.input_shape)),
        "wgrad": (x, dy, list(case.weight_shape)),
    }
    geometry = (*(list(v) for v in (case.stride, case.padding, case.dilation)), case.groups)
    return (*first[name], *geometry, acc.to_ints(), SEED.to(x.device), ROLE)


def triton(
    name: str, case: ConvCase, acc: Accumulator, operands: tuple[Tensor, ...],
    fused: Fused = NOT_FUSED,
) -> Tensor:  # fmt: skip
    return getattr(backend, f"conv_{name}")(*arguments(name, case, acc, operands), fused)


def reference(
    name: str, case: ConvCase, acc: Accumulator, operands: tuple[Tensor, ...],
    fused: Fused = NOT_FUSED,
) -> Tensor:  # fmt: skip
    operator = getattr(ops, f"conv_{name}")
    return operator(*arguments(name, case, acc, operands), "reference", fused)


def check(
    case: ConvCase,
    acc: Accumulator,
    device: str,
    operands: tuple[Tensor, ...] | None = None,
    fused: Fused = NOT_FUSED,
) -> None:
    """Every pass has the bits of the reference, which reads contiguous copies."""
    operands = operands or tensors(case)
    plain = tuple(t.contiguous() for t in operands)
    there = tuple(t.to(device) for t in operands)
    for name in PASSES:
        got = triton(name, case, acc, there, fused)
        want = reference(name, case, acc, plain, fused)
        assert got.device.type == device
        assert_bit_equal(got, want, f"{name} {case} {acc}")


@pytest.mark.parametrize("name", CONV_CASES)
def test_cases(name: str, device: str) -> None:
    check(CONV_CASES[name], CHUNKED, device)


@pytest.mark.parametrize("acc", [*KINDS, DRAWN], ids=ids)
def test_accumulators(acc: Accumulator, device: str) -> None:
    check(STRIDES, acc, device)


def test_draws_of_groups(device: str) -> None:
    check(ConvCase((2, 4, 3), (6, 2, 2), (1,), (1,), (1,), 2), DRAWN, device)


def test_layouts(device: str) -> None:
    case = ConvCase((2, 3, 4, 3), (4, 3, 2, 2), (2, 1), (1, 0), (1, 1))
    x, w, dy, bias = tensors(case)
    last = torch.channels_last
    check(case, CHUNKED, device, (x.to(memory_format=last), w, dy.to(memory_format=last), bias))
    spread = torch.zeros(2, 6, 4, 6)
    spread[:, ::2, :, 1::2] = x
    turned = w.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    views = (spread[:, ::2, :, 1::2], turned, dy[:1].expand_as(dy), bias.repeat(2, 1).T[:, 0])
    check(case, CHUNKED, device, views)


def test_operands_and_results_are_rounded(device: str) -> None:
    texts = ("e4m3fn:to_odd", "fixed8_f4_wrap", "e3m4:toward_negative")
    left, right, result = (lp.arithmetic.as_quantizer(text).to_ints() for text in texts)
    check(STRIDES, Accumulator("e5m10"), device, fused=Fused(left, right, result))
    check(STRIDES, CHUNKED, device, fused=Fused((), right, ()))


def test_no_nan_is_an_absent_tap(device: str) -> None:
    from lpkernels.backends.triton import _layout

    for bits in (0x7FFFFFFF, -1, 0x7F800001, _layout.ABSENT, _layout.ABSENT - 2**31):
        x, w, dy, bias = tensors(STRIDES)
        for t in (x, w, dy):
            t.view(-1).view(torch.int32)[1::7] = bits
        check(STRIDES, CHUNKED, device, (x, w, dy, bias))


def test_few_positions_and_many_channels(device: str) -> None:
    check(ConvCase((1, 2, 3), (5, 2, 3), (1,), (0,), (1,)), DRAWN, device)
    check(ConvCase((1, 2, 3), (34, 1, 2), (1,), (0,), (1,), 2), CHUNKED, device)


def test_an_image_whose_windows_reach_nothing_is_zero(device: str) -> None:
    # One output, on padding alone.
    check(ConvCase((1, 1, 1, 1), (2, 1, 1, 1), (9, 9), (4, 4), (1, 1)), CHUNKED, device)


def test_no_output_at_all(device: str) -> None:
    case = ConvCase((2, 2, 3, 3), (3, 2, 4, 2), (1, 1), (0, 0), (1, 1))
    dy, w = torch.ones(2, 3, 0, 2, device=device), torch.ones(case.weight_shape, device=device)
    x = torch.ones(case.input_shape, device=device)
    operands = (x, w, dy, torch.ones(3, device=device))
    for name, shape in (("dgrad", case.input_shape), ("wgrad", case.weight_shape)):
        assert_bit_equal(triton(name, case, CHUNKED, operands), torch.zeros(shape))
    assert triton("fprop", case, CHUNKED, operands).shape == (2, 3, 0, 2)


def test_no_channels(device: str) -> None:
    case = ConvCase((2, 0, 3), (3, 0, 2), (1,), (0,), (1,))
    x, w, dy, bias = (t.to(device) for t in tensors(case))
    got = triton("fprop", case, Accumulator("e5m10"), (x, w, dy, bias))
    assert_bit_equal(got, lp.quantize(bias.cpu(), "e5m10").view(1, 3, 1).expand(2, 3, 2))


def test_images_are_framed_and_their_facts_leave_out_what_is_absent(device: str) -> None:
    from lpkernels.backends.triton import _layout
    from lpkernels.backends.triton.operands import facts as _facts

    image = torch.tensor([[[1.0, -0.0, 2.5, 0.0]]], device=device)
    frame = _geometry.Frame((1, 1, 7), (0, 0, 2), 3, False, 1, 1)
    got = _images.framed(image, frame, _facts.new_facts(image.device)[0], ())
    gone = _layout.ABSENT
    one, zero, half = 0x3F800000, 0, 0x40200000
    # Position p of the frame lies at p % 3 * 3 + p // 3: 0 3 6, 1 4 7, 2 5 8.
    want = [gone, -(2**31), gone, gone, half, gone, one, zero, gone]
    assert got.absent
    assert got.values.cpu().view(torch.int32)[:9].tolist() == want
    facts = got.facts.tolist()
    assert facts[_facts.HIGHEST.value] == 1
    assert facts[_facts.LOWEST.value] == 1
    assert facts[_facts.WIDTH.value] == 3
    assert facts[_facts.SPECIAL.value] == _facts.NONE.value


def test_tables_are_made_once(device: str) -> None:
    from lpkernels.backends import _conv_phases, _conv_tables

    g = _geometry.geometry_of((2, 3, 9), (4, 3, 3), (5,), (2,), (1,), (1,), 1)
    on = torch.device(device)
    for build in (_conv_tables.fprop, _conv_tables.wgrad, _conv_phases.dgrad):
        assert _conv_tables.tables(build, g, on) is _conv_tables.tables(build, g, on)
    large = g._replace(batch=1 << 18)
    assert math.prod(large.size) * large.batch > _conv_tables.KEPT_COLUMNS
    assert _conv_tables.tables(_conv_tables.fprop, large, on)[0].sizes[2] == 5 << 18
