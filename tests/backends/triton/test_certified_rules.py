"""The kernels' roundings against the reference: the short ones of the certified kernels, the
multiply-adds that round in a direction, and for every rule that exists round_to and add_rounded."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import lpkernels as lp
from lpkernels import backends
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton._launch import EXACT
from lpkernels.backends.triton.rounding.bits import double
from lpkernels.backends.triton.rounding.round import (
    cut_sum,
    floored,
    fused,
    multiply_add,
    ranged,
    split32,
)
from lpkernels.backends.triton.rounding.rule import Numbers, Rule, rule_of
from lpkernels.formats import FloatFormat, parse_format
from lpkernels.rounding import ROUNDINGS, round_array
from tests.backends import by_hand
from tests.backends.triton.every.rules import some_rules
from tests.cases import formats_named, hard_values
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.elements import Format, quantized

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


def float32_sums(man_bits: int) -> np.ndarray:
    """Significands of 24 bits: random ones, and all those around random ties and values."""
    rng = np.random.default_rng(man_bits)
    random = rng.integers(2**23, 2**24, 20_000)
    places = rng.integers(2**man_bits, 2 ** (man_bits + 1), 2_000) << (23 - man_bits)
    half = 1 << (22 - man_bits)
    near = [places + half + d for d in (-1, 0, 1)] + [places + d for d in (-1, 0, 1)]
    ends = [np.arange(2**24 - 2_000, 2**24 + 1), np.arange(2**23, 2**23 + 9_000)]
    significands = np.concatenate([random, *near, *ends]).astype(np.float64)
    return np.concatenate([significands, -significands])


def in_float32(x: np.ndarray) -> np.ndarray:
    """The values rounded to float32, with every NaN the same."""
    with np.errstate(over="ignore"):
        y = x.astype(np.float32).astype(np.float64)
    y[np.isnan(y)] = np.nan
    return y


def unbounded(man_bits: int) -> FloatFormat:
    return FloatFormat(8, man_bits)


@each("rule, man_bits", [(SPLIT, m) for m in range(1, 22)] + [(FUSED, m) for m in range(1, 11)])
def test_splitting(rule: int, man_bits: int, device: str) -> None:
    x = float32_sums(man_bits)
    scales = np.ldexp(1.0, np.array([-30, 0, 40]))
    x = (x[None, :] * scales[:, None]).reshape(-1)
    fmt = unbounded(man_bits)
    assert_bit_equal(rounded(x, fmt, rule, device), round_array(x, fmt, "nearest_even"))


@each("man_bits", [1, 10, 20, 23])
def test_splitting_of_float64(man_bits: int, device: str) -> None:
    rng = np.random.default_rng(man_bits)
    places = rng.integers(2**man_bits, 2 ** (man_bits + 1), 3_000) << (52 - man_bits)
    half = 1 << (51 - man_bits)
    near = [places + half + d for d in (-1, 0, 1)] + [places + d for d in (-1, 0, 1)]
    ends = [np.arange(3_000) + start for start in (2**52, 2**53 - 3_000)]
    x = np.concatenate([rng.integers(2**52, 2**53, 10_000), *near, *ends]) * 2.0**-60
    x = np.concatenate([x, -x])
    want = round_array(x, unbounded(man_bits), "nearest_even")
    assert_bit_equal(rounded(x, unbounded(man_bits), FUSED64, device), want)


def test_splitting_of_subnormals_keeps_bits_below_the_format(device: str) -> None:
    # To 3 bits: 9 and 11 have 4.
    x = np.ldexp(np.array([8.0, 9.0, 10.0, 11.0, 13.0, 7.0, 1.0]), -149)
    want = np.ldexp(np.array([8.0, 8.0, 10.0, 12.0, 12.0, 7.0, 1.0]), -149)
    assert_bit_equal(rounded(x, FloatFormat(5, 2), SPLIT, device), want)


FORMATS = formats_named("""
    e5m10 e6m9 e4m3 e5m2 e3m1 e5m21 e7m12 e4m3fn e4m3fn_sat e5m2_sat e4m7none_b12_nan
""")


@each("fmt", FORMATS)
def test_with_overflow(fmt: FloatFormat, device: str) -> None:
    x = in_float32(hard_values(fmt))
    got = rounded(x, fmt, RANGE, device)
    got[np.isnan(got)] = np.nan
    assert_bit_equal(got, round_array(x, fmt, "nearest_even"))


@each("fmt, rule", [*FORMATS, *map(unbounded, (7, 23))], [FLOOR, NEAREST])
def test_with_subnormals(fmt: FloatFormat, rule: int, device: str) -> None:
    if rule == FLOOR and fmt.man_bits > 21:
        pytest.skip("float32 has room for 21 bits")
    x = hard_values(fmt)
    if rule == FLOOR:
        x = in_float32(x)
    x = x[np.abs(x) <= min(fmt.max, 2.0**100)]
    assert_bit_equal(rounded(x, fmt, rule, device), round_array(x, fmt, "nearest_even"))


CUT_MODES = ("toward_zero", "nearest_away", "stochastic")


@each("name, mode, bits", ("e6m9", "e5m4", "e8m11"), CUT_MODES, (1, 5, 8))
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


_TRIPLES = 1 << 12


@triton.jit
def multiply_add_kernel(a_ptr, b_ptr, c_ptr, y_ptr, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """y[i] = a[i] b[i] + c[i]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b, c = tl.load(a_ptr + at), tl.load(b_ptr + at), tl.load(c_ptr + at)
    tl.store(y_ptr + at, multiply_add(a, b, c, MODE))


