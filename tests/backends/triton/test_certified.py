"""Products by the certified kernels: their bits are the cpu backend's, and flags tell which kernel
made them."""

import itertools

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton._layout import ABSENT
from lpkernels.backends.triton.certified import stages
from tests.backends import by_hand
from tests.backends.triton.sums import beside_cpu, floats, makers, only
from tests.compare import assert_bit_equal

MODES = (
    "stochastic", "toward_zero", "nearest_away", "toward_positive", "toward_negative", "to_odd",
)  # fmt: skip

# The operands have few bits; every tier that an accumulator has is tested alone. The smallest
# normal value of e5m6_b-3 is 2^4.
SERVED = {
    _tiers.HALF: "e5m10 e5m10_chunk8:outer=e6m9",
    _tiers.BRAIN: "bf16",
    _tiers.PLAIN: "fp32",
    _tiers.FUSED: "e6m9 e5m10_chunk8 e6m9:product=e5m2",
    _tiers.SPLIT: "e6m11 e5m10_chunk5:outer=e6m9:outer_rounding=stochastic e6m9_nosub "
    "e6m9:product=e5m2 bf16",
    _tiers.FLOOR: "e5m10 e6m9_chunk6:product=e5m2",
    _tiers.RANGE: "e4m3_sat e4m3fn_sat_chunk7 e5m2_sat:product=e5m2",
    _tiers.FUSED64: "e6m9 fp32 e6m9_nosub_chunk9:product=e5m2",
    _tiers.NEAREST: "e6m9 e8m22 e5m10_chunk9:product=e5m2",
    _tiers.CUT: "e6m9:toward_zero e6m9_chunk10:nearest_away e6m9:stochastic "
    "e5m10_chunk12:stochastic:bits=3 e6m9:stochastic:product=e5m2",
    _tiers.DIRECTED: "e6m9:stochastic e6m9_chunk6:stochastic:bits=13 e5m2:stochastic:bits=20 "
    "e6m9_chunk12:stochastic:philox e5m10:stochastic:product=e5m2:bits=3 fp32:toward_zero "
    "e5m10_chunk10:nearest_away bf16:toward_positive e5m10_chunk11:toward_negative:product=e5m3 "
    "e5m3:toward_negative e6m9_nosub:to_odd e8m22:to_odd e5m6_b-3:toward_zero e5m6_b-3:to_odd "
    "e5m6_b-3_chunk8:stochastic:bits=6",
    _tiers.FIXED: "fixed16_f8 fixed6_f2:toward_zero:product=e5m2 "
    "fixed23_f17_chunk7:toward_negative fixed8_f5:to_odd fixed10_f5_wrap "
    "fixed10_f5_wrap_chunk9:toward_positive ufixed7_f3_wrap_chunk5:to_odd:outer=fp32 "
    "fixed10_f5_wrap:toward_zero fixed10_f5_wrap:nearest_away ufixed7_f3_wrap_chunk8:toward_zero "
    "ufixed7_f3_wrap:nearest_away fixed6_f2_chunk9:nearest_away fixed22_f17:nearest_away",
}


@pytest.mark.parametrize("tier", SERVED, ids=_tiers.NAMES.__getitem__)
def test_served(tier: int, device: str, made, monkeypatch) -> None:
    only(monkeypatch, tier)
    served = [lp.accumulator(text) for text in SERVED[tier].split()]
    if tier == _tiers.DIRECTED:
        served += [
            lp.Accumulator(fmt, mode, random_bits=5, product=product)
            for fmt, mode, product in itertools.product(("e8m0", "e8m1"), MODES, (None, "e5m2"))
        ]
    m, k, n = (17, 21, 40) if device == "cuda" else (9, 13, 33)
    for acc in served:
        a, b, bias = floats((m, k), 1), floats((k, n), 2), floats((n,), 3, bits=20)
        beside_cpu(a, b, acc, device, bias=bias)
        assert makers(made) == {tier}, acc


#: Formats, options of `floats` and the tier that makes the product; -1 is the exact kernel. There
#: are 16 and 24 bits in a product, more places than float32 has, products below float32's normals,
#: and overflow.
TAKEN_OVER = {
    "all of half precision": ("e5m10", {"bits": 8, "low": -12}, _tiers.HALF),
    "second kernel": ("e6m9", {"bits": 8, "low": -12}, _tiers.FUSED64),
    "second tier of it": ("e6m9", {"bits": 12, "low": -12}, _tiers.NEAREST),
    "last of four tiers": ("e5m10", {"bits": 12, "low": -12}, _tiers.NEAREST),
    "tiny": ("e6m12", {"low": -100, "high": -80}, _tiers.NEAREST),
    "none": ("bf16", {"bits": 12, "low": -12}, -1),
    "overflow": ("e4m3", {"high": 6}, -1),
    "overflow of products": ("e6m9:product=e4m3", {"high": 5}, -1),
    "wide": ("e5m10", {"bits": 24}, -1),
    "wide range": ("e6m9:toward_zero", {"low": -100}, -1),
}


