"""The compiled kernels against the reference, to the bit, on every instruction set."""

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.backends import cpu
from lpkernels.rng import SITE_OUTER
from lpkernels.rounding import ROUNDINGS
from tests.backends import by_hand
from tests.backends.cpu_products import (
    REFERENCE,
    ROLE,
    SEED,
    assert_convolution,
    assert_matmul,
    drawn,
)
from tests.cases import CONV_CASES, EVERY_ACCUMULATOR, MATMUL_SHAPES, ConvCase, accumulators_named
from tests.compare import assert_bit_equal
from tests.loops import each, rows
from tests.support.operands import KINDS
from tests.support.processor import Isas, Threads, flushed


@cache
def every_kind(m: int, k: int, n: int) -> tuple[Tensor, Tensor]:
    """A batch of operands, one product for each kind."""
    pairs = [drawn(kind, (m, k), (k, n), seed=m) for kind in (*KINDS, "rare")]
    left, right = zip(*pairs, strict=True)
    return torch.stack(left), torch.stack(right)


@each("acc", EVERY_ACCUMULATOR)
def test_matmul_matches_reference(acc: Accumulator, isas: Isas) -> None:
    biases = ("plain", "wide", "rare", None)
    for i, (m, k, n) in enumerate(MATMUL_SHAPES):
        kind = biases[i % len(biases)]
        bias = drawn(kind, (n,))[0] if kind else None
        assert_matmul(isas, *every_kind(m, k, n), acc, (m, k, n), bias=bias)


def test_conv_matches_reference(isas: Isas) -> None:
    """Each accumulator takes three of the convolutions in turn."""
    cases = list(CONV_CASES.values())
    for i, acc in enumerate(EVERY_ACCUMULATOR):
        for case in (cases[(i + step) % len(cases)] for step in (0, 4, 8)):
            shapes = (case.input_shape, case.weight_shape, case.output_shape)
            for kind in ("plain", "rare"):
                x, w, grad, bias = drawn(kind, *shapes, case.weight_shape[:1])
                assert_convolution(isas, case, acc, x, w, grad, bias)


CHOSEN = accumulators_named("""
    e6m9_chunk64 e5m10:product=e4m3 e5m6_chunk50:stochastic:bits=5 e5m6:stochastic:philox
    e5m10:order=pairwise e5m6_chunk45:stochastic:order=pairwise:bits=5
    e6m9_chunk100:order=compensated e8m13_chunk100:toward_zero:outer=fp32:block=32:aligned_bits=13
    e5m10:block=200:aligned_bits=20
""")


@each("acc", CHOSEN)
def test_large_products_and_wide_convolutions_match_reference(acc: Accumulator, isas: Isas) -> None:
    """The products have several blocks of k, of rows and of lanes (288, 96 and 256 in gemm.h and
    work_blocks.h), none of them full."""
    for m, k, n in ((9, 300, 20), (105, 40, 20), (5, 40, 270)):
        assert_matmul(isas, *drawn("plain", (m, k), (k, n)), acc, (m, k, n))
    case = ConvCase((2, 20, 9, 11), (34, 10, 3, 3), (1, 2), (1, 1), (1, 1), 2)
    shapes = (case.input_shape, case.weight_shape, case.output_shape)
    assert_convolution(isas, case, acc, *drawn("wide", *shapes))


@each("acc", [CHOSEN[0], CHOSEN[2]])
def test_matmul_reads_any_strides(acc: Accumulator, isas: Isas) -> None:
    a, b, wide, tall = drawn("plain", (3, 1, 9, 20), (4, 20, 13), (18, 40), (50, 20))
    views = {
        "broadcast": (a, b),
        "transposed": (a.mT.contiguous().mT, b.mT.contiguous().mT),
        "strided": (wide[::2, ::2], b[1]),
        "expanded": (a[0].expand(4, 9, 20), b[:1, :, :1].expand(4, 20, 13)),
        "narrow": (tall, b[0, :, :2]),
    }
    for name, (left, right) in views.items():
        assert_matmul(isas, left, right, acc, name)


