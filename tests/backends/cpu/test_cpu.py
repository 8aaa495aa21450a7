"""The compiled kernels against the reference, to the bit, on every instruction set."""

import os
import platform

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.backends import _reference, cpu
from lpkernels.rng import SITE_OUTER
from lpkernels.rounding import ROUNDINGS
from tests.cases import ACCUMULATORS, CONV_CASES, MATMUL_SHAPES, ConvCase, ids
from tests.compare import assert_bit_equal
from tests.support.processor import isa

__all__ = ["isa"]

pytestmark = pytest.mark.skipif(
    not cpu.BACKEND.available(), reason=f"cpu backend: {cpu.BACKEND.why_not()}"
)

SEED = torch.tensor(1234567890123456789)
ROLE = 3
KINDS = ("normal", "wide", "ties", "special", "huge")


def operand(shape: tuple[int, ...], kind: str, generator: torch.Generator) -> Tensor:
    """Values where sums go wrong: values 2^80 apart, on ties, beyond every maximum, inf, NaN and
    -0."""
    x = torch.randn(shape, generator=generator)
    if kind == "wide":
        return x * torch.exp2(torch.randint(-40, 40, shape, generator=generator).float())
    if kind == "ties":
        return (x * 4).round() / 4
    if kind == "huge":
        return x * 3e37
    if kind == "special":
        choice = torch.rand(shape, generator=generator)
        x[choice < 0.3] = -0.0
        x[choice < 0.1] = 1e-45
        x[choice < 0.06] = float("inf")
        x[choice < 0.03] = float("nan")
    return x


@pytest.mark.parametrize("acc", ACCUMULATORS, ids=ids)
def test_matmul_matches_reference(acc: Accumulator, isa: str) -> None:
    generator = torch.Generator().manual_seed(1)
    for m, k, n in MATMUL_SHAPES:
        for kind in KINDS:
            a, b = (operand(s, kind, generator) for s in ((m, k), (k, n)))
            bias = operand((n,), kind, generator) if kind != "ties" else None
            args = (a, b, bias, acc.to_ints(), SEED, ROLE)
            got, want = cpu.BACKEND.matmul(*args), _reference.BACKEND.matmul(*args)
            assert_bit_equal(got, want, f"{(m, k, n)} {kind}")


@pytest.mark.parametrize("case", CONV_CASES.values(), ids=CONV_CASES.keys())
@pytest.mark.parametrize("acc", ACCUMULATORS, ids=ids)
def test_conv_matches_reference(acc: Accumulator, case: ConvCase) -> None:
    generator = torch.Generator().manual_seed(2)
    for kind in ("normal", "special"):
        x = operand(case.input_shape, kind, generator)
        w = operand(case.weight_shape, kind, generator)
        bias = operand(case.weight_shape[:1], kind, generator)
        how = [list(v) for v in (case.stride, case.padding, case.dilation)]
        tail = (*how, case.groups, acc.to_ints(), SEED, ROLE)
        y = _reference.BACKEND.conv_fprop(x, w, bias, *tail)
        assert_bit_equal(cpu.BACKEND.conv_fprop(x, w, bias, *tail), y, f"fprop {kind}")
        grad = operand(tuple(y.shape), kind, generator)
        for name, args in {
            "conv_dgrad": (grad, w, list(x.shape)),
            "conv_wgrad": (x, grad, list(w.shape)),
        }.items():
            want = getattr(_reference.BACKEND, name)(*args, *tail)
            assert_bit_equal(getattr(cpu.BACKEND, name)(*args, *tail), want, f"{name} {kind}")


CHOSEN = [
    Accumulator("e6m9", chunk=64),
    Accumulator("e5m10", product="e4m3"),
    Accumulator("e5m6", "stochastic", random_bits=5, chunk=50),
    Accumulator("e5m6", "stochastic", rng="philox"),
    Accumulator("e5m10", order="pairwise"),
    Accumulator("e5m6", "stochastic", order="pairwise", random_bits=5, chunk=45),
    Accumulator("e6m9", order="compensated", chunk=100),
    Accumulator("e8m13", "toward_zero", block=32, aligned_bits=13, chunk=100, outer="fp32"),
    Accumulator("e5m10", block=200, aligned_bits=20),
]


