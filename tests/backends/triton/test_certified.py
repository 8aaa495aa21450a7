"""Products by the certified kernels: their bits are the reference's, and flags tell which kernel
made them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels import backends
from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.triton import _products
from lpkernels.backends.triton._layout import ABSENT
from lpkernels.backends.triton._matmul import matmul
from lpkernels.backends.triton._problem import Made
from lpkernels.backends.triton.certified import stages
from lpkernels.formats import FixedFormat, FloatFormat, parse_format
from tests.compare import assert_bit_equal

# NumPy, in the interpreter, warns of infinities that are meant.
pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

SHAPE = (17, 21, 40)
SEED = torch.tensor(3**30)


def floats(
    shape: tuple[int, ...],
    seed: int,
    bits: int = 4,
    low: int = -3,
    high: int = 3,
    zeros: float = 0.1,
) -> Tensor:
    """Random values of this many significant bits, 2^low to 2^(high + 1)."""
    rng = np.random.default_rng(seed)
    significands = rng.integers(2 ** (bits - 1), 2**bits, shape) * 2.0 ** (1 - bits)
    x = np.ldexp(significands, rng.integers(low, high + 1, shape)) * rng.choice([-1, 1], shape)
    return torch.from_numpy(np.where(rng.random(shape) < zeros, 0.0, x).astype(np.float32))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[int]]:
    """The tiers that made the tiles of the products so far, and -1 where the exact kernel did."""
    found: list[Tensor] = []
    inner = stages.launch

    def launch(*arguments: object) -> Made:
        by = inner(*arguments)
        found.append(by.values)
        return by

    monkeypatch.setattr(stages, "launch", launch)
    return lambda: {int(tier) - 1 for values in found for tier in values}


def only(monkeypatch: pytest.MonkeyPatch, tier: int) -> None:
    monkeypatch.setattr(_products, "tiers", lambda acc, **_: (tier,))


def check(a: Tensor, b: Tensor, acc: Accumulator, device: str, bias: Tensor | None = None) -> None:
    ints = acc.to_ints()
    want = backends.get("cpu").matmul(a, b, bias, ints, SEED, 4)
    there = None if bias is None else bias.to(device)
    got = matmul(a.to(device), b.to(device), there, ints, SEED, 4)
    assert_bit_equal(got.cpu(), want)


WRAPPED = FixedFormat(10, 5, overflow="wrap")
UNSIGNED = FixedFormat(7, 3, signed=False, overflow="wrap")

#: Its smallest normal value is 2^4.
HIGH = FloatFormat(5, 6, bias=-3)
MODES = (
    "stochastic",
    "toward_zero",
    "nearest_away",
    "toward_positive",
    "toward_negative",
    "to_odd",
)

# The operands have few bits; every tier that an accumulator has is tested alone.
SERVED = [
    (Accumulator("e5m10"), _tiers.HALF),
    (Accumulator("e5m10", chunk=8, outer="e6m9"), _tiers.HALF),
    (Accumulator("bf16"), _tiers.BRAIN),
    (Accumulator("fp32"), _tiers.PLAIN),
    (Accumulator("e6m9"), _tiers.FUSED),
    (Accumulator("e5m10", chunk=8), _tiers.FUSED),
    (Accumulator("e6m9", product="e5m2"), _tiers.FUSED),
    (Accumulator("e6m11"), _tiers.SPLIT),
    (Accumulator("e5m10", chunk=5, outer="e6m9", outer_rounding="stochastic"), _tiers.SPLIT),
    (Accumulator("e6m9_nosub"), _tiers.SPLIT),
    (Accumulator("e6m9", product="e5m2"), _tiers.SPLIT),
    (Accumulator("bf16"), _tiers.SPLIT),
    (Accumulator("e5m10"), _tiers.FLOOR),
    (Accumulator("e6m9", product="e5m2", chunk=6), _tiers.FLOOR),
    (Accumulator("e4m3_sat"), _tiers.RANGE),
    (Accumulator("e4m3fn_sat", chunk=7), _tiers.RANGE),
    (Accumulator("e5m2_sat", product="e5m2"), _tiers.RANGE),
    (Accumulator("e6m9"), _tiers.FUSED64),
    (Accumulator("fp32"), _tiers.FUSED64),
    (Accumulator("e6m9_nosub", product="e5m2", chunk=9), _tiers.FUSED64),
    (Accumulator("e6m9"), _tiers.NEAREST),
    (Accumulator("e8m22"), _tiers.NEAREST),
    (Accumulator("e5m10", product="e5m2", chunk=9), _tiers.NEAREST),
    (Accumulator("e6m9", "toward_zero"), _tiers.CUT),
    (Accumulator("e6m9", "nearest_away", chunk=10), _tiers.CUT),
    (Accumulator("e6m9", "stochastic"), _tiers.CUT),
    (Accumulator("e5m10", "stochastic", random_bits=3, chunk=12), _tiers.CUT),
    (Accumulator("e6m9", "stochastic", product="e5m2"), _tiers.CUT),
    (Accumulator("e6m9", "stochastic"), _tiers.DIRECTED),
    (Accumulator("e6m9", "stochastic", random_bits=13, chunk=6), _tiers.DIRECTED),
    (Accumulator("e5m2", "stochastic", random_bits=20), _tiers.DIRECTED),
    (Accumulator("e6m9", "stochastic", rng="philox", chunk=12), _tiers.DIRECTED),
    (Accumulator("e5m10", "stochastic", product="e5m2", random_bits=3), _tiers.DIRECTED),
    (Accumulator("fp32", "toward_zero"), _tiers.DIRECTED),
    (Accumulator("e5m10", "nearest_away", chunk=10), _tiers.DIRECTED),
    (Accumulator("bf16", "toward_positive"), _tiers.DIRECTED),
    (Accumulator("e5m10", "toward_negative", product="e5m3", chunk=11), _tiers.DIRECTED),
    (Accumulator("e5m3", "toward_negative"), _tiers.DIRECTED),
    (Accumulator("e6m9_nosub", "to_odd"), _tiers.DIRECTED),
    (Accumulator("e8m22", "to_odd"), _tiers.DIRECTED),
    (Accumulator("fixed16_f8"), _tiers.FIXED),
    (Accumulator("fixed6_f2", "toward_zero", product="e5m2"), _tiers.FIXED),
    (Accumulator("fixed23_f17", "toward_negative", chunk=7), _tiers.FIXED),
    (Accumulator("fixed8_f5", "to_odd"), _tiers.FIXED),
    (Accumulator(WRAPPED), _tiers.FIXED),
    (Accumulator(WRAPPED, "toward_positive", chunk=9), _tiers.FIXED),
    (Accumulator(UNSIGNED, "to_odd", chunk=5, outer="fp32"), _tiers.FIXED),
    (Accumulator(WRAPPED, "toward_zero"), _tiers.FIXED),
    (Accumulator(WRAPPED, "nearest_away"), _tiers.FIXED),
    (Accumulator(UNSIGNED, "toward_zero", chunk=8), _tiers.FIXED),
    (Accumulator(UNSIGNED, "nearest_away"), _tiers.FIXED),
    (Accumulator("fixed6_f2", "nearest_away", chunk=9), _tiers.FIXED),
    (Accumulator("fixed22_f17", "nearest_away"), _tiers.FIXED),
    *((Accumulator(HIGH, mode), _tiers.DIRECTED) for mode in ("toward_zero", "to_odd")),
    (Accumulator(HIGH, "stochastic", random_bits=6, chunk=8), _tiers.DIRECTED),
    *(
        (Accumulator(fmt, mode, random_bits=5, product=product), _tiers.DIRECTED)
        for fmt in ("e8m0", "e8m1")
        for mode in MODES
        for product in (None, "e5m2")
    ),
]


@pytest.mark.parametrize(
    ("acc", "tier"), SERVED, ids=[f"{acc}-{_tiers.NAMES[tier]}" for acc, tier in SERVED]
)
def test_served(acc: Accumulator, tier: int, device: str, made, monkeypatch) -> None:
    only(monkeypatch, tier)
    m, k, n = SHAPE
    check(floats((m, k), 1), floats((k, n), 2), acc, device, floats((n,), 3, bits=20))
    assert made() == {tier}


_TINY = {"low": -100, "high": -80}
#: 16 and 24 bits in a product, more places than float32 has; products below float32's normals.
LATER = {
    "all of half precision": ("e5m10", {"bits": 8, "low": -12}, _tiers.HALF),
    "second kernel": ("e6m9", {"bits": 8, "low": -12}, _tiers.FUSED64),
    "second tier of it": ("e6m9", {"bits": 12, "low": -12}, _tiers.NEAREST),
    "last of four tiers": ("e5m10", {"bits": 12, "low": -12}, _tiers.NEAREST),
    "tiny": ("e6m12", _TINY, _tiers.NEAREST),
    "none": ("bf16", {"bits": 12, "low": -12}, -1),
}


@pytest.mark.parametrize("name", LATER)
def test_later_tiers_take_over(name: str, device: str, made) -> None:
    fmt, kind, tier = LATER[name]
    check(floats((9, 15), 1, **kind), floats((15, 33), 2, **kind), Accumulator(fmt), device)
    assert made() == {tier}


def test_only_tiles_that_overflow_are_left(device: str, made) -> None:
    # 80 products of 2^9 pass 2^15, which is half of what e5m9 holds.
    a, b = torch.full((33, 80), 16.0), torch.full((80, 40), 32.0)
    a[16:] = 2.0**-3
    check(a, b, Accumulator("e5m9"), device)
    assert made() == {_tiers.FUSED, -1}


NOT_CERTIFIED = {
    "overflow": (Accumulator("e4m3"), {"high": 6}),
    "overflow of products": (Accumulator("e6m9", product="e4m3"), {"high": 5}),
    "wide": (Accumulator("e5m10"), {"bits": 24}),
    "wide range": (Accumulator("e6m9", "toward_zero"), {"low": -100}),
}


@pytest.mark.parametrize("name", NOT_CERTIFIED)
def test_left_to_the_exact_kernel(name: str, device: str, made) -> None:
    acc, kind = NOT_CERTIFIED[name]
    check(floats((9, 15), 1, **kind), floats((15, 33), 2, **kind), acc, device)
    assert made() == {-1}


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(
    ("acc", "tier"),
    [
        ("e6m9", -1),
        ("e6m9:stochastic", -1),
        ("fp32", _tiers.PLAIN),
        ("e4m3_sat", _tiers.RANGE),
        ("e4m3fn_sat", _tiers.RANGE),
        ("e5m10", _tiers.HALF),
        ("bf16", _tiers.BRAIN),
    ],
)
def test_specials(acc: str, tier: int, value: float, device: str, made) -> None:
    a, b = floats((9, 15), 1), floats((15, 33), 2)
    a[2, 3] = value
    a[4, 5], a[4, 6] = value, -value
    b[7, 8] = value
    rounding = acc.partition(":")[2] or "nearest_even"
    check(a, b, Accumulator(acc.partition(":")[0], rounding), device)
    assert made() == {tier}


@pytest.mark.parametrize(("name", "tier"), [("e5m10", _tiers.HALF), ("bf16", _tiers.BRAIN)])
def test_halves_of_every_size(name: str, tier: int, device: str, made, monkeypatch) -> None:
    """There are subnormal operands and sums, overflow, infinities less themselves and sums of
    nothing but -0."""
    only(monkeypatch, tier)
    fmt = parse_format(name)
    values = torch.tensor(fmt.values(), dtype=torch.float32)
    choice = torch.Generator().manual_seed(2)
    for k in (1, 12):
        a, b = (
            values[torch.randint(0, values.numel(), shape, generator=choice)]
            for shape in ((20, k), (k, 40))
        )
        a[::5], b[:, ::7] = a[::5] * 0.0, fmt.min_subnormal
        a[1::5] = a[1::5] / fmt.max * fmt.min_normal
        a[1::5] = lp.quantize(a[1::5], fmt, backend="reference")
        a[2, 0], a[3, -1] = float("inf"), float("nan")
        check(a, b, Accumulator(name), device)
    assert made() == {tier}


def test_halves_take_an_absent_tap_for_zero_where_that_is_proved(device: str, monkeypatch) -> None:
    inner = stages.launch
    left = []

    def mark(problem, *rest):
        right = problem.right
        right.values.view(torch.int32)[2 * right.step : 2 * right.step + 4] = ABSENT
        found = inner(problem._replace(right=right._replace(absent=True)), *rest)
        left.append(int(found.values.min()) == 0)
        return found

    monkeypatch.setattr(stages, "launch", mark)
    only(monkeypatch, _tiers.HALF)
    acc = Accumulator("e5m10").to_ints()
    for exponent, special, exact in ((-6, False, False), (-13, False, True), (-6, True, True)):
        a, b = floats((5, 4), 1, low=exponent), floats((4, 16), 2, low=exponent)
        if special:
            a[0, 2] = float("inf")
        got = matmul(a.to(device), b.to(device), None, acc, None, 0)
        want = backends.get("cpu").matmul(a, b, None, acc, None, 0)
        rest = [0, 1, 3]
        want[:, :4] = backends.get("cpu").matmul(a[:, rest], b[rest, :4], None, acc, None, 0)
        assert left.pop() == exact
        if not exact:
            assert_bit_equal(got.cpu(), want)


@pytest.mark.parametrize("k", [0, 1, 8, 23])
def test_negative_zeros(k: int, device: str) -> None:
    """Sums underflow to -0, which a product of +0 turns into +0 and a product of -0 does not."""
    tiny = torch.full((3, k), -(2.0**-9))
    b = torch.full((k, 16), 2.0**-9)
    b[k // 2 :] = 0.0
    b[k // 2 :, ::2] = -0.0
    b[:, 5] *= -1
    check(tiny, b, Accumulator("e4m3"), device)
    check(tiny, b, Accumulator("e4m3_sat"), device)
    check(tiny * 2.0**-4, b * 2.0**-4, Accumulator("e5m10"), device)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", ["e5m10", "e4m3", "bf16", "e6m0", "e5m1"])
def test_underflow_in_every_mode(fmt: str, mode: str, device: str, made, monkeypatch) -> None:
    """Sums lie near the smallest subnormal value, with products of 48 bits and zeros of both
    signs."""
    only(monkeypatch, _tiers.DIRECTED)
    least = parse_format(fmt).emin - parse_format(fmt).man_bits
    low = least // 2 - 3
    a, b = (floats(shape, len(shape), bits=24, low=low, high=low + 4, zeros=0.3)
            for shape in ((7, 13), (13, 40)))  # fmt: skip
    a[2], b[:, 5] = a[2].abs(), -0.0
    b[5:, 7], b[6:, 8], b[3:, 9] = 0.0, -0.0, b[3:, 9].abs()
    check(a, b, Accumulator(fmt, mode, random_bits=7), device)
    assert made() == {_tiers.DIRECTED}


@pytest.mark.parametrize("mode", ["nearest_even", "nearest_away", "toward_zero", "toward_positive"])
def test_fixed_point_takes_any_operand(mode: str, device: str, made, monkeypatch) -> None:
    """There are wide products, overflow of all sizes, infinities and NaN."""
    only(monkeypatch, _tiers.FIXED)
    a, b = floats((9, 25), 1, bits=24, low=-9, high=2), floats((25, 33), 2, bits=24, low=-9, high=2)
    a[3, 2], a[4, 5], a[5] = float("inf"), float("nan"), a[5] * 2.0**60
    a[6], b[:, 7] = a[6] * 2.0**120, b[:, 7] * 2.0**100
    for fmt in ("fixed16_f12", "fixed22_f20", "fixed12_f4"):
        check(a, b, Accumulator(fmt, mode), device)
    assert made() == {_tiers.FIXED}


@pytest.mark.parametrize("mode", ["toward_zero", "nearest_away"])
@pytest.mark.parametrize("fmt", ["fixed8_f4_wrap", "fixed20_f9_wrap", WRAPPED, UNSIGNED], ids=str)
def test_wrapping_sums_keep_their_sign(fmt, mode: str, device: str, made, monkeypatch) -> None:
    """Sums are halves and parts of a quantum on both sides of zero and of the ends."""
    only(monkeypatch, _tiers.FIXED)
    acc = Accumulator(fmt, mode)
    a = floats((15, 40), 1, bits=9, low=-4, high=2)
    a[1::2] = (a[1::2] * 2.0**5).round() * 2.0**-5
    b = torch.full((40, 33), acc.fmt.quantum * 2.0**3)
    b[:, 1::3] *= -1.0
    b[:, 2::3] *= 2.0 ** (acc.fmt.word_bits - 8)
    check(a, b, acc, device)
    assert made() == {_tiers.FIXED}


def test_directed_sums_that_overflow_are_left(device: str, made) -> None:
    a, b = torch.full((17, 37), 16.0), torch.full((37, 16), 32.0)
    a[16:] = 2.0**-3
    for mode in ("nearest_away", "to_odd"):
        check(a, b, Accumulator("e5m9", mode), device)
    assert made() == {_tiers.DIRECTED, -1}


def test_absent_taps_add_nothing(device: str, monkeypatch) -> None:
    """Absent taps add nothing even to a sum of -0."""
    a, b = torch.full((3, 11), -(2.0**-9)), torch.full((11, 16), 2.0**-9)
    a[1] = 2.0**-2
    inner = stages.launch

    def mark(problem, *rest):
        right = problem.right
        right.values.view(torch.int32)[9 * right.step : 9 * right.step + 4] = ABSENT
        return inner(problem._replace(right=right._replace(absent=True)), *rest)

    monkeypatch.setattr(stages, "launch", mark)
    rest = [k for k in range(11) if k != 9]
    served = [
        ("e4m3", "nearest_even", tier) for tier in (_tiers.FLOOR, _tiers.NEAREST, _tiers.RANGE)
    ]
    served += [("e4m3", mode, _tiers.DIRECTED) for mode in ("to_odd", "toward_negative")]
    for fmt, mode, tier in [*served, ("fixed12_f9", "toward_negative", _tiers.FIXED)]:
        acc = Accumulator(fmt, mode)
        want = backends.get("cpu").matmul(a, b, None, acc.to_ints(), None, 0)
        without = backends.get("cpu").matmul(a[:, rest], b[rest], None, acc.to_ints(), None, 0)
        want[:, :4] = without[:, :4]
        only(monkeypatch, tier)
        got = matmul(a.to(device), b.to(device), None, acc.to_ints(), None, 0)
        assert_bit_equal(got.cpu(), want, _tiers.NAMES[tier])


BOUNDARIES = [
    # q = 12 with r = 11 and 12 (B); r > q within and beyond (C); (A) at 24 places, and one more.
    (FloatFormat(6, 11), 11, 12), (FloatFormat(5, 4), 9, 3), (FloatFormat(5, 4), 12, 3),
    (FloatFormat(6, 12), 12, 0), (FloatFormat(6, 12), 12, 2), (FloatFormat(8, 7), 8, 4),
    (FloatFormat(8, 20), 24, 1), (FloatFormat(5, 15), 20, 6),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fmt", "width", "span"), BOUNDARIES, ids=[f"{f}-{w}-{s}" for f, w, s in BOUNDARIES]
)
def test_around_the_certificate(fmt: FloatFormat, width: int, span: int, device: str) -> None:
    """Sums with products of ``width`` bits lie next to midpoints, whichever kernel makes them."""
    bits = width // 2
    a = floats((16, 19), width, bits=bits, low=0, high=span, zeros=0)
    b = floats((19, 48), span, bits=width - bits, low=-span, high=0, zeros=0.2)
    # Large and small products take turns, so that sums end near ties.
    a[:, ::3] *= 2.0 ** (fmt.man_bits // 2)
    check(a, b, Accumulator(fmt), device)
