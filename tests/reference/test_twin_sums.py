"""The vectorised sums have the bits of the exact ones, for every Accumulator and hard operands."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.reference import exact, twin
from lpkernels.reference.addition import odd_sum
from lpkernels.reference.sums import tiles
from tests.cases import EVERY_ACCUMULATOR, MATMUL_SHAPES, ROUNDINGS, formats_named
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.operands import KINDS, operand

SEED = 0x1234_5678_9ABC_DEF0
DRAWN = accumulator("e5m2_chunk5:stochastic:product=e6m5:product_rounding=stochastic:outer=e5m1")
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


Shape = tuple[int, int, int]


def cases() -> Iterator[tuple[Shape, str, Accumulator]]:
    """Every kind of operand, sums that wrap, shapes, chunks and numbers of random bits."""
    yield from itertools.product([(1, 23, 3)], KINDS, EVERY_ACCUMULATOR)
    yield from itertools.product([(3, 13, 2)], ["wide", "huge", "ties", "subnormal"], WRAPPING)
    small = [shape for shape in MATMUL_SHAPES if np.prod(shape) <= 255]
    yield from itertools.product(small, ["wide"], EVERY_ACCUMULATOR[::4])
    for chunk, length in itertools.product([1, 2, 5, 7, 8, 64], [0, 1, 7, 15]):
        acc = Accumulator("e5m3", chunk=chunk, outer="e4m4", rounding="toward_negative")
        yield (2, length, 2), "ties", acc
    for rng, bits in itertools.product(["fast", "philox"], [1, 8, 9, 16, 17, 24]):
        yield (3, 13, 3), "plain", replace(DRAWN, random_bits=bits, rng=rng)


@each("shape, kind, acc", cases())
def test_matmul_equals_exact(shape: Shape, kind: str, acc: Accumulator) -> None:
    rows, length, cols = shape
    rng = np.random.default_rng(rows + 10 * length + 100 * cols)
    a, b, bias = (operand(kind, size, rng) for size in ((rows, length), (length, cols), (cols,)))
    want = exact.matmul(a, b, bias, acc, seed=SEED)
    assert_bit_equal(twin.matmul(a, b, bias, acc, seed=SEED), want)


SHAPES = [
    ((2, 3, 4), (4, 3)), ((2, 3, 4), (2, 4, 3)), ((4, 5), (3, 5, 2)), ((3, 1, 2, 4), (2, 4, 1)),
    ((0, 2, 3), (3, 2)), ((2, 2, 0), (2, 0, 3)),
]  # fmt: skip


@each("left, right", SHAPES)
def test_matmul_broadcasts_leading_dimensions(left: tuple, right: tuple) -> None:
    rng = np.random.default_rng(3)
    a, b = operand("plain", left, rng), operand("plain", right, rng)
    acc = Accumulator("e5m3", "stochastic")
    got = twin.matmul(a, b, None, acc, seed=SEED)
    assert got.shape == np.matmul(a, b).shape
    assert_bit_equal(got, exact.matmul(a, b, None, acc, seed=SEED))


def test_matmul_does_not_depend_on_strides_or_other_rows(rng: np.random.Generator) -> None:
    a, b = operand("wide", (40, 30), rng), operand("wide", (30, 20), rng)
    acc = Accumulator("e5m4", "stochastic", chunk=7)
    whole = twin.matmul(a, b, None, acc, seed=SEED)
    assert_bit_equal(
        twin.matmul(np.asfortranarray(a), b[:, ::-1][:, ::-1], None, acc, seed=SEED), whole
    )
    assert_bit_equal(twin.matmul(a[:3], b, None, acc, seed=SEED), whole[:3])


def test_matmul_does_not_depend_on_tiles(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch):
    a, b = operand("wide", (3, 10, 9), rng), operand("wide", (3, 9, 8), rng)
    acc = Accumulator("e5m4", "stochastic", chunk=7)
    whole = twin.matmul(a, b, None, acc, seed=SEED)
    monkeypatch.setattr("lpkernels.reference.sums._TILE_OUTPUTS", 70)
    assert [(t.start, t.stop) for t in tiles(3, 5, 8, 9)] == [(0, 2), (2, 4), (4, 5)]
    assert_bit_equal(twin.matmul(a, b, None, acc, seed=SEED), whole)


FORMATS = formats_named("""
    fp32 fp16 e8m0 e8m22 e4m3fn e3m2none_sat e5m3_nosub e5m2_nan fixed8_f4 fixed8_f4_wrap
    ufixed5_f-3_wrap fixed24_f140_wrap fixed1_f0_wrap
