"""The l1 bounds of integer accumulators, by the worst inputs there are."""

import numpy as np
import pytest

from lpkernels.arithmetic import bits_without_overflow, max_l1_norm
from tests.support.refusals import refused

CASES = [(p, n) for p in (4, 9, 16) for n in (1, 2, 3, 8) if p > n]


def extremes(weights: np.ndarray, input_bits: int, signed: bool) -> tuple[int, int]:
    """The largest and the smallest sum of products over all inputs."""
    low, high = (-(2 ** (input_bits - 1)), 2 ** (input_bits - 1) - 1)
    if not signed:
        low, high = 0, 2**input_bits - 1
    ends = np.stack([weights * low, weights * high])
    return int(ends.max(axis=0).sum()), int(ends.min(axis=0).sum())


def fits(value: int, accumulator_bits: int) -> bool:
    return -(2 ** (accumulator_bits - 1)) <= value < 2 ** (accumulator_bits - 1)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("p, n", CASES)
def test_weights_within_the_bound_never_overflow_and_one_more_can(p: int, n: int, signed: bool):
    bound = max_l1_norm(p, n, signed_inputs=signed)
    rng = np.random.default_rng(p + n)
    for _ in range(20):
        places = rng.integers(0, 6, bound)
        weights = np.bincount(places, minlength=6) * rng.choice([-1, 1], 6)
        assert np.abs(weights).sum() == bound
        assert all(fits(end, p) for end in extremes(weights, n, signed))
        assert bits_without_overflow(weights, n, signed_inputs=signed) <= p
    # Signed inputs reach further down than up, so negative weights overflow first.
    worst = np.array([bound + 1]) * (-1 if signed else 1)
    assert not all(fits(end, p) for end in extremes(worst, n, signed))
    assert bits_without_overflow(worst, n, signed_inputs=signed) > p


@pytest.mark.parametrize("p, n", CASES)
def test_weights_that_sum_to_zero_may_be_twice_as_large(p: int, n: int) -> None:
    bound = max_l1_norm(p, n, zero_centred=True)
    assert bound in (2 * max_l1_norm(p, n), 2 * max_l1_norm(p, n) + 1)
    half = bound // 2
    assert bits_without_overflow([half, -half], n) <= p
    assert bits_without_overflow([half + 1, -half - 1], n) > p


def test_the_bounds_of_the_papers() -> None:
    # A2Q: (2^(P-1) - 1) / 2^(N-1) for signed inputs; A2Q+: (2^P - 2) / (2^N - 1).
    assert max_l1_norm(16, 8, signed_inputs=True) == (2**15 - 1) // 2**7 == 255
    assert max_l1_norm(16, 8, zero_centred=True) == (2**16 - 2) // 255 == 256
    assert max_l1_norm(16, 8) == 128


def test_bits_without_overflow_takes_many_sums_at_once() -> None:
    weights = np.array([[[3, -4], [3, 5]], [[7, 0], [0, -8]]])
    assert bits_without_overflow(weights, 1).tolist() == [[3, 5], [4, 4]]
    assert bits_without_overflow(np.zeros((3, 0), dtype=np.int8), 4).tolist() == [2, 2, 2]
    assert bits_without_overflow(np.array([2**62]), 1).tolist() == 64


REFUSED = [
    (lambda: max_l1_norm(1, 8), ValueError, r"accumulator_bits must be in 2\.\.62, got 1"),
    (lambda: max_l1_norm(8, 0), ValueError, r"input_bits must be in 1\.\.62, got 0"),
    (lambda: max_l1_norm(8.0, 2), TypeError, "accumulator_bits must be an int"),
    (lambda: max_l1_norm(8, 2, signed_inputs=True, zero_centred=True), ValueError,
     "zero_centred=True is the bound for unsigned inputs"),
    (lambda: bits_without_overflow([0.5], 2), TypeError, "weights must be integers, got float64"),
]  # fmt: skip
test_refusals = refused(REFUSED)


@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("signed", [False, True])
def test_bits_without_overflow_are_the_fewest(n: int, signed: bool) -> None:
    weights = np.random.default_rng(n).integers(-128, 128, (40, 7), dtype=np.int8)
    weights[0] = 0
    weights[1] = -128
    needed = bits_without_overflow(weights, n, signed_inputs=signed)
    assert needed.dtype == np.int64 and needed.shape == (40,)
    for row, bits in zip(weights.astype(np.int64), needed.tolist(), strict=True):
        ends = extremes(row, n, signed)
        assert all(fits(end, bits) for end in ends)
        assert bits == 2 or not all(fits(end, bits - 1) for end in ends)
    # These sums of codes lie beyond int64.
    assert bits_without_overflow(np.array([2**62, 2**62]), 62).tolist() == 126
    assert bits_without_overflow(np.array([2**62, 2**62, 2**62]), 62).tolist() == 127
