"""Events inside sums: the compiled kernel counts what the reference counts, on every processor."""

import pytest
import torch

import lpkernels as lp
from lpkernels.backends import How, matmul_of
from tests.compare import assert_bit_equal
from tests.support.processor import Isas, Threads

ACCUMULATORS = """
    e4m3 e4m3:nearest_away e4m3:toward_zero e4m3:toward_positive e4m3:toward_negative e4m3:to_odd
    e4m3:stochastic e4m3:stochastic:bits=17:philox e3m3fn e3m3fn_sat e3m0none_sat
    e3m2none_sat:stochastic e4m3_nosub e4m3_chunk7 e4m3_chunk7:toward_positive:outer=e3m4
    e5m2_chunk5:stochastic:outer=e4m1 e4m5:product=e3m1
    e4m5:product=e3m2none_sat:product_rounding=stochastic lba_m7e4 fixed8_f4 fixed8_f4:nearest_away
    fixed8_f4:stochastic ufixed8_f4:toward_zero fixed8_f4_wrap
    fixed8_f4_wrap_chunk5:toward_negative e8m23 e6m9_chunk64 e8m9 e5m7:toward_zero e5m3_nosub
    e8m5_chunk7:product=e5m2
""".split()


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


@pytest.mark.parametrize("name", ACCUMULATORS)
def test_the_kernel_sees_what_the_reference_sees(name: str, isas: Isas):
    a, b = operands(9, 23, 11)
    want = events("reference", a, b, name)
    assert want[1][1] > 0
    assert_bit_equal(want[0], lp.matmul(a, b, name, generator=torch.tensor(-5)), name)
    for isa in isas:
        assert_same(events("cpu", a, b, name), want, f"{isa} {name}")


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