""")


def totals(fmt: FloatFormat | FixedFormat) -> np.ndarray:
    """Values of the format: its ends, its smallest, one, both zeros."""
    if isinstance(fmt, FixedFormat):
        codes = np.array([0, 1, -1, 3, fmt.max_code, fmt.min_code, fmt.max_code - 1])
        return np.unique(np.clip(codes, fmt.min_code, fmt.max_code)) * fmt.quantum
    positive = [0.0, 2.0 ** (fmt.emin - fmt.man_bits), fmt.min_normal, fmt.min_normal * 2, fmt.max]
    if not fmt.subnormals:
        positive.remove(2.0 ** (fmt.emin - fmt.man_bits))
    if fmt.overflow == "infinity":
        positive.append(np.inf)
    return np.array(positive + [-v for v in positive])


def addends(fmt: FloatFormat | FixedFormat, rng: np.random.Generator) -> np.ndarray:
    """Products of at most 48 bits: around the totals, far below and above them, and specials."""
    near = totals(fmt)
    near = near[np.isfinite(near) & (near != 0)]
    quantum = fmt.quantum if isinstance(fmt, FixedFormat) else 2.0 ** (fmt.emin - fmt.man_bits)
    parts = [near, near / 2, near / 2 * (1 + 2.0**-47), near / 2 * (1 - 2.0**-47), near * 1.5]
    wide = rng.integers(2**46, 2**48, 8) * 2.0 ** rng.integers(-60, 60, 8)
    parts += [wide * quantum, np.array([2.0**-298, 2.0**255, 2.0**-149, 0.0, np.inf])]
    x = np.concatenate(parts)
    x = x[(x < 2.0**256) | np.isinf(x)]
    return np.concatenate([x, -x, [np.nan]])


@each("rounding, fmt", ROUNDINGS, FORMATS)
def test_add_equals_exact(fmt: FloatFormat | FixedFormat, rounding: str, rng: np.random.Generator):
    total, addend = totals(fmt)[:, None], addends(fmt, rng)
    shape = np.broadcast_shapes(total.shape, addend.shape)
    bits = rng.integers(0, 2**24, shape, dtype=np.uint32)
    got = twin.add(total, addend, fmt, rounding, draws=bits, random_bits=24)
    want = np.empty(shape)
    for i, j in np.ndindex(shape):
        a, b = float(total[i, 0]), exact.product(float(addend[j]), 1.0)
        want[i, j] = exact.add(a, b, fmt, rounding, draw=int(bits[i, j]), random_bits=24)
    got, want = (np.where(np.isnan(x), np.nan, x) for x in (got, want))
    assert_bit_equal(got, want, f"{fmt} {rounding}")


def test_odd_sum_is_the_odd_neighbour_of_an_inexact_sum() -> None:
    ulp = 2.0**-52
    rows = [
        (1.0, 2.0**-80, 1 + ulp), (1.0, -(2.0**-80), 1 - ulp / 2), (1 + ulp, 2.0**-80, 1 + ulp),
        (1 + ulp, -(2.0**-80), 1 + ulp), (-1.0, 2.0**-80, -1 + ulp / 2), (1.0, ulp, 1 + ulp),
        (np.inf, 1.0, np.inf), (2.0, -2.0, 0.0), (-0.0, -0.0, -0.0),
    ]  # fmt: skip
    a, b, want = np.array(rows).T
    assert_bit_equal(odd_sum(a, b), want)
    assert np.isnan(odd_sum(np.array([np.inf]), np.array([-np.inf]))).all()
