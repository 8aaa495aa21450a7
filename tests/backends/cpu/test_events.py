"""Events inside sums: the compiled kernel counts what the reference counts, on every processor."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import lpkernels as lp
from lpkernels.backends import Fused, How, cpu, matmul_of
from tests.backends.cpu_products import REFERENCE
from tests.backends.crossed import ProductCall, how_of, product_calls
from tests.compare import assert_bit_equal
from tests.support.processor import Isas, Threads


def operands(m: int, k: int, n: int):
    generator = torch.Generator().manual_seed(m + k + n)
    a, b = (torch.randn(s, generator=generator) * 2 for s in ((m, k), (k, n)))
    a[a.abs() < 0.2] = 0.0
    a[0, :3] = torch.tensor([2.0**-140, -0.0, 3e4])
    return lp.quantize(a, "bf16").float(), b


def events(backend: str, a, b, name: str, *, row=None):
    acc, seed = lp.accumulator(name), torch.tensor(-5)
    row = torch.arange(len(a)) if row is None else row
    chosen = lp.backends.select(backend, "matmul_events", a.device)
    return chosen.matmul_events(matmul_of(a, b), How(acc.to_ints(), seed), row)


def assert_same(got, want, name: str = "sums") -> None:
    assert_bit_equal(got[0], want[0], name)
    assert got[1] == want[1], name


@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.slow)])
def test_the_kernel_sees_what_the_reference_sees(count: int, isas: Isas) -> None:
    @settings(max_examples=count)
    @given(call=product_calls(most=20).filter(lambda call: call.acc.in_sequence))
    def check(call: ProductCall) -> None:
        alone = call._replace(batch=((), ()), rest="")
        product = alone.product()
        left, right = (torch.where(x.isfinite(), x, 1.0) for x in product[1:3])
        product = product._replace(left=left, right=right)
        how, row = how_of(call)._replace(fused=Fused()), torch.arange(call.sizes[0])
        with np.errstate(all="ignore"):
            want = REFERENCE.matmul_events(product, how, row)
        for isa in isas:
            assert_same(cpu.BACKEND.matmul_events(product, how, row), want, f"{isa} {call}")

    check()


@pytest.mark.parametrize("name", ["e4m3", "e4m3:stochastic", "e4m3_chunk7", "fixed8_f4"])
def test_sums_with_events_are_those_of_matmul(name: str) -> None:
    a, b = operands(9, 23, 11)
    sums, counts = events("cpu", a, b, name)
    assert counts[1] > 0
    assert_bit_equal(sums, lp.matmul(a, b, name, generator=torch.tensor(-5)), name)


@pytest.mark.parametrize("order", ["order=compensated", "block=4:aligned_bits=3", "order=pairwise"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_other_orders_are_refused(backend: str, order: str):
    with pytest.raises((ValueError, NotImplementedError), match="events are counted in sums in"):
        events(backend, *operands(3, 8, 2), f"e4m3:{order}")


def test_strides_threads_and_rows_do_not_matter(threads: Threads):
    a, b = operands(19, 40, 13)
    want = events("cpu", a, b, "e4m3:stochastic")
    strided = events("cpu", a.t().contiguous().t(), b.t().contiguous().t(), "e4m3:stochastic")
    assert_same(strided, want)
    for count in threads:
        assert_same(events("cpu", a, b, "e4m3:stochastic"), want, count)
    parts = [
        events("cpu", a[rows], b, "e4m3:stochastic", row=torch.arange(19)[rows])
        for rows in (slice(5), slice(5, 19))
    ]
    assert_bit_equal(torch.cat([sums for sums, _ in parts]), want[0], "rows of their own keys")
    assert tuple(map(sum, zip(*(counts for _, counts in parts), strict=True))) == want[1]


@pytest.mark.parametrize("name", ["e5m3_chunk600", "e5m3_chunk130"])
def test_long_sums_pass_the_kernel_in_pieces(name: str):
    a, b = operands(2, 1100, 2)
    assert_same(events("cpu", a, b, name), events("reference", a, b, name))
