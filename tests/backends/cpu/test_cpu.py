"""Products and convolutions of the compiled kernels against the reference, to the bit, on every
instruction set."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import lpkernels as lp
from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.rounding import ROUNDINGS
from tests.backends.cpu_products import assert_convolution, assert_matmul, drawn
from tests.cases import ConvCase, accumulators_named
from tests.compare import assert_bit_equal
from tests.support.processor import Isas, Threads, flushed

CHOSEN = accumulators_named("""
    e6m9_chunk64 e5m10:product=e4m3 e5m6_chunk50:stochastic:bits=5 e5m6:stochastic:philox
    e5m10:order=pairwise e5m6_chunk45:stochastic:order=pairwise:bits=5
    e6m9_chunk100:order=compensated e8m13_chunk100:toward_zero:outer=fp32:block=32:aligned_bits=13
    e5m10:block=200:aligned_bits=20
""")


@pytest.mark.parametrize("acc", CHOSEN, ids=str)
def test_several_blocks_and_threads(acc: Accumulator, isas: Isas, threads: Threads) -> None:
    """The products have several blocks of k, of rows and of lanes (288, 96 and 256 in gemm.h and
    work_blocks.h), none of them full."""
    for m, k, n in ((9, 300, 20), (105, 40, 20), (5, 40, 270)):
        assert_matmul(isas, *drawn("plain", (m, k), (k, n)), acc, (m, k, n))
    case = ConvCase((2, 20, 9, 11), (34, 10, 3, 3), (1, 2), (1, 1), (1, 1), 2)
    shapes = (case.input_shape, case.weight_shape, case.output_shape)
    assert_convolution(isas, case, acc, *drawn("wide", *shapes))
    assert_matmul(threads, *drawn("wide", (90, 70), (70, 150)), acc)


#: The threads of the process after a product on one thread, and after one on three.
_COUNTED = """
import os, torch, lpkernels as lp
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
        return lp.matmul(a, a.t(), CHOSEN[0], backend="cpu")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are not forked here")
def test_workers_of_a_loader_multiply_after_threads_ran(threads: Threads) -> None:
    torch.set_num_threads(2)
    want = torch.stack([Products()[i] for i in range(2)])
    loader = DataLoader(Products(), 2, num_workers=1, timeout=60, multiprocessing_context="fork")
    assert_bit_equal(next(iter(loader)), want)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="MXCSR is x86's")
def test_results_do_not_depend_on_flush_to_zero(isas: Isas) -> None:
    a, b = drawn("plain", (9, 30), (30, 9))
    call = (a * 1e-25, b * 1e-17, "fp32")
    want = lp.matmul(*call, backend="reference")
    assert (want.abs() < 2.0**-126).any()
    with flushed():
        results = {isa: lp.matmul(*call, backend="cpu") for isa in isas}
    for isa, got in results.items():
        assert_bit_equal(got, want, isa)


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_formats_at_the_end_of_what_kernels_take(mode: str, isas: Isas) -> None:
    a, b = drawn("plain", (13, 9), (9, 20))
    # The least value is so large that what rounds below it comes near float32's end.
    for bias in (101, 102, 107):
        for scale in (1.0, 2.0**52):
            acc = accumulator(f"e2m8none_b-{bias}_nosub:{mode}")
            assert_matmul(isas, a * scale, b * scale, acc, scale)
    # Sums from 0 up, with products of half that range, which are whole quanta or not.
    whole = [(x * 2**8).round() / 2**10 for x in (a, b)]
    for bits in (21, 22, 23):
        acc = accumulator(f"ufixed{bits}_f20_wrap:{mode}")
        assert_matmul(isas, *whole, acc, "whole quanta")
        assert_matmul(isas, a * 2.0**-10, b * 2.0**-10, acc, "parts of quanta")
