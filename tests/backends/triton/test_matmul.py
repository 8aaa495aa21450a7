"""Matrix products of the triton backend against the reference, to the bit."""

import pytest
import torch

import lpkernels as lp
from lpkernels import backends
from lpkernels.arithmetic import Accumulator, as_quantizer
from lpkernels.backends import Fused
from lpkernels.backends.triton import BACKEND, _layout
from tests.backends.triton.sums import DRAWN, beside_reference, lanes_of_all_kinds
from tests.cases import ACCUMULATORS, MATMUL_SHAPES
from tests.compare import assert_bit_equal
from tests.loops import each

PLAIN = Accumulator("e5m4")
IN_SEQUENCE = [acc for acc in ACCUMULATORS if acc.in_sequence]


@each("acc", IN_SEQUENCE)
def test_sums_in_sequence(acc: Accumulator, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = lanes_of_all_kinds((12, 15), generator), lanes_of_all_kinds((9, 15), generator).mT
    beside_reference(a, b, acc, device, bias=lanes_of_all_kinds((9,), generator))


@each("shape", MATMUL_SHAPES[:6])
def test_shapes(shape: tuple[int, int, int], device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    m, k, n = shape
    a, b, bias = (lanes_of_all_kinds(s, generator) for s in ((m, k), (k, n), (n,)))
    for acc in (DRAWN, Accumulator("e5m4", "toward_negative", chunk=3)):
        beside_reference(a, b, acc, device, bias=bias)
    beside_reference(a, b, PLAIN, device)


@each(
    "left, right",
    [
        ((3, 4, 5), (3, 5, 6)),
        ((3, 4, 5), (5, 6)),
        ((4, 5), (3, 5, 6)),
        ((2, 1, 4, 5), (1, 3, 5, 2)),
        ((1, 3, 5), (2, 5, 4)),
        ((0, 3, 5), (5, 4)),
    ],
)
def test_batches(left: tuple[int, ...], right: tuple[int, ...], device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = lanes_of_all_kinds(left, generator), lanes_of_all_kinds(right, generator)
    beside_reference(a, b, Accumulator("e5m3", "stochastic"), device)


def test_strides(device: str) -> None:
    generator = torch.Generator().manual_seed(4)
    a, b = lanes_of_all_kinds((2, 8, 5), generator), lanes_of_all_kinds((2, 5, 9), generator)
    for x, y in (
        (a.mT.contiguous().mT, b.mT.contiguous().mT),
        (a[:, ::2], b[..., ::3]),
        (a.flip(0).permute(1, 0, 2)[:2, :, 1:], b[:, 1:]),
        (a[:1].expand_as(a), b[1]),
    ):
        beside_reference(x, y, PLAIN, device)


def test_operands_and_results_are_rounded(device: str) -> None:
    texts = ("e5m2", "e4m3fn:to_odd", "fixed8_f4_wrap", "e3m4:toward_negative")
    one, two, three, four = (as_quantizer(text).to_ints() for text in texts)
    generator = torch.Generator().manual_seed(5)
    a, b, bias = (lanes_of_all_kinds(s, generator) for s in ((6, 5), (5, 4), (4,)))
    for fused in (
        Fused(one, two, three), Fused(three, four, one), Fused(left=four), Fused(right=one),
        Fused(result=two),
    ):  # fmt: skip
        beside_reference(a, b, PLAIN, device, bias=bias, fused=fused)


def test_a_nan_of_any_kind_becomes_the_canonical_one(device: str) -> None:
    for bits in (0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001, -0x7FFFFF, _layout.ABSENT):
        a = torch.full((2, 3), bits, dtype=torch.int32).view(torch.float32)
        beside_reference(a, torch.ones(3, 4), Accumulator("e5m4"), device)


@each("acc", ["e8m10", "e8m20_sat_chunk2", "e8m13:product=e8m10", "e3m3_b-100"])
def test_both_ends_of_the_exponents(acc: str, device: str) -> None:
    for left, right in ((60, 44), (112, -8), (-77, -78), (-119, -119)):
        a, b = (torch.randint(-255, 256, shape).double() for shape in ((3, 5), (5, 4)))
        a, b = (a * 2.0**left).float(), (b * 2.0**right).float()
        beside_reference(a, b, lp.accumulator(acc), device)


@each("seed, role", [(0, 1), (-1, 0), (2**63 - 1, 11)])
def test_the_seed_of_a_role(seed: int, role: int, device: str) -> None:
    a, b = torch.randn(4, 9), torch.randn(9, 5)
    acc = Accumulator("e5m3", "stochastic")
    beside_reference(a, b, acc, device, seed=torch.tensor(seed), role=role)


def test_the_public_function_and_its_gradients(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(backends._checked, "triton", "")
    pair = torch.randn(2, 3, 4), torch.randn(4, 3)
    results = []
    for name, home in (("triton", device), ("reference", "cpu")):
        a, b = (x.detach().to(home).requires_grad_() for x in pair)
        y = lp.matmul(
            a, b, "e5m5:stochastic", output="e4m3", generator=torch.tensor(7), backend=name
        )
        y.sum().backward()
        results.append((y, a.grad, b.grad))
    for got, want in zip(*results, strict=True):
        assert_bit_equal(got, want)


def test_events_are_counted_elsewhere(device: str) -> None:
    reason = BACKEND.unsupported("matmul_events", torch.device(device))
    assert reason == "its kernels count no events; those of the cpu backend do"
