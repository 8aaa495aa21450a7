"""One rounded addition: the vectorised step has the bits of the exact one on every hard pair."""

import numpy as np

from lpkernels.formats import FixedFormat, FloatFormat, parse_format
from lpkernels.reference import exact, twin
from lpkernels.reference.addition import odd_sum
from tests.cases import ROUNDINGS
from tests.compare import assert_bit_equal
from tests.loops import each

FORMATS = [
    parse_format(name)
    for name in (
        *("fp32", "fp16", "e8m0", "e4m3fn", "e3m2none_sat", "e5m3_nosub", "e5m2_nan"),
        *("fixed8_f4", "fixed8_f4_wrap", "ufixed5_f-3_wrap", "fixed24_f140_wrap", "fixed1_f0_wrap"),
    )
]


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


@each("rounding", ROUNDINGS)
@each("fmt", FORMATS)
def test_add_equals_exact(
    fmt: FloatFormat | FixedFormat, rounding: str, rng: np.random.Generator
) -> None:
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
        (1.0, 2.0**-80, 1 + ulp),
        (1.0, -(2.0**-80), 1 - ulp / 2),
        (1 + ulp, 2.0**-80, 1 + ulp),
        (1 + ulp, -(2.0**-80), 1 + ulp),
        (-1.0, 2.0**-80, -1 + ulp / 2),
        (1.0, ulp, 1 + ulp),
        (np.inf, 1.0, np.inf),
        (2.0, -2.0, 0.0),
        (-0.0, -0.0, -0.0),
    ]
    a, b, want = np.array(rows).T
    assert_bit_equal(odd_sum(a, b), want)
    assert np.isnan(odd_sum(np.array([np.inf]), np.array([-np.inf]))).all()
