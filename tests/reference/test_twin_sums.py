"""The vectorised sums have the bits of the exact ones, for every Accumulator and hard operands."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lpkernels.arithmetic import Accumulator
from lpkernels.reference import exact, twin
from lpkernels.reference.sums import tiles
from tests.cases import EVERY_ACCUMULATOR, EVERY_FORMAT, ROUNDINGS, hard_values
from tests.compare import assert_bit_equal
from tests.numbers import constructed
from tests.numbers.constructed import tables_of_this_module_alone  # noqa: F401
from tests.support import strategies
from tests.support.products import KINDS, operand

SEED = 0x1234_5678_9ABC_DEF0
SUMS = (constructed.accumulators | strategies.accumulators()).filter(
    lambda acc: acc.order != "native" and acc.chunk != "scale" and acc.group is None
)
F32 = NDArray[np.float32]
FACTORS = np.float32([1, -1, 0.5, 1 + 2.0**-23, 1 - 2.0**-24])


def values(kind: str, shape: tuple[int, ...], acc: Accumulator, rng: np.random.Generator) -> F32:
    """Operands of a kind; of the kind "format" the values where rounding to the sum's format goes
    wrong first: its ends, ties and smallest values, as float32."""
    if kind != "format":
        return operand(kind, shape, rng)
    with np.errstate(over="ignore", invalid="ignore"):
        return rng.choice(hard_values(acc.outermost, count=10), shape).astype(np.float32)


def assert_exact(shape: tuple[int, int, int], kind: str, acc: Accumulator, seed: int) -> None:
    """Products of one kind of operands: half have a bias, half a start."""
    rows, length, cols = shape
    rng = np.random.default_rng(seed)
    a, bias = (values(kind, size, acc, rng) for size in ((rows, length), (cols,)))
    size = length, cols
    b = rng.choice(FACTORS, size) if kind == "format" else values(kind, size, acc, rng)
    # A tree has no start.
    starts = seed % 2 and (acc.order != "pairwise" or acc.chunk is not None)
    initial = values(kind, (rows, cols), acc, rng) if starts else None
    bias = bias if seed % 4 < 2 else None
    want = exact.matmul(a, b, bias, acc, seed=seed, initial=initial)
    got = twin.matmul(a, b, bias, acc, seed=seed, initial=initial)
    assert_bit_equal(got, want, f"{kind} operands, {acc}, seed {seed}")


@pytest.mark.parametrize("acc", EVERY_ACCUMULATOR)
def test_matmul_equals_exact(acc: Accumulator) -> None:
    for kind in KINDS:
        assert_exact((1, 23, 3), kind, acc, 0x1234_5678_9ABC_DEF0)


@pytest.mark.parametrize("fmt", EVERY_FORMAT)
@pytest.mark.parametrize("kind", ["cancelling", "format"])
def test_additions_at_zero_and_at_the_ends_equal_exact_ones(kind: str, fmt) -> None:
    """Without a bias; the second sum has a start."""
    for rounding in ROUNDINGS:
        for seed in (2, 3):
            assert_exact((2, 3, 2), kind, Accumulator(fmt, rounding), seed)


@settings(
    max_examples=400, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
@given(
    st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 3)),
    st.sampled_from(KINDS),
    SUMS,
    st.integers(0, 2**40),
)
def test_any_sum_equals_the_exact_one(shape, kind: str, acc: Accumulator, seed: int) -> None:
    assert_exact(shape, kind, acc, seed)


SHAPES = [
    ((2, 3, 4), (4, 3)), ((2, 3, 4), (2, 4, 3)), ((4, 5), (3, 5, 2)), ((3, 1, 2, 4), (2, 4, 1)),
    ((0, 2, 3), (3, 2)), ((2, 2, 0), (2, 0, 3)),
]  # fmt: skip


@pytest.mark.parametrize("left, right", SHAPES)
def test_matmul_broadcasts_leading_dimensions(left: tuple, right: tuple) -> None:
    rng = np.random.default_rng(3)
    a, b = operand("plain", left, rng), operand("plain", right, rng)
    acc = Accumulator("e5m3", "stochastic")
    got = twin.matmul(a, b, None, acc, seed=9)
    assert got.shape == np.matmul(a, b).shape
    assert_bit_equal(got, exact.matmul(a, b, None, acc, seed=9))


def test_matmul_does_not_depend_on_strides_or_other_rows(rng: np.random.Generator) -> None:
    a, b = operand("wide", (40, 30), rng), operand("wide", (30, 20), rng)
    acc = Accumulator("e5m4", "stochastic", chunk=7)
    whole = twin.matmul(a, b, None, acc, seed=9)
    assert_bit_equal(
        twin.matmul(np.asfortranarray(a), b[:, ::-1][:, ::-1], None, acc, seed=9), whole
    )
    assert_bit_equal(twin.matmul(a[:3], b, None, acc, seed=9), whole[:3])


def test_matmul_does_not_depend_on_tiles(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch):
    a, b = operand("wide", (3, 10, 9), rng), operand("wide", (3, 9, 8), rng)
    acc = Accumulator("e5m4", "stochastic", chunk=7)
    whole = twin.matmul(a, b, None, acc, seed=9)
    monkeypatch.setattr("lpkernels.reference.sums._TILE_OUTPUTS", 70)
    assert [(t.start, t.stop) for t in tiles(3, 5, 8, 9)] == [(0, 2), (2, 4), (4, 5)]
    assert_bit_equal(twin.matmul(a, b, None, acc, seed=9), whole)
