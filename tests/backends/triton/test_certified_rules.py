"""The short roundings of the certified kernels, and the multiply-adds that round in a direction,
against the reference. test_elements.py has the roundings of all formats."""

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from lpkernels.arithmetic import Quantizer
from lpkernels.backends.triton._launch import EXACT
from lpkernels.backends.triton.rounding.bits import double
from lpkernels.backends.triton.rounding.round import (
    cut_sum,
    floored,
    fused,
    ranged,
    split32,
)
from lpkernels.backends.triton.rounding.rule import Numbers, Rule, rule_of
from lpkernels.formats import FloatFormat, parse_format
from lpkernels.rounding import round_array
from tests.cases import formats_named, hard_values
from tests.compare import assert_bit_equal

_BLOCK = 1 << 14
SPLIT, FLOOR, RANGE, NEAREST, CUT, FUSED, FUSED64 = range(7)


@triton.jit
def rule_kernel(
    x_ptr, draw_ptr, y_ptr, N, R: tl.constexpr, RULE: tl.constexpr, BLOCK: tl.constexpr
):
    """y[i] = x[i] rounded by one of the rules."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if RULE == 0:
        y = double(split32(tl.cast(x, tl.float32), N))
    elif RULE == 1:
        y = double(floored(tl.cast(x, tl.float32), N, R))
    elif RULE == 2:
        y = double(ranged(tl.cast(x, tl.float32), N, R))
    elif RULE == 3:
        y = floored(x, N, R)
    elif RULE == 5:
        y = double(fused(tl.cast(x, tl.float32), N))
    elif RULE == 6:
        y = fused(x, N)
    else:
        y = cut_sum(x, 2 * tl.load(draw_ptr + at) + 1, N, R)
    tl.store(y_ptr + at, y)


def rounded(
    x: np.ndarray, fmt: FloatFormat, rule: int, device: str, mode: str = "nearest_even",
    draws: np.ndarray | None = None, bits: int = 8,
) -> np.ndarray:  # fmt: skip
    size = -(-x.size // _BLOCK) * _BLOCK
    source, drawn = np.zeros(size), np.zeros(size, np.int32)
    source[: x.size] = x
    if draws is not None:
        drawn[: x.size] = draws
    quantizer = Quantizer(fmt, mode, random_bits=bits).to_ints()
    parts: tuple[Rule, Numbers] = rule_of(quantizer[:-4], *quantizer[-4:-1])
    y = torch.empty(size, dtype=torch.float64, device=device)
    arguments: list[Any] = [torch.from_numpy(v).to(device) for v in (source, drawn)]
    rule_kernel[(size // _BLOCK,)](
        *arguments, y, parts[1], R=parts[0], RULE=rule, BLOCK=_BLOCK, **EXACT
    )
    return y.cpu().numpy()[: x.size]


def sums(man_bits: int, digits: int) -> np.ndarray:
    """Significands of so many digits: random ones, those around random ties and values, ends."""
    rng, least = np.random.default_rng(man_bits), 2 ** (digits - 1)
    places = rng.integers(2**man_bits, 2 ** (man_bits + 1), 2_000) << (digits - 1 - man_bits)
    half = 1 << (digits - 2 - man_bits)
    near = [places + half + d for d in (-1, 0, 1)] + [places + d for d in (-1, 0, 1)]
    ends = [np.arange(2 * least - 2_000, 2 * least), np.arange(least, least + 9_000)]
    x = np.concatenate([rng.integers(least, 2 * least, 10_000), *near, *ends]).astype(np.float64)
    return np.concatenate([x, -x])


def in_float32(x: np.ndarray) -> np.ndarray:
    """The values rounded to float32, with every NaN the same."""
    with np.errstate(over="ignore"):
        y = x.astype(np.float32).astype(np.float64)
    y[np.isnan(y)] = np.nan
    return y


def unbounded(man_bits: int) -> FloatFormat:
    return FloatFormat(8, man_bits)


SPLITTING = [
    *((SPLIT, m, 24) for m in range(1, 22)), *((FUSED, m, 24) for m in range(1, 11)),
    *((FUSED64, m, 53) for m in (1, 10, 20, 23)),
]  # fmt: skip


@pytest.mark.parametrize("rule, man_bits, digits", SPLITTING)
def test_splitting(rule: int, man_bits: int, digits: int, device: str) -> None:
    x, fmt = sums(man_bits, digits), unbounded(man_bits)
    x = (x[None, :] * np.ldexp(1.0, np.array([-60, 0, 40]))[:, None]).reshape(-1)
    assert_bit_equal(rounded(x, fmt, rule, device), round_array(x, fmt, "nearest_even"))


def test_splitting_of_subnormals_keeps_bits_below_the_format(device: str) -> None:
    # To 3 bits: 9 and 11 have 4.
    x = np.ldexp(np.array([8.0, 9.0, 10.0, 11.0, 13.0, 7.0, 1.0]), -149)
    want = np.ldexp(np.array([8.0, 8.0, 10.0, 12.0, 12.0, 7.0, 1.0]), -149)
    assert_bit_equal(rounded(x, FloatFormat(5, 2), SPLIT, device), want)


FORMATS = formats_named("""
    e5m10 e6m9 e4m3 e5m2 e3m1 e5m21 e7m12 e4m3fn e4m3fn_sat e5m2_sat e4m7none_b12_nan
""")


@pytest.mark.parametrize("fmt", [*FORMATS, *map(unbounded, (7, 23))], ids=str)
def test_overflow_and_subnormals(fmt: FloatFormat, device: str) -> None:
    for rule in (RANGE, FLOOR, NEAREST):
        if (rule == RANGE and fmt not in FORMATS) or (rule == FLOOR and fmt.man_bits > 21):
            continue  # float32 has room for 21 bits
        x = hard_values(fmt) if rule == NEAREST else in_float32(hard_values(fmt))
        x = x if rule == RANGE else x[np.abs(x) <= min(fmt.max, 2.0**100)]
        got = rounded(x, fmt, rule, device)
        got[np.isnan(got)] = np.nan
        assert_bit_equal(got, round_array(x, fmt, "nearest_even"), f"rule {rule}")


CUT_MODES = ("toward_zero", "nearest_away", "stochastic")


@pytest.mark.parametrize("name", ("e6m9", "e5m4", "e8m11"))
@pytest.mark.parametrize("mode", CUT_MODES)
@pytest.mark.parametrize("bits", (1, 5, 8))
def test_cut(name: str, mode: str, bits: int, device: str) -> None:
    fmt, rng = parse_format(name), np.random.default_rng(bits)
    x = rng.integers(2**52, 2**53, 20_000) * np.ldexp(1.0, rng.integers(-64, -50, 20_000))
    exact = round_array(x[:5_000], fmt, "nearest_even")
    ties = exact + np.ldexp(0.5, np.frexp(exact)[1] - 1 - fmt.man_bits)
    x = np.concatenate([x, exact, ties, np.nextafter(ties, 0.0), np.nextafter(ties, np.inf), [0.0]])
    x = np.concatenate([x, -x[:-1]])
    draws = rng.integers(0, 2**bits, x.size)
    want = round_array(x, fmt, mode, draws=draws.astype(np.uint32), random_bits=bits)
    assert_bit_equal(rounded(x, fmt, CUT, device, mode, draws, bits), want)
