"""Hadamard transforms: TransformerEngine's vectors, rationals, and the matrix's own properties."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from lpkernels import ops
from lpkernels.arithmetic.hadamard import HADAMARD_SIZES, TE_SIGNS, signs_of
from lpkernels.formats import BF16
from lpkernels.reference.hadamard import hadamard
from lpkernels.reference.values import narrow
from lpkernels.rounding import round_scalar
from tests.compare import assert_bit_equal
from tests.support.elements import hard_runs


def widened(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def sylvester(size: int) -> np.ndarray:
    """H by its recursion."""
    h = np.ones((1, 1))
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    return h


def test_transformer_engine() -> None:
    with np.load(Path(__file__).parents[1] / "data" / "transforms" / "te_hadamard.npz") as stored:
        x, y, signs = widened(stored["x"]), widened(stored["y"]), stored["signs"]
    assert tuple(signs) == TE_SIGNS
    assert_bit_equal(hadamard(x.T, 16, TE_SIGNS, -1), y)
    for backend in ("reference", "auto"):
        got = ops.hadamard(torch.from_numpy(x).bfloat16().t(), 16, "te", 1, backend)
        assert got.is_contiguous()
        assert_bit_equal(got, y, backend)


def exact(run: list[float], signs: tuple[int, ...]) -> list[float]:
    """Each sum in units of 2^-149, and its quotient to 200 more bits with a last one that says
    whether it is exact; infinities and NaN add up as in IEEE 754."""
    size, terms = len(run), [v * sign for v, sign in zip(run, signs, strict=True)]
    rows = sylvester(size).astype(int).tolist()
    if not all(map(math.isfinite, terms)):
        special = [0.0 if math.isfinite(v) else v for v in terms]
        return [sum(v * h for v, h in zip(special, row, strict=True)) for row in rows]
    results = []
    for row in rows:
        units = sum(int(math.ldexp(v, 149)) * h for v, h in zip(terms, row, strict=True))
        square = units * units << 400
        root = math.isqrt(square // size)
        magnitude = Fraction(2 * root + (root * root * size != square), 2**350)
        quotient = -magnitude if units < 0 else magnitude
        results.append(round_scalar(quotient, BF16, "nearest_even"))
    return results


@pytest.mark.parametrize("size", HADAMARD_SIZES)
def test_every_result_is_the_exact_quotient_rounded_once(size: int) -> None:
    signs = signs_of(size, 5)
    for name, x in hard_runs(size, signs):
        want = [exact(run, signs) for run in x.astype(np.float64).reshape(-1, size).tolist()]
        wide = np.array(want).reshape(x.shape)
        assert_bit_equal(hadamard(x, size, signs, -1), narrow(wide), name)


def test_signs_of_seeds() -> None:
    """Half of the signs are -1, and no two seeds share them."""
    drawn = np.array([signs_of(128, seed) for seed in range(400)])
    assert set(np.unique(drawn)) == {-1, 1}
    assert abs(drawn.mean()) < 4 / np.sqrt(drawn.size)
    assert len({tuple(each) for each in drawn}) == 400
    assert signs_of(32, 7) == signs_of(128, 7)[:32]
