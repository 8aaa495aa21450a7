"""The vectorised sums have the bits of the exact ones, for every Accumulator and hard operands."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.reference import exact, twin
from lpkernels.reference.addition import odd_sum
from lpkernels.reference.sums import tiles
from tests.cases import EVERY_ACCUMULATOR, ROUNDINGS, formats_named
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.numbers import constructed
from tests.numbers.constructed import tables_of_this_module_alone  # noqa: F401
from tests.support import strategies
from tests.support.operands import KINDS, operand

SEED = 0x1234_5678_9ABC_DEF0
SUMS = (constructed.accumulators | strategies.accumulators()).filter(
    lambda acc: acc.order != "native" and acc.chunk != "scale" and acc.group is None
)


def assert_exact(shape: tuple[int, int, int], kind: str, acc: Accumulator, seed: int) -> None:
    """Products of operands of a kind, with a bias; every second seed has a start, too."""
    rows, length, cols = shape
    rng = np.random.default_rng(seed)
    a, b, bias = (operand(kind, size, rng) for size in ((rows, length), (length, cols), (cols,)))
    initial = operand(kind, (rows, cols), rng) if seed % 2 else None
    want = exact.matmul(a, b, bias, acc, seed=seed, initial=initial)
    assert_bit_equal(twin.matmul(a, b, bias, acc, seed=seed, initial=initial), want)


@each("kind, acc", KINDS, EVERY_ACCUMULATOR)
def test_matmul_equals_exact(kind: str, acc: Accumulator) -> None:
    assert_exact((1, 23, 3), kind, acc, 0x1234_5678_9ABC_DEF0)


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


@each("left, right", SHAPES)
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