def test_accumulate_draws_at_its_row_and_column(isas: Isas) -> None:
    ints = Accumulator("e5m6", "stochastic", random_bits=13).to_ints()
    addend, start = torch.randn(5, 9), torch.randint(-8, 9, (5, 9)) / 4
    want = start.clone()
    by_hand.accumulate(REFERENCE, want, addend, (7, 2), ints, SEED, ROLE, SITE_OUTER, 5)
    for isa in isas:
        got = start.clone()
        by_hand.accumulate(cpu.BACKEND, got, addend, (7, 2), ints, SEED, ROLE, SITE_OUTER, 5)
        assert_bit_equal(got, want, isa)


@each("acc", CHOSEN)
def test_results_do_not_depend_on_threads(acc: Accumulator, threads: Threads) -> None:
    a, b = drawn("wide", (90, 70), (70, 150))
    assert_matmul(threads, a, b, acc)


#: The threads of the process after a product on one thread, and after one on three.
_COUNTED = """
import os, torch
import lpkernels as lp
a = torch.ones(400, 400)
for threads in 1, 3:
    torch.set_num_threads(threads)
    lp.matmul(a, a, "e6m9", backend="cpu")
    print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no list of threads here")
def test_a_kernel_runs_on_as_many_threads_as_torch_says() -> None:
    """Whichever OpenMP the module has: its compiler's own, or torch's."""
    done = subprocess.run([sys.executable, "-c", _COUNTED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    one, three = map(int, done.stdout.split())
    assert three - one == 2


class Products(Dataset[Tensor]):
    """Item i is a product large enough for several threads."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Tensor:
        (a,) = drawn("plain", (90, 70), seed=i)
        return by_hand.matmul(cpu.BACKEND, a, a.t(), None, CHOSEN[0].to_ints(), SEED, ROLE)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are not forked here")
def test_workers_of_a_loader_multiply_after_threads_ran(threads: Threads) -> None:
    torch.set_num_threads(2)
    want = torch.stack([Products()[i] for i in range(2)])
    loader = DataLoader(Products(), 2, num_workers=1, timeout=60, multiprocessing_context="fork")
    assert_bit_equal(next(iter(loader)), want)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="MXCSR is x86's")
def test_results_do_not_depend_on_flush_to_zero(isas: Isas) -> None:
    a, b = drawn("plain", (9, 30), (30, 9))
    args = (a * 1e-25, b * 1e-17, None, Accumulator("fp32").to_ints(), None, 0)
    want = by_hand.matmul(cpu.BACKEND, *args)
    assert (want.abs() < 2.0**-126).any()
    with flushed():
        results = {isa: by_hand.matmul(cpu.BACKEND, *args) for isa in isas}
    for isa, got in results.items():
        assert_bit_equal(got, want, isa)


@rows(
    "name, scale",
    # The least value is so large that what rounds below it comes near float32's end.
    *((f"e2m8none_b-{bias}_nosub:{mode}", scale)
      for bias in (101, 102, 107) for mode in ROUNDINGS for scale in (1.0, 2.0**52)),
    # Sums from 0 up, with products of half that range, which are whole quanta or not.
    *((f"ufixed{bits}_f20_wrap:{mode}", scale)
      for bits in (21, 22, 23) for mode in ROUNDINGS for scale in (0.25, 2.0**-10)),
)  # fmt: skip
def test_formats_at_the_end_of_what_kernels_take(name: str, scale: float, isas: Isas) -> None:
    a, b = (x * scale for x in drawn("plain", (13, 9), (9, 20)))
    if scale == 0.25:
        a, b = (a * 2**10).round() / 2**10, (b * 2**10).round() / 2**10
    assert_matmul(isas, a, b, accumulator(name))


def test_unknown_isa_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPKERNELS_ISA", "sse9")
    with pytest.raises(ValueError, match="LPKERNELS_ISA=sse9: this processor runs scalar"):
        cpu.BACKEND.isa()
