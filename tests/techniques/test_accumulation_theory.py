"""The theory of the accumulator's width: vectors, limits of the model, wrong arguments."""

import math
import warnings

import numpy as np
import pytest
import torch

from lpkernels.techniques.accumulation import ModelWarning, min_mantissa_bits, nmse, vrr
from tests.loops import each, rows
from tests.support.refusals import refused

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


@rows(
    "m_p, n, losses",
    # These are 1 - VRR by m_acc; every step of the sum is added in float64, to seven digits.
    (5, 64, {3: 2.470859e-1, 4: 3.505378e-2, 5: 7.806770e-3}),
    (5, 256, {5: 4.016289e-2, 6: 3.949509e-3}), (5, 1024, {6: 5.470953e-2, 7: 1.999151e-3}),
    (5, 4096, {8: 1.026401e-3, 9: 2.411709e-4}),
    (5, 65536, {8: 3.133722e-1, 10: 3.575561e-4, 11: 6.051614e-5, 12: 1.646699e-5}),
    (5, 2**18, {9: 3.152475e-1, 10: 1.565997e-1}),
    (5, 2**20, {12: 4.615698e-4, 14: 4.127184e-6, 15: 1.971426e-6}),
    (2, 1024, {7: 3.485515e-3}), (3, 1024, {7: 2.051428e-3}), (7, 1024, {7: 2.159985e-3}),
    (9, 4096, {9: 2.757962e-4}), (7, 65536, {10: 3.731975e-4}), (20, 65536, {12: 1.755256e-5}),
)  # fmt: skip
def test_losses_are_those_of_the_full_sum(m_p: int, n: int, losses: dict[int, float]):
    for m_acc, loss in losses.items():
        kept, got = vrr(m_acc, m_p, n)
        assert got == pytest.approx(loss, rel=1e-6), m_acc
        assert full_loss(m_acc, m_p, n) == pytest.approx(loss, rel=1e-6), m_acc
        assert kept == 1 - got


@each("n", [17, 1000, 5000, 2**16 + 7, 2**18])
def test_the_integral_is_the_full_sum(n: int):
    m_acc = np.arange(2, 19)
    fast = vrr(m_acc, 5, n)[1]
    full = np.array([full_loss(m, 5, n) for m in range(2, 19)])
    some = full > 1e-25
    np.testing.assert_allclose(fast[some], full[some], rtol=1e-6)


@pytest.mark.filterwarnings("ignore::lpkernels.techniques.accumulation.ModelWarning")
def test_minimum_bits():
    n = 2 ** np.arange(6, 25)
    assert min_mantissa_bits(n, 5).tolist() == MINIMUM
    assert min_mantissa_bits(n, 5, chunk=64).tolist() == BY_LEVEL
    assert min_mantissa_bits(n, 5, chunk=64, criterion="total").tolist() == BY_TOTAL
    some = min_mantissa_bits(n, 5, chunk=np.where(n > 2**13, 64, n))
    assert some.dtype == np.int64
    assert some.tolist() == MINIMUM[:8] + BY_LEVEL[8:]


SCALARS = {"m_acc": 8, "m_p": 5, "n": 4096, "chunk": 64, "nzr": 1.0}


@rows(
    "function, kind, names",
    (min_mantissa_bits, int, ["n", "m_p", "chunk", "nzr"]),
    (lambda **given: vrr(**given)[0], float, ["m_acc", "m_p", "n", "nzr"]),
    (lambda **given: vrr(**given)[1], float, ["m_acc", "m_p", "n", "nzr"]),
    (nmse, float, ["m_acc", "n", "chunk", "nzr"]),
)
def test_one_array_makes_an_array_of_the_result(function, kind: type, names: list[str]):
    plain = {name: SCALARS[name] for name in names}
    value = function(**plain)
    assert type(value) is kind
    for name in names:
        found = function(**plain | {name: np.full((2, 1), plain[name])})
        assert found.dtype == np.dtype(kind) and found.tolist() == [[value], [value]], name


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
@each("cutoff, bits", [(39.9, 3), (39.7, 4), (1.6, 5), (1.55, 6), (5.3e-5, 11), (5.2e-5, 12)])
def test_a_short_last_chunk_is_a_sum_of_the_outer_level(cutoff: float, bits: int):
    found = min_mantissa_bits(150, 5, chunk=48, criterion="total", cutoff=math.exp(cutoff))
    assert found == bits


def test_one_product_loses_nothing_and_one_chunk_is_no_chunk():
    # Added step by step, this sum would have 2^30 terms.
    assert 0 < vrr(22, 5, 2**30)[1] < 1e-12
    assert vrr(1, 5, 1) == (1.0, 0.0)
    assert min_mantissa_bits(1, 5) == 1
    assert min_mantissa_bits(1, 5, metric="nmse") == 1
    # A chunk of the whole length is no chunk.
    assert min_mantissa_bits(4096, 5, chunk=4096) == min_mantissa_bits(4096, 5, chunk=2**20) == 9


def test_error_criterion():
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


WRONG = [
    (lambda: vrr(0, 5, 64), ValueError, r"m_acc: expected mantissa bits in 1\.\.52.*got 0"),
    (lambda: vrr(7, -1, 64), ValueError, r"m_p: expected mantissa bits in 0\.\.105"),
    (lambda: vrr(7, 5, 0), ValueError, r"n: expected a number of products in 1\.\.2\^53, got 0"),
    (lambda: vrr(7, 5, 64, nzr=1.5), ValueError, "share of products.*got 1.5"),
    (lambda: min_mantissa_bits(64, 5, chunk=0), ValueError, "chunk: expected a number of"),
    (lambda: min_mantissa_bits(64, 5, criterion="both"), ValueError, "level, total"),
    (lambda: min_mantissa_bits(64, 5, rounding="toward_zero"), ValueError, "aligned_trunc"),
    (lambda: min_mantissa_bits(64, 5, cutoff=1.0), ValueError, "finite number above 1"),
    (lambda: min_mantissa_bits(2**40, 5, eps=1e-40, metric="nmse"), ValueError, "at most 52 mant"),
]
test_wrong_arguments = refused(WRONG)
