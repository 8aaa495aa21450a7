"""The theory of the accumulator's width, and measured sums against rationals and the theory."""

import math
import warnings

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.techniques.accumulation import (
    ModelWarning,
    accumulator_of,
    measure,
    min_mantissa_bits,
    nmse,
    vrr,
)

# Bits for 2^6, 2^7, ..., 2^24 products of 5 bits: in one sum, and in chunks of 64 by "level" and by
# "total".
MINIMUM = [4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 12, 13, 14, 15, 15, 18, 18, 19]
BY_LEVEL = [4, 4, 4, 4, 4, 4, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 12, 13]
BY_TOTAL = [4, 5, 5, 6, 6, 7, 8, 8, 9, 9, 10, 11, 12, 12, 13, 14, 15, 15, 16]


def full_loss(m_acc: int, m_p: int, n: int) -> float:
    """1 - VRR as the theorem has it, with every term of its sums added."""
    erf, erfc = torch.special.erf, torch.special.erfc
    i, j = (torch.arange(first, end, dtype=torch.float64) for first, end in ((2, n), (1, m_p + 1)))
    a = 2.0 ** (m_acc - 3 * m_p) / 3 * (2**j * (2**j - 1) * (2 ** (j + 1) - 1)).cumsum(0)
    i = i[i > a[-1]]
    swamped = erfc(2**m_acc / (2 * i).sqrt()) * erf(2**m_acc / (2 * i - 2).sqrt())
    before, edge = a[:-1], 2.0 ** (m_acc - m_p + j[1:])
    partly = edge * erfc(edge / 2 / (2 * n) ** 0.5) * erf(edge / (2 * n) ** 0.5) * (n > before)
    never = math.erf(2.0 ** (m_acc - m_p + 1) / (2 * n) ** 0.5)
    gone = (swamped * (n - i + a[-1])).sum() + (partly * before).sum()
    return (gone / ((swamped.sum() + partly.sum() + never) * n)).item()


@pytest.mark.parametrize("m_p", [2, 3, 5, 7, 9, 20])
@pytest.mark.parametrize("n", [17, 64, 1000, 4096, 5000, 2**16 + 7, 2**18])
def test_losses_are_those_of_the_full_sum(n: int, m_p: int) -> None:
    m_acc = range(2, 19)
    ratio, lost = vrr(np.array(m_acc), m_p, n)
    full = np.array([full_loss(m, m_p, n) for m in m_acc])
    some = full > 1e-25
    np.testing.assert_allclose(lost[some], full[some], rtol=1e-6)
    assert (ratio == 1 - lost).all()


@pytest.mark.filterwarnings("ignore::lpkernels.techniques.accumulation.ModelWarning")
def test_minimum_bits_are_those_of_the_formula_of_the_paper():
    n = 2 ** np.arange(6, 25)
    assert min_mantissa_bits(n, 5).tolist() == MINIMUM
    assert min_mantissa_bits(n, 5, chunk=64).tolist() == BY_LEVEL
    assert min_mantissa_bits(n, 5, chunk=64, criterion="total").tolist() == BY_TOTAL
    some = min_mantissa_bits(n, 5, chunk=np.where(n > 2**13, 64, n))
    assert some.dtype == np.int64
    assert some.tolist() == MINIMUM[:8] + BY_LEVEL[8:]


SCALARS = {"m_acc": 8, "m_p": 5, "n": 4096, "chunk": 64, "nzr": 1.0}


@pytest.mark.parametrize("function, kind, names", [
    (min_mantissa_bits, int, ["n", "m_p", "chunk", "nzr"]),
    (lambda **values: vrr(**values)[0], float, ["m_acc", "m_p", "n", "nzr"]),
    (lambda **values: vrr(**values)[1], float, ["m_acc", "m_p", "n", "nzr"]),
    (nmse, float, ["m_acc", "n", "chunk", "nzr"]),
])  # fmt: skip
def test_one_array_makes_an_array_of_the_result(function, kind: type, names: list[str]):
    plain = {name: SCALARS[name] for name in names}
    value = function(**plain)
    assert type(value) is kind
    for name in names:
        results = function(**plain | {name: np.full((2, 1), plain[name])})
        assert results.dtype == np.dtype(kind) and results.tolist() == [[value], [value]], name


def test_the_bits_found_pass_and_one_fewer_does_not():
    assert 4096 * vrr(8, 5, 4096)[1] == pytest.approx(4.20414, rel=1e-5)
    assert 4096 * vrr(9, 5, 4096)[1] == pytest.approx(0.987836, rel=1e-5)
    assert min_mantissa_bits(4096, 5, cutoff=math.exp(4.21)) == 8
    # The loss does not fall with every bit.
    losses = [2**23 * vrr(m, 5, 2**23)[1] for m in (16, 17, 18)]
    assert losses == pytest.approx([7.153, 7.898, 0.008079], rel=1e-3)


