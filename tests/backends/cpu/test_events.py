"""Events inside sums: the compiled kernel counts what the reference counts, on every processor."""

import pytest
import torch

import lpkernels as lp
from lpkernels.rng import Role
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.processor import Isas, Threads

ACCUMULATORS = [
    "e4m3", "e4m3:nearest_away", "e4m3:toward_zero", "e4m3:toward_positive",
    "e4m3:toward_negative", "e4m3:to_odd", "e4m3:stochastic", "e4m3:stochastic:bits=17:philox",
    "e3m3fn", "e3m3fn_sat", "e3m0none_sat", "e3m2none_sat:stochastic", "e4m3_nosub",
    "e4m3_chunk7", "e4m3_chunk7:toward_positive:outer=e3m4", "e5m2_chunk5:stochastic:outer=e4m1",
    "e4m5:product=e3m1", "e4m5:product=e3m2none_sat:product_rounding=stochastic", "lba_m7e4",
    "fixed8_f4", "fixed8_f4:nearest_away", "fixed8_f4:stochastic", "ufixed8_f4:toward_zero",
    "fixed8_f4_wrap", "fixed8_f4_wrap_chunk5:toward_negative", "e8m23", "e6m9_chunk64", "e8m9",
    "e5m7:toward_zero", "e5m3_nosub", "e8m5_chunk7:product=e5m2",
]  # fmt: skip
ORDERS = ["e4m3:order=compensated", "e4m3:block=4:aligned_bits=3", "e4m3:order=pairwise"]


def operands(m: int, k: int, n: int):
    generator = torch.Generator().manual_seed(m + k + n)
    a, b = (torch.randn(s, generator=generator) * 2 for s in ((m, k), (k, n)))
    a[a.abs() < 0.2] = 0.0
    a[0, :3] = torch.tensor([2.0**-140, -0.0, 3e4])
    return lp.quantize(a, "bf16").float(), b


def events(backend: str, a, b, name: str, *, row=None, bits: bool = True):
    acc, seed = lp.accumulator(name), torch.tensor(-5)
    row = torch.arange(len(a)) if row is None else row
    return lp.backends.select(backend, "matmul_events", a.device).matmul_events(
        a, b, acc.to_ints(), seed, Role.DIRECT, row, bits
    )


def assert_same(got, want, name: str = "sums") -> None:
    assert_bit_equal(got[0], want[0], name)
    assert got[1] == want[1], name
    for one, other in zip(got[2:], want[2:], strict=True):
        assert (one is None) == (other is None), name
        assert one is None or torch.equal(one, other), name


@each("name", ACCUMULATORS)
def test_the_kernel_sees_what_the_reference_sees(name: str, isas: Isas):
    a, b = operands(9, 23, 11)
    want = events("reference", a, b, name)
    assert want[1][1] > 0
    for isa in isas:
        assert_same(events("cpu", a, b, name), want, f"{isa} {name}")


@each("name", ["e4m3:stochastic", "e6m9_chunk64", "fixed8_f4_wrap"])
def test_the_sums_are_those_of_matmul(name: str):
    a, b = operands(17, 600, 9)
    sums = events("cpu", a, b, name, bits=False)[0]
    assert_bit_equal(sums, lp.matmul(a, b, name, generator=torch.tensor(-5)), name)


@each("name", ORDERS)
@each("backend, error", [("cpu", ValueError), ("reference", NotImplementedError)])
def test_other_orders_are_refused(backend: str, error: type[Exception], name: str):
    a, b = operands(3, 8, 2)
    with pytest.raises(error, match="events are counted in sums in sequence and in chunks"):
        events(backend, a, b, name)
    with pytest.raises(error, match="events are counted in sums in sequence and in chunks"):
        masked(backend, a, b, torch.ones(3, 2), name, 3, False)


def test_strides_threads_and_rows_do_not_matter(threads: Threads):
    a, b = operands(19, 40, 13)
    want = events("cpu", a, b, "e4m3:stochastic")
    strided = events("cpu", a.t().contiguous().t(), b.t().contiguous().t(), "e4m3:stochastic")
    assert_same(strided, want)
    for count in threads:
        assert_same(events("cpu", a, b, "e4m3:stochastic"), want, count)
    some = events("cpu", a[5:9], b, "e4m3:stochastic", row=torch.arange(5, 9))
    assert_bit_equal(some[0], want[0][5:9], "rows of their own keys")
    assert torch.equal(some[2], want[2][5:9])


def test_long_sums_pass_the_kernel_in_pieces():
    a, b = operands(2, 1100, 2)
    for name in ["e5m3_chunk600", "e5m3_chunk130"]:
        assert_same(events("cpu", a, b, name), events("reference", a, b, name))


def masked(backend: str, a, b, g, name: str, masks: int, recursive: bool, first_col: int = 0):
    acc = lp.accumulator(name).to_ints()
    of = lp.backends.select(backend, "masked_gradients", a.device)
    return of.masked_gradients(
        a, b, g, acc, torch.tensor(-5), Role.FPROP, first_col, masks, recursive
    )


@each("masks", [1, 2, 3])
@each(
    "name",
    ["e4m2", "e5m2_chunk6:stochastic:outer=e4m1", "lba_m7e4", "e3m1none_sat_chunk9", "fixed8_f1"],
)
def test_gradients_pass_where_the_reference_lets_them(name: str, masks: int, isas: Isas):
    generator = torch.Generator().manual_seed(masks)
    # Small integers: their sums are exact in float32, in any order.
    a, b, g = (
        torch.randint(-4, 5, s, generator=generator).float() for s in ((11, 37), (37, 19), (11, 19))
    )
    for recursive in (False, True):
        options = (name, masks, recursive, 3)
        want = masked("reference", a, b, g, *options)
        for isa in isas:
            for one, other in zip(masked("cpu", a, b, g, *options), want, strict=True):
                assert torch.equal(one, other), f"{isa} {recursive}"


def test_an_infinite_gradient_of_a_lost_product_is_lost():
    a, b, g = torch.tensor([[1.0, 2.0**-20]]), torch.ones(2, 1), torch.full((1, 1), torch.inf)
    left, right = masked("cpu", a, b, g, "e5m2", 1, False)
    assert left.tolist() == [[torch.inf, 0.0]]
    assert right.tolist() == [[torch.inf], [0.0]]


@each("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0)])
def test_gradients_of_empty_products_are_zeros(shape: tuple[int, int, int]):
    m, k, n = shape
    left, right = masked(
        "cpu", torch.ones(m, k), torch.ones(k, n), torch.ones(m, n), "e4m3", 3, True
    )
    assert torch.equal(left, torch.zeros(m, k)) and torch.equal(right, torch.zeros(k, n))


def test_large_products_are_masked_in_pieces_of_rows(threads: Threads):
    generator = torch.Generator().manual_seed(0)
    a, b, g = (
        torch.randint(-4, 5, s, generator=generator).float()
        for s in ((21, 1700), (1700, 600), (21, 600))
    )
    # Sums of integers below 2^15: nothing is lost.
    for _ in threads:
        left, right = masked("cpu", a, b, g, "e8m14", 3, False)
        assert torch.equal(left, g @ b.t()) and torch.equal(right, a.t() @ g)
