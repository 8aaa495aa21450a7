"""Events inside sums: the compiled kernel counts what the reference counts, on every processor."""

from __future__ import annotations

import pytest
import torch

import lpkernels as lp
from lpkernels import backends
from lpkernels.rng import Role
from tests.compare import assert_bit_equal

CPU = backends.get("cpu")
pytestmark = pytest.mark.skipif(not CPU.available(), reason=CPU.why_not() or "available")

ACCUMULATORS = [
    "e4m3", "e4m3:nearest_away", "e4m3:toward_zero", "e4m3:toward_positive",
    "e4m3:toward_negative", "e4m3:to_odd", "e4m3:stochastic", "e4m3:stochastic:bits=17:philox",
    "e3m3fn", "e3m3fn_sat", "e3m0none_sat", "e3m2none_sat:stochastic", "e4m3_nosub",
    "e4m3_chunk7", "e4m3_chunk7:toward_positive:outer=e3m4", "e5m2_chunk5:stochastic:outer=e4m1",
    "e4m5:product=e3m1", "e4m5:product=e3m2none_sat:product_rounding=stochastic", "lba_m7e4",
    "fixed8_f4", "fixed8_f4:nearest_away", "fixed8_f4:stochastic", "ufixed8_f4:toward_zero",
    "fixed8_f4_wrap", "fixed8_f4_wrap_chunk5:toward_negative", "e8m23", "e6m9_chunk64",
]  # fmt: skip


def operands(m: int, k: int, n: int):
    generator = torch.Generator().manual_seed(m + k + n)
    a, b = (torch.randn(s, generator=generator) * 2 for s in ((m, k), (k, n)))
    a[a.abs() < 0.2] = 0.0
    a[0, :3] = torch.tensor([2.0**-140, -0.0, 3e4])
    return lp.quantize(a, "bf16").float(), b


def events(backend: str, a, b, name: str, *, row=None, bits: bool = True):
    acc, seed = lp.accumulator(name), torch.tensor(-5)
    row = torch.arange(len(a)) if row is None else row
    return backends.select(backend, "matmul_events", a.device).matmul_events(
        a, b, acc.to_ints(), seed, Role.DIRECT, row, bits
    )


def assert_same(got, want) -> None:
    assert_bit_equal(got[0], want[0], "sums")
    assert got[1] == want[1]
    for one, other in zip(got[2:], want[2:], strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
@pytest.mark.parametrize("name", ACCUMULATORS)
def test_the_kernel_sees_what_the_reference_sees(name: str, isa: str, monkeypatch):
    monkeypatch.setenv("LPKERNELS_ISA", isa)
    if not CPU.available():
        pytest.skip(CPU.why_not())
    a, b = operands(9, 23, 11)
    assert_same(events("cpu", a, b, name), events("reference", a, b, name))


@pytest.mark.parametrize("name", ["e4m3:stochastic", "e6m9_chunk64", "fixed8_f4_wrap"])
def test_the_sums_are_those_of_matmul(name: str):
    a, b = operands(17, 600, 9)
    sums = events("cpu", a, b, name, bits=False)[0]
    assert_bit_equal(sums, lp.matmul(a, b, name, generator=torch.tensor(-5)), name)


def test_strides_threads_and_rows_do_not_matter():
    a, b = operands(19, 40, 13)
    want = events("cpu", a, b, "e4m3:stochastic")
    strided = events("cpu", a.t().contiguous().t(), b.t().contiguous().t(), "e4m3:stochastic")
    assert_same(strided, want)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert_same(events("cpu", a, b, "e4m3:stochastic"), want)
    finally:
        torch.set_num_threads(before)
    some = events("cpu", a[5:9], b, "e4m3:stochastic", row=torch.arange(5, 9))
    assert_bit_equal(some[0], want[0][5:9], "rows of their own keys")
    assert torch.equal(some[2], want[2][5:9])


def test_long_sums_pass_the_kernel_in_pieces():
    a, b = operands(3, 1500, 2)
    assert_same(events("cpu", a, b, "e5m3_chunk600"), events("reference", a, b, "e5m3_chunk600"))


def test_other_backends_say_that_they_cannot():
    assert "matmul_events" in backends.get("cuda").unsupported(
        "matmul_events", torch.device("cuda")
    )