def test_a_share_of_zero_products_shortens_the_sum():
    assert vrr(7, 5, 2048, nzr=0.5) == vrr(7, 5, 1024)
    assert vrr(7, 5, 2048, nzr=0.0) == vrr(7, 5, 2)
    assert min_mantissa_bits(2**17, 5, nzr=0.5) == 12
    # Half the products of each chunk of 64 count; there are still 1024 chunks, with six bits more
    # than a product.
    assert min_mantissa_bits(2**16, 5, chunk=64, nzr=0.5) == 7
    assert vrr(3, 5, 100, nzr=0.026) == vrr(3, 5, 3) != vrr(3, 5, 2)


# 150 products come in chunks of 48, and the last chunk has 6. With m_acc bits both levels lose 192
# (l1 + l2 - l1 l2): l1 is the loss of 48 products of 5 bits, and l2 the loss of 4 sums of 5 +
# floor(log2 48) bits.
@pytest.mark.parametrize(
    "cutoff, bits", [(39.9, 3), (39.7, 4), (1.6, 5), (1.55, 6), (5.3e-5, 11), (5.2e-5, 12)]
)
def test_a_short_last_chunk_is_a_sum_of_the_outer_level(cutoff: float, bits: int):
    width = min_mantissa_bits(150, 5, chunk=48, criterion="total", cutoff=math.exp(cutoff))
    assert width == bits


def test_one_product_loses_nothing_and_one_chunk_is_no_chunk():
    # Added step by step, this sum would have 2^30 terms.
    assert 0 < vrr(22, 5, 2**30)[1] < 1e-12
    assert vrr(1, 5, 1) == (1.0, 0.0)
    assert min_mantissa_bits(1, 5) == 1
    assert min_mantissa_bits(1, 5, metric="nmse") == 1
    # A chunk of the whole length is no chunk.
    assert min_mantissa_bits(4096, 5, chunk=4096) == min_mantissa_bits(4096, 5, chunk=2**20) == 9


def test_bits_by_the_error_criterion_are_those_worked_out():
    assert [min_mantissa_bits(2**k, 5, metric="nmse") for k in (12, 16, 20)] == [9, 11, 13]
    assert min_mantissa_bits(2**20, 5, metric="nmse", chunk=64) == 10
    assert min_mantissa_bits(2**12, 5, metric="nmse", rounding="stochastic") == 9
    assert min_mantissa_bits(2**12, 5, metric="nmse", rounding="aligned_truncation") == 9
    # The measured value is 6.1e-3.
    assert nmse(6, 2**16, chunk=64) == pytest.approx(6.0e-3, rel=0.01)
    assert nmse(8, 2**12, rounding="stochastic") == 2 * nmse(8, 2**12)
    assert nmse(8, 2**12, rounding="aligned_truncation") == 0.055 * 2**12 / 4**8
    # The measured value is 1.56e-3.
    chunked = nmse(7, 2**16, chunk=64, rounding="aligned_truncation")
    assert chunked == pytest.approx(1.62e-3, rel=0.01)
    assert nmse(np.array([3, 4]), 1).tolist() == [0.0, 0.0]


def test_where_the_model_is_wrong_there_is_a_warning():
    with pytest.warns(ModelWarning, match=r"from 2\^22 on"):
        min_mantissa_bits(2**22, 5)
    with pytest.warns(ModelWarning, match="adds noise"):
        min_mantissa_bits(2**12, 5, rounding="stochastic")
    with pytest.warns(ModelWarning, match="add 3 bits"):
        min_mantissa_bits(2**12, 5, rounding="aligned_truncation")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Chunks keep long sums inside the model.
        assert min_mantissa_bits(2**24, 5, chunk=64) == 13


def operands(m: int, k: int, n: int, fmt: str = "e5m2", seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(s, generator=generator) for s in ((m, k), (k, n)))
    return lp.quantize(a, fmt).float(), lp.quantize(b, fmt).float()


def test_shares_of_swamped_additions_and_of_sums_that_overflow():
    # The step of e4m2 at 4 is 1: of four additions two are swamped.
    got = measure(torch.tensor([[4.0, 0.25, 0.25, 4.0]]), torch.ones(4, 1), "e4m2")
    assert (got.swamped, got.overflowed, got.counted) == (0.5, 0, 1)
    a, b = torch.full((3, 4), 100.0), torch.ones(4, 2)
    b[:, 1] = 0.5
    # e4m2 ends at 224: of two columns of sums, 400 overflows, and 200 does not.
    assert measure(a, b, "e4m2").overflowed == 0.5


def test_exact_sums_keep_everything():
    a, b = operands(8, 64, 8)
    got = measure(a, b, lp.Accumulator("fp32"))
    assert got.vrr == pytest.approx(1, abs=1e-6)
    assert got.nmse < 1e-10
    assert (got.swamped, got.overflowed, got.swamped_chunks) == (0, 0, None)
    assert (got.length, got.sums, got.product_bits) == (64, 64, 5)
    assert got.to_dict()["accumulator"] == "e8m23"
    # Native sums have no events.
    got = measure(a, b, lp.NATIVE)
    assert got.swamped is got.overflowed is None
    assert got.counted == 0
    assert got.nmse < 1e-10