@pytest.mark.parametrize("name", TAKEN_OVER)
def test_later_tiers_and_the_exact_kernel_take_over(name: str, device: str, made) -> None:
    text, kind, tier = TAKEN_OVER[name]
    a, b = floats((9, 15), 1, **kind), floats((15, 33), 2, **kind)
    beside_cpu(a, b, lp.accumulator(text), device)
    assert makers(made) == {tier}


#: The tiers of tiles. No certificate holds for sums made odd.
OVERFLOWING = {
    "e5m9": {_tiers.FUSED, -1}, "e5m9:nearest_away": {_tiers.DIRECTED, -1}, "e5m9:to_odd": {-1},
}  # fmt: skip


@pytest.mark.parametrize("acc", OVERFLOWING)
def test_only_tiles_that_overflow_are_left(acc: str, device: str, made) -> None:
    # 80 products of 2^9 pass 2^15, which is half of what e5m9 holds; 80 of 2^7 do not.
    a, b = torch.full((17, 80), 16.0), torch.full((80, 33), 32.0)
    a[16:] = 4.0
    beside_cpu(a, b, lp.accumulator(acc), device)
    assert makers(made) == OVERFLOWING[acc]


SPECIALS = {
    "e6m9": -1, "e6m9:stochastic": -1, "fp32": _tiers.PLAIN, "e4m3_sat": _tiers.RANGE,
    "e4m3fn_sat": _tiers.RANGE, "e5m10": _tiers.HALF, "bf16": _tiers.BRAIN,
}  # fmt: skip


@pytest.mark.parametrize("acc", SPECIALS)
@pytest.mark.parametrize("value", list(map(float, ("inf", "-inf", "nan"))))
def test_specials(acc: str, value: float, device: str, made) -> None:
    a, b = floats((9, 15), 1), floats((15, 33), 2)
    a[2, 3] = value
    a[4, 5], a[4, 6] = value, -value
    b[7, 8] = value
    beside_cpu(a, b, lp.accumulator(acc), device)
    assert makers(made) == {SPECIALS[acc]}


@pytest.mark.parametrize("name, tier", [("e5m10", _tiers.HALF), ("bf16", _tiers.BRAIN)])
def test_halves_of_every_size(name: str, tier: int, device: str, made, monkeypatch) -> None:
    """Subnormals, overflow, infinities less themselves and sums of nothing but -0."""
    only(monkeypatch, tier)
    fmt = lp.parse_format(name)
    values = torch.tensor(fmt.values(), dtype=torch.float32)
    choice = torch.Generator().manual_seed(2)
    for k in (1, 12):
        a, b = (
            values[torch.randint(0, values.numel(), shape, generator=choice)]
            for shape in ((10, k), (k, 33))
        )
        a[::5], b[:, ::7] = a[::5] * 0.0, fmt.min_subnormal
        a[1::5] = a[1::5] / fmt.max * fmt.min_normal
        a[1::5] = lp.quantize(a[1::5], fmt, backend="reference")
        a[2, 0], a[3, -1] = float("inf"), float("nan")
        beside_cpu(a, b, lp.Accumulator(name), device)
    assert makers(made) == {tier}