def triples() -> list[torch.Tensor]:
    """Operands a, b, c: any float32, sums that cancel or meet float32's ends, special values."""
    rng = np.random.default_rng(5)
    n = _TRIPLES // 4
    anything = [
        rng.integers(-(2**31), 2**31, n).astype(np.int32).view(np.float32) for _ in range(3)
    ]
    usual = [rng.standard_normal(n).astype(np.float32) for _ in range(3)]
    cancelled = [usual[0], usual[1], -(usual[0] * usual[1])]
    small = [x * np.float32(s) for x, s in zip(usual, (2.0**-70, 2.0**-76, 2.0**-148), strict=True)]
    parts = zip(anything, usual, cancelled, small, strict=True)
    a, b, c = (np.concatenate(part) for part in parts)
    specials = np.array([0.0, 1.0, np.inf, np.nan, 3.4e38, 2.0**-149, 2.0**-126], np.float32)
    for x in (a, b, c):
        x[:1000] = rng.choice(specials, 1000) * rng.choice([-1, 1], 1000)
    # The reference adds c first, to +0.
    c[c == 0.0] = 0.0
    return [torch.from_numpy(x) for x in (a, b, c)]


@each("mode", ["nearest_even", "toward_zero", "toward_positive", "toward_negative"])
def test_multiply_add(mode: str, device: str) -> None:
    a, b, c = triples()
    y = torch.empty(_TRIPLES, device=device)
    multiply_add_kernel[(1,)](
        a.to(device), b.to(device), c.to(device), y, MODE=ROUNDINGS.index(mode), BLOCK=_TRIPLES,
        **EXACT,
    )  # fmt: skip
    left = torch.stack([c, a], 1)[:, None, :]
    right = torch.stack([torch.ones_like(b), b], 1)[:, :, None]
    want = lp.matmul(left, right, Accumulator("fp32", mode), backend="reference")[:, 0, 0]
    got = torch.where(y.cpu().isnan(), torch.tensor(float("nan")), y.cpu())
    assert_bit_equal(got, want)


CPU: Any = backends.get("cpu")
SEED = torch.tensor(91)
#: Those with numbers that float32 alone does not reach, and an odd exponent code, too.
RULES = some_rules() + [
    (FloatFormat(exp_bits, man_bits, bias=128), mode)
    for (exp_bits, man_bits), mode in itertools.product(((3, 0), (8, 5), (8, 0)), ROUNDINGS)
]


@pytest.fixture
def plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled module computes by csrc/common alone, one value after the other."""
    reason = backends.status()["cpu"]
    if reason != "available":
        pytest.skip(f"cpu: {reason}")
    monkeypatch.setenv("LPKERNELS_ISA", "scalar")


def values(fmt: Format) -> torch.Tensor:
    """Every float64 that may round differently, infinities, NaN and both zeros among them."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.asarray(hard_values(fmt, 5)))


@each("rule, dtype", RULES, (torch.float64, torch.float32))
def test_round_to(rule: tuple[Format, str], dtype: torch.dtype, device: str, plain_loops: None):
    """Values that float32 holds are rounded without float64 where the format allows it."""
    fmt, mode = rule
    x = values(fmt).to(dtype)
    for bits in (1, 8, 24, 32) if mode == "stochastic" else (None,):
        quantizer = Quantizer(fmt, mode, random_bits=bits)
        got = quantized(x, quantizer, BACKEND, device, dtype)
        assert_bit_equal(got, quantized(x, quantizer, CPU, dtype=dtype), f"{quantizer}")


@each("fmt, mode", RULES)
def test_add_rounded(fmt: Format, mode: str, device: str, plain_loops: None) -> None:
    acc = Accumulator(fmt, mode).to_ints()
    addend = values(fmt).float()[None, :]
    total = torch.empty_like(addend)
    nearest = Quantizer(fmt).to_ints()
    CPU.quantize(addend.flip(1).roll(37), nearest, None, 0, 4, total)
    want, got = total.clone(), total.to(device, copy=True)
    CPU.accumulate(want, addend, (0, 0), acc, SEED, 1, 2, 3)
    by_hand.accumulate(BACKEND, got, addend.to(device), (0, 0), acc, SEED, 1, 2, 3)
    assert_bit_equal(got.cpu(), want)
