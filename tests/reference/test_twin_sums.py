"""The vectorised sums have the bits of the exact ones, for every Accumulator and hard operands."""

import numpy as np
import pytest

from lpkernels.arithmetic import Accumulator
from lpkernels.reference import exact, twin
from lpkernels.reference.sums import tiles
from tests.cases import ACCUMULATORS, MATMUL_SHAPES, ROUNDINGS
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.operands import KINDS, operand

SEED = 0x1234_5678_9ABC_DEF0

WRAPPING = [
    Accumulator(fmt, rounding, random_bits=bits)
    for fmt in ("fixed8_f3_wrap", "ufixed5_f-3_wrap", "fixed24_f140_wrap", "fixed1_f0_wrap")
    for rounding, bits in (("nearest_even", 8), ("toward_zero", 8), ("stochastic", 24))
]
WRAPPING += [
    Accumulator(acc.fmt, acc.rounding, order="pairwise", random_bits=acc.random_bits)
    for acc in WRAPPING
] + [
    Accumulator("fixed8_f3_wrap", order="compensated"),
    Accumulator("fixed24_f140_wrap", "toward_zero", block=5, aligned_bits=40),
]


def matmul_both(
    shape: tuple[int, int, int], kind: str, acc: Accumulator, seed: int = SEED
) -> tuple[np.ndarray, np.ndarray]:
    rows, length, cols = shape
    rng = np.random.default_rng(rows + 10 * length + 100 * cols)
    a, b = operand(kind, (rows, length), rng), operand(kind, (length, cols), rng)
    bias = operand(kind, (cols,), rng)
    got = twin.matmul(a, b, bias, acc, seed=seed)
    return got, exact.matmul(a, b, bias, acc, seed=seed)


@each("kind", KINDS)
@each("acc", ACCUMULATORS)
def test_matmul_equals_exact_for_every_accumulator(acc: Accumulator, kind: str) -> None:
    assert_bit_equal(*matmul_both((1, 23, 3), kind, acc))


@each("acc", WRAPPING)
@each("kind", ["wide", "huge", "ties", "subnormal"])
def test_matmul_equals_exact_when_the_sum_wraps(acc: Accumulator, kind: str) -> None:
    assert_bit_equal(*matmul_both((3, 13, 2), kind, acc))


@each("acc", ACCUMULATORS[::4])
@each("shape", [s for s in MATMUL_SHAPES if np.prod(s) <= 255])
def test_matmul_equals_exact_for_every_shape(shape: tuple, acc: Accumulator) -> None:
    assert_bit_equal(*matmul_both(shape, "wide", acc))


@each("chunk", [1, 2, 5, 7, 8, 64])
@each("length", [0, 1, 7, 15])
def test_matmul_equals_exact_for_every_chunk_and_length(chunk: int, length: int) -> None:
    acc = Accumulator("e5m3", chunk=chunk, outer="e4m4", rounding="toward_negative")
    assert_bit_equal(*matmul_both((2, length, 2), "ties", acc))


@each("generator", ["fast", "philox"])
@each("random_bits", [1, 8, 9, 16, 17, 24])
def test_matmul_equals_exact_for_every_number_of_random_bits(
    random_bits: int, generator: str
) -> None:
    acc = Accumulator(
        "e5m2",
        "stochastic",
        product="e6m5",
        product_rounding="stochastic",
        chunk=5,
        outer="e5m1",
        random_bits=random_bits,
        rng=generator,
    )
    assert_bit_equal(*matmul_both((3, 13, 3), "plain", acc))


@each("rounding", ROUNDINGS)
@each("fmt", ["fp32", "e8m22", "e8m0", "e5m10"])
def test_matmul_equals_exact_where_float64_alone_would_round_twice(fmt: str, rounding: str) -> None:
    # A product 2^-80 below decides a tie of the format between 1 and its neighbour.
    man_bits = Accumulator(fmt).fmt.man_bits
    half = np.float32(2.0 ** (-man_bits - 1))
    b = np.array([[1, 1, 1, -1, 1]] * 3, dtype=np.float32).T
    a = np.array([[1, half, 0, 0, 0], [1, 0, half, 0, 0], [-1, 0, -half, 0, 0]], dtype=np.float32)
    a[:, 3] = a[:, 4] = 2.0**-40
    b[3], b[4] = [2.0**-40, -(2.0**-40), 0], [2.0**-41, 2.0**-41, 2.0**-41]
    # Here one step decides: the tie and the sticky bit come in one product of 48 bits.
    c = np.array([[1, 1 + 2.0**-23]], dtype=np.float32)
    d = np.array([[1], [half * (1 + 2.0**-23)]], dtype=np.float32)
    acc = Accumulator(fmt, rounding, random_bits=24)
    for left, right in ((a, b), (c, d), (-c, d)):
        got = twin.matmul(left, right, None, acc, seed=SEED)
        assert_bit_equal(got, exact.matmul(left, right, None, acc, seed=SEED))


@each(
    "left, right",
    [((2, 3, 4), (4, 3)), ((2, 3, 4), (2, 4, 3)), ((4, 5), (3, 5, 2)), ((3, 1, 2, 4), (2, 4, 1))],
)
def test_matmul_broadcasts_leading_dimensions(left: tuple, right: tuple) -> None:
    rng = np.random.default_rng(3)
    a, b = operand("plain", left, rng), operand("plain", right, rng)
    acc = Accumulator("e5m3", "stochastic")
    got = twin.matmul(a, b, None, acc, seed=SEED)
    assert got.shape == np.matmul(a, b).shape
    assert_bit_equal(got, exact.matmul(a, b, None, acc, seed=SEED))


@each("left, right", [((0, 2, 3), (3, 2)), ((2, 2, 0), (2, 0, 3))])
def test_matmul_takes_empty_dimensions(left: tuple, right: tuple) -> None:
    got = twin.matmul(np.ones(left, np.float32), np.ones(right, np.float32), None, Accumulator())
    assert_bit_equal(
        got, np.zeros((*np.broadcast_shapes(left[:-2], right[:-2]), 2, right[-1]), "f")
    )


def test_matmul_does_not_depend_on_strides_or_other_rows(rng: np.random.Generator) -> None:
    a, b = operand("wide", (40, 30), rng), operand("wide", (30, 20), rng)
    acc = Accumulator("e5m4", "stochastic", chunk=7)
    whole = twin.matmul(a, b, None, acc, seed=SEED)
    assert_bit_equal(
        twin.matmul(np.asfortranarray(a), b[:, ::-1][:, ::-1], None, acc, seed=SEED), whole
    )
    assert_bit_equal(twin.matmul(a[:3], b, None, acc, seed=SEED), whole[:3])


def test_matmul_does_not_depend_on_tiles(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operand("wide", (3, 10, 9), rng), operand("wide", (3, 9, 8), rng)
    acc = Accumulator("e5m4", "stochastic", chunk=7)
    whole = twin.matmul(a, b, None, acc, seed=SEED)
    monkeypatch.setattr("lpkernels.reference.sums._TILE_OUTPUTS", 70)
    assert [(t.start, t.stop) for t in tiles(3, 5, 8, 9)] == [(0, 2), (2, 4), (4, 5)]
    assert_bit_equal(twin.matmul(a, b, None, acc, seed=SEED), whole)
