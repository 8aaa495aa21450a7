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
from tests.backends.crossed import product_calls
from tests.backends.shared_products import check_calls
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


def accumulators_of(tier: int) -> list[lp.Accumulator]:
    served = [lp.accumulator(text) for text in SERVED[tier].split()]
    if tier == _tiers.DIRECTED:
        served += [
            lp.Accumulator(fmt, mode, random_bits=5, product=product)
            for fmt, mode, product in itertools.product(("e8m0", "e8m1"), MODES, (None, "e5m2"))
        ]
    return served


@pytest.mark.parametrize("tier", SERVED, ids=_tiers.NAMES.__getitem__)
def test_served(tier: int, device: str, tile_tiers, monkeypatch) -> None:
    only(monkeypatch, tier)
    m, k, n = (17, 21, 40) if device == "cuda" else (9, 13, 33)
    for acc in accumulators_of(tier):
        a, b, bias = floats((m, k), 1), floats((k, n), 2), floats((n,), 3, bits=20)
        beside_cpu(a, b, acc, device, bias=bias)
        assert makers(tile_tiers) == {tier}, acc


@pytest.mark.parametrize("acc", ["e6m11", "e6m12"])
def test_ties_are_split_to_even(acc: str, device: str, tile_tiers, monkeypatch) -> None:
    """Values of six bits in one binade, among whose sums are ties of the splitting."""
    only(monkeypatch, _tiers.SPLIT)
    a, b = (floats(s, i, bits=6, low=0, high=0) for i, s in enumerate([(17, 13), (13, 65)], 1))
    beside_cpu(a, b, lp.accumulator(acc), device)
    assert makers(tile_tiers) == {_tiers.SPLIT}


@pytest.mark.parametrize("acc", SERVED[_tiers.RANGE].split()[:2])
def test_sums_about_the_tie_above_the_largest_value(acc: str, device: str, tile_tiers, monkeypatch):
    only(monkeypatch, _tiers.RANGE)
    fmt = lp.accumulator(acc).fmt
    step = 2.0 ** (fmt.emax - fmt.man_bits - 2)
    a = (fmt.max + step * torch.tensor([-2.0, 1.0, 2.0, 3.0]))[:, None]
    beside_cpu(torch.cat([a, -a]), torch.ones(1, 33), lp.accumulator(acc), device)
    assert makers(tile_tiers) == {_tiers.RANGE}


@pytest.mark.parametrize("tier", SERVED, ids=_tiers.NAMES.__getitem__)
def test_each_tier_takes_what_it_can_of_any_call(tier: int, device: str, monkeypatch) -> None:
    """Underflow, zeros of both signs, ends of formats and of words, ties, infinities and NaN: what
    a tier alone has no certificate for is left to the exact kernel."""
    only(monkeypatch, tier)
    most, count = (40, 200) if device == "cuda" else (9, 15)
    calls = product_calls(most, accumulators_of(tier))
    check_calls(calls, count, BACKEND, device, ("",), tier)


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
def test_later_tiers_and_the_exact_kernel_take_over(name: str, device: str, tile_tiers) -> None:
    text, kind, tier = TAKEN_OVER[name]
    a, b = floats((9, 15), 1, **kind), floats((15, 33), 2, **kind)
    beside_cpu(a, b, lp.accumulator(text), device)
    assert makers(tile_tiers) == {tier}


#: The tiers of tiles. No certificate holds for sums made odd.
OVERFLOWING = {
    "e5m9": {_tiers.FUSED, -1}, "e5m9:nearest_away": {_tiers.DIRECTED, -1}, "e5m9:to_odd": {-1},
}  # fmt: skip


@pytest.mark.parametrize("acc", OVERFLOWING)
def test_only_tiles_that_overflow_are_left(acc: str, device: str, tile_tiers) -> None:
    # 80 products of 2^9 pass 2^15, which is half of what e5m9 holds; 80 of 2^7 do not.
    a, b = torch.full((17, 80), 16.0), torch.full((80, 33), 32.0)
    a[16:] = 4.0
    beside_cpu(a, b, lp.accumulator(acc), device)
    assert makers(tile_tiers) == OVERFLOWING[acc]


SPECIALS = {
    "e6m9": -1, "e6m9:stochastic": -1, "fp32": _tiers.PLAIN, "e4m3_sat": _tiers.RANGE,
    "e4m3fn_sat": _tiers.RANGE, "e5m10": _tiers.HALF, "bf16": _tiers.BRAIN,
}  # fmt: skip


@pytest.mark.parametrize("acc", SPECIALS)
@pytest.mark.parametrize("value", list(map(float, ("inf", "-inf", "nan"))))
def test_specials(acc: str, value: float, device: str, tile_tiers) -> None:
    a, b = floats((9, 15), 1), floats((15, 33), 2)
    a[2, 3] = value
    a[4, 5], a[4, 6] = value, -value
    b[7, 8] = value
    beside_cpu(a, b, lp.accumulator(acc), device)
    assert makers(tile_tiers) == {SPECIALS[acc]}


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


def test_halves_take_an_absent_tap_for_zero_where_that_is_proved(device, tile_tiers, monkeypatch):
    make_absent(monkeypatch, 2)
    only(monkeypatch, _tiers.HALF)
    acc = lp.Accumulator("e5m10")
    for exponent, special, exact in ((-6, False, False), (-13, False, True), (-6, True, True)):
        a, b = floats((5, 4), 1, low=exponent), floats((4, 16), 2, low=exponent)
        if special:
            a[0, 2] = float("inf")
        got = by_hand.matmul(BACKEND, a.to(device), b.to(device), None, acc.to_ints(), None, 0)
        assert (-1 in makers(tile_tiers)) == exact
        if not exact:
            assert_bit_equal(got, without(2, a, b, acc))


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