@pytest.mark.parametrize("acc", CHOSEN, ids=ids)
def test_conv_matches_reference_on_every_isa(acc: Accumulator, isa: str) -> None:
    generator = torch.Generator().manual_seed(3)
    x = operand((2, 20, 9, 11), "wide", generator)
    w = operand((34, 10, 3, 3), "wide", generator)
    tail = ([1, 2], [1, 1], [1, 1], 2, acc.to_ints(), SEED, ROLE)
    y = _reference.BACKEND.conv_fprop(x, w, None, *tail)
    assert_bit_equal(cpu.BACKEND.conv_fprop(x, w, None, *tail), y)
    want = _reference.BACKEND.conv_wgrad(x, y, list(w.shape), *tail)
    assert_bit_equal(cpu.BACKEND.conv_wgrad(x, y, list(w.shape), *tail), want)


@pytest.mark.parametrize("acc", CHOSEN, ids=ids)
def test_large_product_matches_reference(acc: Accumulator) -> None:
    """The product has several blocks of rows, lanes and k (64, 128 and 256 in gemm.cpp), none of
    them full."""
    generator = torch.Generator().manual_seed(4)
    a, b = operand((70, 530), "normal", generator), operand((530, 140), "normal", generator)
    args = (a, b, None, acc.to_ints(), SEED, ROLE)
    assert_bit_equal(cpu.BACKEND.matmul(*args), _reference.BACKEND.matmul(*args))


def many_views(generator: torch.Generator) -> dict[str, tuple[Tensor, Tensor]]:
    a, b = (
        torch.randn(3, 1, 9, 20, generator=generator),
        torch.randn(4, 20, 13, generator=generator),
    )
    return {
        "broadcast": (a, b),
        "transposed": (a.transpose(-1, -2).contiguous().transpose(-1, -2), b.mT.contiguous().mT),
        "strided": (torch.randn(18, 40, generator=generator)[::2, ::2], b[1]),
        "expanded": (a[0].expand(4, 9, 20), b[:1, :, :1].expand(4, 20, 13)),
        "flipped_batch": (a[:, 0].flip(0), b[0]),
        "narrow": (torch.randn(50, 20, generator=generator), b[0, :, :2]),
    }


@pytest.mark.parametrize("acc", [CHOSEN[0], CHOSEN[2]], ids=ids)
@pytest.mark.parametrize("view", ["broadcast", "transposed", "strided", "expanded", "narrow"])
def test_matmul_reads_any_strides(view: str, acc: Accumulator) -> None:
    a, b = many_views(torch.Generator().manual_seed(5))[view]
    args = (a, b, None, acc.to_ints(), SEED, ROLE)
    assert_bit_equal(cpu.BACKEND.matmul(*args), _reference.BACKEND.matmul(*args))


def test_accumulate_draws_at_its_row_and_column() -> None:
    acc = Accumulator("e5m6", "stochastic", random_bits=13)
    addend, start = torch.randn(5, 9), torch.randint(-8, 9, (5, 9)) / 4
    results = []
    for backend in (cpu.BACKEND, _reference.BACKEND):
        results.append(start.clone())
        backend.accumulate(results[-1], addend, (7, 2), acc.to_ints(), SEED, ROLE, SITE_OUTER, 5)
    assert_bit_equal(*results)


def test_conv_reads_channels_last() -> None:
    generator = torch.Generator().manual_seed(6)
    x, w = (
        torch.randn(2, 5, 7, 6, generator=generator),
        torch.randn(4, 5, 3, 3, generator=generator),
    )
    tail = ([1, 1], [1, 1], [1, 1], 1, CHOSEN[0].to_ints(), SEED, ROLE)
    last = [t.to(memory_format=torch.channels_last) for t in (x, w)]
    want = cpu.BACKEND.conv_fprop(x, w, None, *tail)
    assert_bit_equal(cpu.BACKEND.conv_fprop(*last, None, *tail), want)


