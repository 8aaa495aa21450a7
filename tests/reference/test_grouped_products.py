"""Products whose scales enter every block, against steps in rationals that are written here."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from lpkernels.arithmetic import MODELS, Accumulator, as_accumulator
from lpkernels.reference import exact, twin
from lpkernels.reference.scaled_products import Scales
from tests.compare import assert_bit_equal
from tests.loops import each

F32 = NDArray[np.float32]

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E4M3 = np.array(
    [m * 2.0**e for e in range(-9, 6) for m in (8, 9, 13, 15)] + [2.0**-9, 0], np.float32
)
#: The last of these are subnormal, and zero.
E4M3_SCALES = np.array([1, 1.125, 448, 2.0**-6, 2.0**-7, 3 * 2.0**-9, 2.0**-9, 0], np.float32)
POWERS = np.ldexp(np.float32(1), np.arange(-127, 128))


def exponent(x: Fraction, least: int) -> int:
    """floor(log2 |x|) of x != 0, or `least` if that is more."""
    size = abs(x)
    e = size.numerator.bit_length() - size.denominator.bit_length()
    return max(e if size >= Fraction(2) ** e else e - 1, least)


def toward_zero(s: Fraction) -> float:
    """In float32; beyond it an infinity."""
    if not s:
        return 0.0
    quantum = Fraction(2) ** (exponent(s, -126) - 23)
    r = int(s / quantum) * quantum
    return math.copysign(math.inf, r) if abs(r) >= Fraction(2) ** 128 else float(r) or 0.0


def step(
    codes: list[tuple[float, float]],
    scales: list[tuple[float, float]],
    c: float,
    *,
    group: int,
    bits: int,
    least: int,
) -> float:
    """One instruction; scales: of every product; least: the exponent that a subnormal scale has."""
    if any(map(math.isnan, [c, *(s for both in scales for s in both)])):
        return math.nan
    if math.isinf(c):
        return c
    addends = [Fraction(c)]
    places = [exponent(addends[0], -126) if c else -126]
    for k in range(0, len(codes), group):
        total = sum((Fraction(x) * Fraction(y) for x, y in codes[k : k + group]), Fraction(0))
        place = sum(exponent(Fraction(s), least) if s else -126 for s in scales[k])
        if group == 1:
            if not total:
                continue
            place += sum(exponent(Fraction(x), -6) for x in codes[k])
        addends.append(total * Fraction(scales[k][0]) * Fraction(scales[k][1]))
        places.append(place)
    unit = Fraction(2) ** (max(places) - bits)
    return toward_zero(sum((int(x / unit) * unit for x in addends), Fraction(0)))


def stepped(a: F32, b: F32, scales: Scales, acc: Accumulator, start: F32) -> F32:
    """One matrix a (M, K) @ b (K, N), from start (M, N)."""
    out = np.empty(start.shape, np.float32)
    assert acc.block and acc.group and acc.aligned_bits
    rule = {"group": acc.group, "bits": acc.aligned_bits, "least": scales.least}
    for m, n in np.ndindex(*out.shape):
        c = float(start[m, n])
        codes = list(zip(a[m].tolist(), b[:, n].tolist(), strict=True))
        both = [
            (
                float(scales.left[m, k // scales.left_size]),
                float(scales.right[n, k // scales.right_size]),
            )
            for k in range(len(codes))
        ]
        for k in range(0, len(codes), acc.block):
            c = step(codes[k : k + acc.block], both[k : k + acc.block], c, **rule)
        out[m, n] = c
    return out


#: The unit, its codes, the length of its scales, these, and their least exponent.
UNITS = (
    ("model_b200_mxf8", E4M3, 32, POWERS, -127),
    ("model_b200_mxf4", E2M1, 32, POWERS, -127),
    ("model_b200_mxf4", E2M1, 16, POWERS[100:160], -127),
    ("model_b200_nvf4", E2M1, 16, E4M3_SCALES, -6),
)


def operands(
    codes: F32, size: int, values: F32, least: int, length: int, seed: int
) -> tuple[F32, F32, Scales]:
    rng = np.random.default_rng(seed)
    signs = np.array([-1, 1], np.float32)
    a, b = (rng.choice(codes, s) * rng.choice(signs, s) for s in ((4, length), (length, 3)))
    # Scales far apart, and scales near each other.
    near = values[len(values) // 2 : len(values) // 2 + 6]
    count = -(-length // size)
    left = np.concatenate([rng.choice(values, (2, count)), rng.choice(near, (2, count))])
    right = np.concatenate([rng.choice(values, (1, count)), rng.choice(near, (2, count))])
    return a, b, Scales(left, right, size, size, False, least)


@each("name, codes, size, values, least", UNITS)
def test_steps(name: str, codes: F32, size: int, values: F32, least: int) -> None:
    acc = as_accumulator(name)
    for seed, length in enumerate((1, 20, 64, 150)):
        a, b, scales = operands(codes, size, values, least, length, seed)
        start = np.ldexp(np.float32(1.2345), np.arange(-150, 90, 20)).astype(np.float32)
        start = start.reshape(4, 3) * (length > 1)
        want = stepped(a, b, scales, acc, start)
        for module in (twin, exact):
            got = module.matmul_grouped(a, b, scales, acc, initial=start)
            assert_bit_equal(got, want, f"{length} {module.__name__}")


#: Of a sum in another format and mode; of groups that are not as long as those of a unit.
OTHERS = (
    ("e5m6:to_odd:block=8:aligned_bits=7:operands=fp4_e2m1:group=4", E2M1),
    ("e8m13:block=32:aligned_bits=13:operands=e4m3fn,e5m2:group=1", E4M3),
    (
        "e4m3:toward_negative:block=6:aligned_bits=37:operands=fp4_e2m1:least_exponent=3:group=2",
        E2M1,
    ),
)


@each("text, codes", OTHERS)
def test_the_twin_is_exact(text: str, codes: F32) -> None:
    acc = as_accumulator(text)
    rng = np.random.default_rng(4)
    for lead in ((), (2,)):
        left, right = rng.choice(codes, (*lead, 3, 37)), -rng.choice(codes, (37, 2))
        left[..., 0, :8] *= -1
        powers = rng.choice(POWERS[120:136], (*lead, 3, 5)), rng.choice(POWERS[120:136], (2, 1))
        scales = Scales(*powers, 8, 0, False)
        start = rng.standard_normal((3, 2)).astype(np.float32)
        got = twin.matmul_grouped(left, right, scales, acc, initial=start)
        want = exact.matmul_grouped(left, right, scales, acc, initial=start)
        assert_bit_equal(got, want, f"{lead}")


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
    results = [m.matmul_grouped(a, b, scales, acc, initial=start) for m in (twin, exact)]
    assert_bit_equal(*results)
    return float(results[0][0, 0])


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


def test_a_sum_of_no_products_is_where_it_starts() -> None:
    scales = Scales(np.ones((2, 1), np.float32), np.ones((3, 1), np.float32), 16, 16, False)
    start = np.arange(6, dtype=np.float32).reshape(2, 3)
    empty = np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)
    for name in MODELS:
        for module in (twin, exact):
            got = module.matmul_grouped(*empty, scales, as_accumulator(name), initial=start)
            assert_bit_equal(got, start)


def test_a_group_of_one_with_unit_scales_is_the_step_of_any_unit() -> None:
    rng = np.random.default_rng(8)
    a, b = rng.choice(E4M3, (5, 70)), rng.choice(E4M3, (70, 4))
    acc = as_accumulator("model_b200_mxf8")
    ones = Scales(np.ones((5, 3), np.float32), np.ones((4, 3), np.float32), 32, 32, False)
    got = twin.matmul_grouped(a, b, ones, acc)
    assert_bit_equal(got, twin.matmul(a, b, None, replace(acc, group=None)))


GROUPED = {"block": 64, "aligned_bits": 35, "operands": "fp4_e2m1", "group": 16}
REFUSED = (
    ({"operands": None}, "group=16 needs operands"),
    ({"group": 0}, r"group must be in 1\.\.256, got 0"),
    ({"group": 24}, "must divide the block, got block=64"),
    ({"chunk": 64}, "chunk=64 sums without them"),
    ({"chunk": "scale"}, "chunk=scale sums without them"),
    ({"rounding": "stochastic"}, "draws no random bits"),
    ({"operands": "fp16", "group": 1}, "8 bits or fewer, got operands=e5m10"),
    ({"operands": "e4m3fn"}, "operands='fp4_e2m1', aligned_bits up to 37, got operands=e4m3fn"),
    ({"aligned_bits": 38}, "up to 37, got operands=e2m1none_sat, aligned_bits=38; use group=1"),
)


@each("change, message", REFUSED)
def test_refused_fields(change: dict[str, object], message: str) -> None:
    given = {**GROUPED, **change}
    if given["operands"] is None:
        del given["block"], given["aligned_bits"]
    with pytest.raises(ValueError, match=message):
        Accumulator("fp32", **{"rounding": "toward_zero", **given})
