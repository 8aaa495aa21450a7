"""Products whose scales enter every block, against the rule in fractions, and worked cases."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from lpkernels.arithmetic import MODELS, Accumulator, as_accumulator
from lpkernels.formats import FloatFormat
from lpkernels.reference import twin
from lpkernels.reference.matmul import Scales
from lpkernels.reference.values import narrow
from lpkernels.rounding import floor_log2, round_scalar
from tests.compare import assert_bit_equal

F32 = NDArray[np.float32]

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E4M3 = np.array(
    [m * 2.0**e for e in range(-9, 6) for m in (8, 9, 13, 15)] + [2.0**-9, 0], np.float32
)
#: The last of these are subnormal, and zero.
E4M3_SCALES = np.array([1, 1.125, 448, 2.0**-6, 2.0**-7, 3 * 2.0**-9, 2.0**-9, 0], np.float32)
POWERS = np.ldexp(np.float32(1), np.arange(-127, 128))


def place_of(x: float | Fraction, least: int) -> int:
    return max(floor_log2(abs(Fraction(x))), least)


def step(total: float, addends: list[tuple[float | Fraction, int | None]], acc: Accumulator):
    """A block: every addend, with its exponent or None, and the sum so far are cut toward zero at
    one place, and their exact sum is rounded once; every zero is +0."""
    assert isinstance(acc.fmt, FloatFormat)
    if not all(math.isfinite(x) for x in (total, *(x for x, _ in addends))):
        return total + sum(float(x) for x, _ in addends if not math.isfinite(x))
    if total:
        of_total = place_of(total, floor_log2(Fraction(acc.fmt.min_normal)))
        addends = [*addends, (total, of_total)]
    places = [place for _, place in addends if place is not None]
    if not places:
        return 0.0
    least = -(10**6) if acc.least_exponent is None else acc.least_exponent
    unit = Fraction(2) ** (max(*places, least) - acc.aligned_bits)
    kept = sum((int(Fraction(x) / unit) * unit for x, _ in addends), Fraction(0))
    # Sums beyond max overflow in every mode.
    return round_scalar(kept, acc.fmt, acc.rounding, always_overflows=True) + 0.0


def addend(
    codes: list[tuple[float, float]], s: float, t: float, least: int, acc: Accumulator
) -> tuple[float | Fraction, int | None]:
    """The exact sum of a group times its scales, and the exponent by which it is aligned."""
    if s == 0 or t == 0 or not math.isfinite(s * t):
        return s * t, None
    total = sum((Fraction(x) * Fraction(y) for x, y in codes), Fraction(0))
    place = place_of(s, least) + place_of(t, least)
    if acc.group == 1:
        if 0 in codes[0]:
            return 0.0, None
        limits = (floor_log2(Fraction(fmt.min_normal)) for fmt in acc.operands)
        place += sum(place_of(x, limit) for x, limit in zip(codes[0], limits, strict=True))
    return total * Fraction(s) * Fraction(t), place


def by_groups(a: F32, b: F32, scales: Scales, acc: Accumulator, start: F32) -> F32:
    """One matrix a (M, K) @ b (K, N), from start (M, N)."""
    out = np.zeros(start.shape)
    lengths = [size or len(b) for size in (scales.left_size, scales.right_size)]
    for m, n in np.ndindex(out.shape):
        codes = list(zip(a[m].tolist(), b[:, n].tolist(), strict=True))
        total = round_scalar(float(start[m, n]), acc.fmt, acc.rounding)
        for block in range(0, len(b), acc.block):
            groups = range(block, min(block + acc.block, len(b)), acc.group)
            addends = [
                addend(codes[k : min(k + acc.group, block + acc.block)],
                       float(scales.left[m, k // lengths[0]]),
                       float(scales.right[n, k // lengths[1]]), scales.least, acc)
                for k in groups
            ]  # fmt: skip
            total = step(total, addends, acc)
        out[m, n] = total
    return narrow(out)


#: The sum, its codes, the lengths of the scales of both sides, these, and their least exponent.
CASES = (
    ("model_b200_mxf8", E4M3, (32, 32), POWERS, -127),
    ("model_b200_mxf4", E2M1, (32, 32), POWERS, -127),
    ("model_b200_mxf4", E2M1, (16, 16), POWERS[100:160], -127),
    ("model_b200_nvf4", E2M1, (16, 16), E4M3_SCALES, -6),
    # Of a sum in another format and mode; of groups that are not as long as those of a unit.
    ("e5m6:to_odd:block=8:aligned_bits=7:operands=fp4_e2m1:group=4", E2M1, (8, 0),
     POWERS[120:136], -127),
    ("e8m13:block=32:aligned_bits=13:operands=e4m3fn,e5m2:group=1", E4M3, (8, 0),
     POWERS[120:136], -127),
    ("e4m3:toward_negative:block=6:aligned_bits=37:operands=fp4_e2m1:least_exponent=3:group=2",
     E2M1, (8, 0), POWERS[120:136], -127),
)  # fmt: skip


@pytest.mark.parametrize("text, codes, sizes, values, least", CASES)
def test_sums_are_exact(text: str, codes: F32, sizes: tuple, values: F32, least: int) -> None:
    acc, signs = as_accumulator(text), np.array([-1, 1], np.float32)
    # Scales far apart, and scales near each other.
    near = values[len(values) // 2 : len(values) // 2 + 6]
    for length in (0, 1, 20, 64, 150):
        rng = np.random.default_rng(length)
        shapes = (2, 4, length), (length, 3)
        a, b = (rng.choice(codes, shape) * rng.choice(signs, shape) for shape in shapes)
        counts = [-(-length // size) if size else 1 for size in sizes]
        far = rng.choice(values, (2, 2, counts[0])), rng.choice(values, (1, counts[1]))
        close = rng.choice(near, (2, 2, counts[0])), rng.choice(near, (2, counts[1]))
        left, right = (np.concatenate(both, -2) for both in zip(far, close, strict=True))
        scales = Scales(left, right, *sizes, False, least)
        start = np.ldexp(np.float32(1.2345), np.arange(-150, 90, 20)).astype(np.float32)
        start = start.reshape(4, 3) * (length != 1)
        got = twin.matmul_grouped(a, b, scales, acc, initial=start)
        for i in range(2):
            want = by_groups(a[i], b, scales._replace(left=left[i]), acc, start)
            assert_bit_equal(got[i], want, str(length))


def one(
    name: str, pairs: dict[int, tuple[float, float]], s: float, c: float, least: int = -127
) -> float:
    """One step: the product of each k, scales s and 1, and the start c."""
    acc = as_accumulator(name)
    a, b = np.zeros((1, acc.block or 0), np.float32), np.zeros((acc.block or 0, 1), np.float32)
    for k, (x, y) in pairs.items():
        a[0, k], b[k, 0] = x, y
    scales = Scales(np.full((1, 1), s, np.float32), np.ones((1, 1), np.float32), 0, 0, False, least)
    start = np.full((1, 1), c, np.float32)
    # The scale has the same effect on either side.
    for each_side in (scales, scales._replace(left=scales.right, right=scales.left)):
        got = twin.matmul_grouped(a, b, each_side, acc, initial=start)
        assert_bit_equal(got, by_groups(a, b, scales, acc, start))
    return float(got[0, 0])


def test_steps_by_hand() -> None:
    mxf8, mxf4, nvf4 = MODELS
    # Factors count with their exponents, 1.5 * 1.5 as 2^0, and so do scales: 2^-25 of it is kept.
    opposite = {0: (1.5, 1.5), 1: (-1.5, 1.5)}
    assert one(mxf8, opposite, 2.0**30, 63.0) == 32
    # 2^-9 is subnormal in e4m3 and counts as 2^-6, at any scale.
    assert one(mxf8, {0: (2.0**-9, 1)}, 2.0**20, 2.0**-12) == 2.0**11
    assert one(mxf8, {0: (2.0**-9, 1)}, 2.0**20, 2.0**-11) == 2.0**11 + 2.0**-11
    # A zero product cuts nothing; a group of zeros cuts by its scales.
    assert one(mxf8, {0: (0, 448)}, 2.0**100, 2.0**-30) == 2.0**-30
    assert one(mxf4, {0: (0, 6)}, 1, 2.0**-36) == 0
    assert one(mxf4, {0: (0, 6)}, 1, -(2.0**-35)) == -(2.0**-35)
    # The exponent of a group is not that of its sum: 576 counts as 2^0.
    groups = {k: (6 if k < 16 else -6, 6) for k in range(32)}
    assert one(mxf4, groups, 1, 1.5 * 2.0**-35) == 2.0**-35
    # 2^-9 is subnormal in e4m3 scales and counts as 2^-6; in e8m0 it is itself.
    opposite = {0: (0.5, 0.5), 1: (-0.5, 0.5)}
    assert one(nvf4, opposite, 2.0**-9, 2.0**-42, -6) == 0
    assert one(mxf4, opposite, 2.0**-9, 2.0**-42) == 2.0**-42
    assert one(nvf4, {0: (1, 6)}, 0, 3.0, -6) == 3
    # Every zero result is +0.
    assert math.copysign(1, one(mxf4, {0: (-0.5, 0.5), 1: (0.5, 0.5)}, 1, -0.0)) == 1
    assert one(mxf8, {0: (448, 448)}, 2.0**127, 0) == math.inf
    for name in MODELS:
        assert math.isnan(one(name, {}, math.nan, 1))
        assert math.isnan(one(name, {0: (1, 1)}, 1, math.nan))
        assert one(name, {0: (1, 1)}, 1, -math.inf) == -math.inf