def make_absent(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Of every product the first four columns have an absent tap at this step."""
    inner = stages.launch

    def launch(problem, *rest):
        right = problem.right
        right.values.view(torch.int32)[step * right.step : step * right.step + 4] = ABSENT
        return inner(problem._replace(right=right._replace(absent=True)), *rest)

    monkeypatch.setattr(stages, "launch", launch)


def without(step: int, a: Tensor, b: Tensor, acc: lp.Accumulator) -> Tensor:
    """The product whose first four columns leave out a step."""
    want = lp.matmul(a, b, acc, backend="cpu")
    rest = [k for k in range(a.shape[1]) if k != step]
    want[:, :4] = lp.matmul(a[:, rest], b[rest, :4], acc, backend="cpu")
    return want


def test_halves_take_an_absent_tap_for_zero_where_that_is_proved(device: str, made, monkeypatch):
    make_absent(monkeypatch, 2)
    only(monkeypatch, _tiers.HALF)
    acc = lp.Accumulator("e5m10")
    for exponent, special, exact in ((-6, False, False), (-13, False, True), (-6, True, True)):
        a, b = floats((5, 4), 1, low=exponent), floats((4, 16), 2, low=exponent)
        if special:
            a[0, 2] = float("inf")
        got = by_hand.matmul(BACKEND, a.to(device), b.to(device), None, acc.to_ints(), None, 0)
        assert (-1 in makers(made)) == exact
        if not exact:
            assert_bit_equal(got, without(2, a, b, acc))


@pytest.mark.parametrize("fmt", ["e5m10", "e4m3", "bf16", "e6m0", "e5m1"])
@pytest.mark.parametrize("mode", MODES)
def test_underflow_in_every_mode(fmt: str, mode: str, device: str, made, monkeypatch) -> None:
    """Sums of products of 48 bits lie near the smallest subnormal; zeros have both signs."""
    only(monkeypatch, _tiers.DIRECTED)
    least = lp.parse_format(fmt).emin - lp.parse_format(fmt).man_bits
    low = least // 2 - 3
    a, b = (floats(shape, len(shape), bits=24, low=low, high=low + 4, zeros=0.3)
            for shape in ((7, 13), (13, 40)))  # fmt: skip
    a[2], b[:, 5] = a[2].abs(), -0.0
    b[5:, 7], b[6:, 8], b[3:, 9] = 0.0, -0.0, b[3:, 9].abs()
    beside_cpu(a, b, lp.Accumulator(fmt, mode, random_bits=7), device)
    assert makers(made) == {_tiers.DIRECTED}


@pytest.mark.parametrize("mode", ["nearest_even", "nearest_away", "toward_zero", "toward_positive"])
def test_fixed_point_takes_any_operand(mode: str, device: str, made, monkeypatch) -> None:
    """There are wide products, overflow of all sizes, infinities and NaN."""
    only(monkeypatch, _tiers.FIXED)
    a, b = floats((9, 25), 1, bits=24, low=-9, high=2), floats((25, 33), 2, bits=24, low=-9, high=2)
    a[3, 2], a[4, 5], a[5] = float("inf"), float("nan"), a[5] * 2.0**60
    a[6], b[:, 7] = a[6] * 2.0**120, b[:, 7] * 2.0**100
    for fmt in ("fixed16_f12", "fixed22_f20", "fixed12_f4"):
        beside_cpu(a, b, lp.Accumulator(fmt, mode), device)
    assert makers(made) == {_tiers.FIXED}


WRAPPING = ("fixed8_f4_wrap", "fixed20_f9_wrap", "fixed10_f5_wrap", "ufixed7_f3_wrap")


@pytest.mark.parametrize("fmt", WRAPPING)
@pytest.mark.parametrize("mode", ("toward_zero", "nearest_away"))
def test_wrapping_sums_keep_their_sign(fmt: str, mode: str, device: str, made, monkeypatch) -> None:
    """Sums are halves and parts of a quantum on both sides of zero and of the ends."""
    only(monkeypatch, _tiers.FIXED)
    acc = lp.Accumulator(fmt, mode)
    a = floats((9, 24), 1, bits=9, low=-4, high=2)
    a[1::2] = (a[1::2] * 2.0**5).round() * 2.0**-5
    b = torch.full((24, 33), acc.fmt.quantum * 2.0**3)
    b[:, 1::3] *= -1.0
    b[:, 2::3] *= 2.0 ** (acc.fmt.word_bits - 8)
    beside_cpu(a, b, acc, device)
    assert makers(made) == {_tiers.FIXED}


ABSENT_TAPS = [
    ("e4m3", _tiers.FLOOR), ("e4m3", _tiers.NEAREST), ("e4m3", _tiers.RANGE),
    ("e4m3:to_odd", _tiers.DIRECTED), ("e4m3:toward_negative", _tiers.DIRECTED),
    ("fixed12_f9:toward_negative", _tiers.FIXED),
]  # fmt: skip


def test_absent_taps_add_nothing(device: str, monkeypatch) -> None:
    """Absent taps add nothing even to a sum of -0."""
    a, b = torch.full((3, 11), -(2.0**-9)), torch.full((11, 16), 2.0**-9)
    a[1] = 2.0**-2
    make_absent(monkeypatch, 9)
    for text, tier in ABSENT_TAPS:
        acc = lp.accumulator(text)
        only(monkeypatch, tier)
        got = by_hand.matmul(BACKEND, a.to(device), b.to(device), None, acc.to_ints(), None, 0)
        assert_bit_equal(got, without(9, a, b, acc), _tiers.NAMES[tier])


@pytest.mark.parametrize(
    "fmt, width, span",
    # q = 12 with r = 11 and 12 (B); r > q within and beyond (C); (A) at 24 places, and one more.
    [("e6m11", 11, 12), ("e5m4", 9, 3), ("e5m4", 12, 3), ("e6m12", 12, 0), ("e6m12", 12, 2),
    ("e8m7", 8, 4), ("e8m20", 24, 1), ("e5m15", 20, 6)],
)  # fmt: skip
def test_around_the_certificate(fmt: str, width: int, span: int, device: str) -> None:
    """Sums with products of ``width`` bits lie next to midpoints, whichever kernel makes them."""
    bits = width // 2
    a = floats((16, 19), width, bits=bits, low=0, high=span, zeros=0)
    b = floats((19, 48), span, bits=width - bits, low=-span, high=0, zeros=0.2)
    # Large and small products take turns, so that sums end near ties.
    a[:, ::3] *= 2.0 ** (lp.parse_format(fmt).man_bits // 2)
    beside_cpu(a, b, lp.Accumulator(fmt), device)
