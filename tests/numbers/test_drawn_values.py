"""Drawn values of each family of number formats in all seven modes, against lists of exact values:
tests/numbers/exact_tables.py and tests/oracles/one_zero.py.

Of each drawn format of at most 8 bits every value, boundary and midpoint is among them, with the
numbers of float64 beside it."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from lpkernels.formats import TableFormat, parse_format
from lpkernels.rounding import ROUNDINGS, round_array
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.numbers.exact_tables import table_named
from tests.oracles.one_zero import Small, magnitudes, rounded

#: x, mode, draws and random bits to values.
Rule = Callable[[np.ndarray, str, np.ndarray, int], np.ndarray]


class Drawn(NamedTuple):
    """A format's name, its values and boundaries, and its rule."""

    name: str
    hard: np.ndarray
    rule: Rule


@cache
def table(name: str) -> Drawn:
    exact, made = table_named(name), parse_format(name)
    assert isinstance(made, TableFormat)

    def rule(x: np.ndarray, mode: str, draws: np.ndarray, bits: int) -> np.ndarray:
        y = exact.rounded_array(x, mode, draws, bits)
        return np.where(np.isinf(x), np.nan, y) if name.startswith("posit") else y

    values, boundaries, _ = exact.arrays
    return Drawn(name, np.concatenate([values, boundaries]), rule)


@cache
def one_zero(small: Small, overflow: str, bias: int = 0) -> Drawn:
    """bias: by how much the exponent's bias is larger than the standard's; fnuz alone has one."""
    scale, name = 2.0**-bias, small.name if bias == 0 else "e4m3fnuz_b11"

    def rule(x: np.ndarray, mode: str, draws: np.ndarray, bits: int) -> np.ndarray:
        return rounded(x / scale, small, mode, overflow, draws, bits)[0] * scale

    values = magnitudes(small) * scale
    return Drawn(f"{name}_{overflow[:3]}", np.concatenate([values, -values]), rule)


def posits(rng: np.random.Generator, widest: int) -> Drawn:
    n, es = int(rng.integers(3, widest + 1)), int(rng.integers(0, 5))
    return table(f"posit{n}es{es if (n - 2) << es <= 127 else 3}")


def supernormals(rng: np.random.Generator, widest: int) -> Drawn:
    e = int(rng.integers(1, 7))
    m = int(rng.integers(0, widest - e))
    # Each code at the ends is another power of two, and float32 holds them all.
    most = min(4, 2**e, 1 + (48 >> m))
    low = int(rng.integers(0, most))
    return table(f"supernormal_e{e}m{m}_{low}_{rng.integers(0, min(most, 2**e - low))}")


def logarithms(rng: np.random.Generator, widest: int) -> Drawn:
    bits = int(rng.integers(3, widest + 1))
    least = -(-(2 ** (bits - 2)) // 126)
    return table(f"log{bits}s{int(least + rng.integers(0, (4, 40, 4000)[bits % 3]))}")


def signed(rng: np.random.Generator, widest: int) -> Drawn:
    k = int(rng.integers(3, widest + 1))
    extended = bool(rng.integers(2))
    small = Small(k, int(rng.integers(max(1, k - 8), k)), True, extended)
    return one_zero(small, str(rng.choice(["saturate", "nan", "infinity"][: 2 + extended])))


def unsigned(rng: np.random.Generator, widest: int) -> Drawn:
    k = int(rng.integers(3, widest + 1))
    extended = bool(rng.integers(2))
    small = Small(k, int(rng.integers(max(1, k - 7), k + 1)), False, extended)
    return one_zero(small, str(rng.choice(["saturate", "nan", "infinity"][: 2 + extended])))


def fnuz(rng: np.random.Generator, widest: int) -> Drawn:
    p, bias = ((4, 0), (3, 0), (4, 3))[rng.integers(3)]
    return one_zero(Small(8, p, True, False), ("saturate", "nan")[rng.integers(2)], bias)


FAMILIES = {
    "posits": posits, "supernormals": supernormals, "logarithms": logarithms,
    "nf4": lambda rng, widest: table("nf4"), "fnuz": fnuz, "signed": signed, "unsigned": unsigned,
}  # fmt: skip


def values(fmt: Drawn, count: int, rng: np.random.Generator) -> np.ndarray:
    """What is hard, and numbers of 53 bits from far below to far beyond it, and any float32."""
    hard = np.unique(fmt.hard)
    hard = hard if len(hard) <= 1024 else rng.choice(hard, 1024)
    middles = (hard[1:] + hard[:-1]) / 2
    near = np.concatenate([hard, middles])
    beside = [np.nextafter(near, np.inf), np.nextafter(near, -np.inf)]
    sizes = np.log2(np.abs(fmt.hard[fmt.hard != 0]))
    exponents = rng.uniform(sizes.min() - 4, sizes.max() + 4, count - count // 4)
    wide = np.exp2(exponents) * rng.choice([-1.0, 1.0], exponents.shape)
    patterns = rng.integers(0, 2**32, count // 4, dtype=np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        x = np.concatenate([near, *beside, wide, patterns.astype(np.float64)])
    # Smaller magnitudes never reach the rule: `values.without_tiny`.
    return x[(np.abs(x) > 2.0**-400) | (x == 0) | np.isnan(x)]


def batches(family: str, count: int, widest: int) -> Iterator[tuple[Drawn, np.ndarray]]:
    rng = np.random.default_rng(count)
    for _ in range(count // 5000):
        fmt = FAMILIES[family](rng, widest)
        yield fmt, values(fmt, 5000, rng)


@pytest.mark.parametrize(
    ("count", "widest"), [(100_000, 10), pytest.param(1_000_000, 14, marks=pytest.mark.slow)]
)
@each("family", FAMILIES)
def test_drawn_values_follow_the_rule(family: str, count: int, widest: int) -> None:
    rng = np.random.default_rng(1)
    for number, (fmt, x) in enumerate(batches(family, count, widest)):
        made, bits = parse_format(fmt.name), 1 + number * 7 % 32
        draws = rng.integers(0, 2**bits, x.shape)
        for mode in ROUNDINGS:
            got = round_array(x, made, mode, draws=draws, random_bits=bits)
            want = fmt.rule(x, mode, draws, bits)
            assert_bit_equal(got, want, f"{fmt.name} {mode} {bits}")