@pytest.fixture
def threads() -> object:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("acc", CHOSEN, ids=ids)
def test_results_do_not_depend_on_threads(acc: Accumulator, threads: object) -> None:
    generator = torch.Generator().manual_seed(7)
    a, b = operand((90, 70), "wide", generator), operand((70, 150), "wide", generator)
    results = []
    for count in (1, 2, 5):
        threads(count)  # type: ignore[operator]
        results.append(cpu.BACKEND.matmul(a, b, None, acc.to_ints(), SEED, ROLE))
    for other in results[1:]:
        assert_bit_equal(other, results[0])


class Products(Dataset[Tensor]):
    """Item i is a product large enough for several threads."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Tensor:
        a = operand((90, 70), "normal", torch.Generator().manual_seed(i))
        return cpu.BACKEND.matmul(a, a.t(), None, CHOSEN[0].to_ints(), SEED, ROLE)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are not forked here")
def test_workers_of_a_loader_multiply_after_threads_ran(threads: object) -> None:
    threads(2)  # type: ignore[operator]
    want = torch.stack([Products()[i] for i in range(2)])
    loader = DataLoader(Products(), 2, num_workers=1, timeout=60, multiprocessing_context="fork")
    assert_bit_equal(next(iter(loader)), want)


def test_rows_do_not_depend_on_other_rows() -> None:
    generator = torch.Generator().manual_seed(8)
    a, b = operand((40, 33), "wide", generator), operand((33, 21), "wide", generator)
    ints = Accumulator("e5m7", chunk=8).to_ints()
    whole = cpu.BACKEND.matmul(a, b, None, ints, None, 0)
    for m in (0, 17, 39):
        alone = cpu.BACKEND.matmul(a[m : m + 1], b, None, ints, None, 0)
        assert_bit_equal(alone, whole[m : m + 1], f"row {m}")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="MXCSR is x86's")
def test_results_do_not_depend_on_flush_to_zero(isa: str) -> None:
    generator = torch.Generator().manual_seed(9)
    a, b = (
        torch.randn(9, 30, generator=generator) * 1e-25,
        torch.randn(30, 9, generator=generator) * 1e-17,
    )
    ints = Accumulator("fp32").to_ints()
    want = cpu.BACKEND.matmul(a, b, None, ints, None, 0)
    assert (want.abs() < 2.0**-126).any()
    assert torch.set_flush_denormal(True)
    try:
        got = cpu.BACKEND.matmul(a, b, None, ints, None, 0)
    finally:
        torch.set_flush_denormal(False)
    assert_bit_equal(got, want)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        # The least value is so large that what rounds below it comes near float32's end.
        *((f"e2m8none_b-{bias}_nosub:{mode}", scale)
          for bias in (101, 102, 107) for mode in ROUNDINGS for scale in (1.0, 2.0**52)),
        # Sums from 0 up, with products of half that range, which are whole quanta or not.
        *((f"ufixed{bits}_f20_wrap:{mode}", scale)
          for bits in (21, 22, 23) for mode in ROUNDINGS for scale in (0.25, 2.0**-10)),
    ],
)  # fmt: skip
def test_formats_at_the_end_of_what_kernels_take(name: str, scale: float, isa: str) -> None:
    generator = torch.Generator().manual_seed(10)
    a, b = (torch.randn(s, generator=generator) * scale for s in ((13, 9), (9, 20)))
    if scale == 0.25:
        a, b = (a * 2**10).round() / 2**10, (b * 2**10).round() / 2**10
    args = (a, b, None, accumulator(name).to_ints(), SEED, ROLE)
    assert_bit_equal(cpu.BACKEND.matmul(*args), _reference.BACKEND.matmul(*args))


def test_unknown_isa_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPKERNELS_ISA", "sse9")
    with pytest.raises(ValueError, match="LPKERNELS_ISA=sse9: this processor runs scalar"):
        cpu.BACKEND.isa()