def test_infinite_sums_have_no_variance_and_swamped_chunks_are_counted_apart():
    got = measure(torch.full((1, 64), 100.0), torch.full((64, 1), 100.0), "e4m3")
    assert math.isnan(got.vrr)
    assert got.overflowed == 1
    assert math.isnan(got.vrr_error)
    # Chunks of 4 are exact; the outer sum in e5m0 stops at 2^3, as 8 + 4 = 12 is between 8 and 16.
    got = measure(torch.ones(1, 64), torch.ones(64, 1), "e5m4_chunk4:outer=e5m0")
    assert got.swamped == 0
    assert got.swamped_chunks is not None and 0 < got.swamped_chunks < 1


@pytest.mark.parametrize(
    "name", ["e5m3:order=pairwise", "e5m3:order=compensated", "e5m3:block=2:aligned_bits=4"]
)
def test_additions_in_another_order_are_not_counted(name: str):
    a, b = operands(6, 40, 5)
    with pytest.raises(NotImplementedError, match=f"measure: {name} does not add one product"):
        measure(a, b, name)
    got = measure(a, b, name, counted=0)
    assert (got.swamped, got.overflowed, got.counted) == (None, None, 0)
    assert got.nmse > 0


def test_rows_stand_for_the_rest_where_there_are_too_many():
    a, b = operands(64, 128, 16)
    all_of_them = measure(a, b, "e5m4", counted=None)
    some = measure(a, b, "e5m4", counted=8 * 128 * 16)
    assert (all_of_them.counted, some.counted) == (64 * 16, 8 * 16)
    assert some.swamped == pytest.approx(all_of_them.swamped, rel=0.2)
    assert (some.vrr, some.nmse) == (all_of_them.vrr, all_of_them.nmse)
    assert measure(a, b, "e5m4", counted=0).swamped is None


def test_a_seed_repeats_the_measurement():
    a, b = operands(8, 64, 8)
    first, again, other = (
        measure(a, b, "e5m4:stochastic", generator=torch.tensor(seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.nmse != other.nmse


def test_the_knee_is_where_the_theory_puts_it():
    # x = 2^m / sqrt n: nothing is lost at 2, a third at 1/4 (Monte Carlo of the same draws: 0.993
    # and 0.671).
    short = measure(*operands(64, 256, 64), "e8m5", counted=0)
    long = measure(*operands(64, 2**14, 64), "e8m5", counted=0)
    assert short.vrr > 0.98 > vrr(5, 5, 2**10)[0]
    assert 0.60 < long.vrr < 0.74


# For sums of 2^log n products of 5 bits: rounding, length of a chunk and of a block, mantissa bits,
# and how far the measured error may lie below and above the law.
NEAREST, CUT = "nearest_even", "aligned_truncation"


@pytest.mark.parametrize("rounding, chunk, block, man_bits, log_n, low, high", [
    # 4 <= x = 2^m / sqrt n <= 8
    *((NEAREST, None, None, *sizes, 0.85, 1.15) for sizes in ((6, 8), (7, 10), (8, 10), (9, 12))),
    (NEAREST, 64, None, 6, 13, 0.85, 1.15),
    *((CUT, None, block, m, 12, 0.8, 1.15) for block in (1, 32) for m in (7, 8)),
    (CUT, 64, None, 6, 12, 0.9, 1.1),
    ("stochastic", None, None, 5, 10, 0.6, 1.1),
])  # fmt: skip
def test_the_error_follows_the_law(rounding, chunk, block, man_bits, log_n, low, high):
    options = {} if block is None else {"block": block}
    acc = accumulator_of(lp.FloatFormat(8, man_bits), rounding, chunk=chunk, **options)
    generator = torch.Generator().manual_seed(0)
    got = measure(*operands(64, 2**log_n, 64), acc, counted=0, generator=generator)
    law = nmse(man_bits, 2**log_n, chunk=chunk, rounding=rounding)
    assert low <= got.nmse / law <= high
    assert got.nmse_error < 0.05 * got.nmse
    if block:
        # Aligned truncation loses variance in proportion to 1 / x.
        assert 0.08 < (1 - got.vrr) * 2**man_bits / 2**6 < 0.24
    if rounding == "stochastic":
        assert got.vrr > 1


def test_accumulators_of_the_theory_s_roundings():
    fmt = lp.FloatFormat(8, 6)
    assert str(accumulator_of(fmt, "nearest_even", chunk=64)) == "e8m6_chunk64"
    assert str(accumulator_of(fmt, "stochastic")) == "e8m6:stochastic"
    cut = accumulator_of(fmt, "aligned_truncation", chunk=64, block=4)
    want = "e8m6_chunk64:toward_zero:outer_rounding=nearest_even:block=4:aligned_bits=6"
    assert str(cut) == want
    with pytest.raises(ValueError, match="rounding must be one of"):
        accumulator_of(fmt, "truncation")
    with pytest.raises(ValueError, match=r"aligned_bits .*1\.\.40, got 0"):
        accumulator_of(lp.FloatFormat(5, 0), "aligned_truncation")
