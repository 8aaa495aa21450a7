"""The bits of integer accumulators, by the worst inputs there are and by the bounds of papers."""

import numpy as np
import pytest

from lpkernels.arithmetic import bits_without_overflow
from tests.support.refusals import refused


def extremes(weights: np.ndarray, input_bits: int, signed: bool) -> tuple[int, int]:
    """The largest and the smallest sum of products over all inputs."""
    low, high = (-(2 ** (input_bits - 1)), 2 ** (input_bits - 1) - 1)
    if not signed:
        low, high = 0, 2**input_bits - 1
    ends = np.stack([weights * low, weights * high])
    return int(ends.max(axis=0).sum()), int(ends.min(axis=0).sum())


def fits(value: int, accumulator_bits: int) -> bool:
    return -(2 ** (accumulator_bits - 1)) <= value < 2 ** (accumulator_bits - 1)


@pytest.mark.parametrize("p, n", [(p, n) for p in (4, 9, 16) for n in (1, 2, 3, 8) if p > n])
def test_weights_up_to_the_norms_of_the_papers_fit(p: int, n: int) -> None:
    # A2Q, of unsigned and of signed inputs; in A2Q+ the weights sum to 0.
    unsigned, signed = (2 ** (p - 1) - 1) // (2**n - 1), (2 ** (p - 1) - 1) // 2 ** (n - 1)
    assert bits_without_overflow([unsigned], n) <= p < bits_without_overflow([unsigned + 1], n)
    # Signed inputs reach further down than up, so negative weights overflow first.
    assert bits_without_overflow([-signed], n, signed_inputs=True) <= p
    assert bits_without_overflow([-signed - 1], n, signed_inputs=True) > p
    half = (2**p - 2) // (2**n - 1) // 2
    assert bits_without_overflow([half, -half], n) <= p
    assert bits_without_overflow([half + 1, -half - 1], n) > p


def test_bits_without_overflow_takes_many_sums_at_once() -> None:
    weights = np.array([[[3, -4], [3, 5]], [[7, 0], [0, -8]]])
    assert bits_without_overflow(weights, 1).tolist() == [[3, 5], [4, 4]]
    assert bits_without_overflow(np.zeros((3, 0), dtype=np.int8), 4).tolist() == [2, 2, 2]
    assert bits_without_overflow(np.array([2**62]), 1).tolist() == 64


REFUSED = [
    (lambda: bits_without_overflow([1], 0), ValueError, r"input_bits must be in 1\.\.62, got 0"),
    (lambda: bits_without_overflow([1], 8.0), TypeError, "input_bits must be an int"),
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
