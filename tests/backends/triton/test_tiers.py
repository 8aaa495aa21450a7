"""Which certified kernels an accumulator has."""

from typing import Any

import pytest

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning.triton_tiers import CUT, FIXED, NAMES, single_outer, tiers
from lpkernels.formats import FixedFormat, FloatFormat

pytestmark = pytest.mark.triton

TIERS = {
    Accumulator("fp32"): "plain fused64 nearest64",
    Accumulator("e6m9"): "fused floor fused64 nearest64",
    Accumulator("e6m11"): "split floor fused64 nearest64",
    Accumulator("bf16"): "brain fused fused64 nearest64",
    Accumulator("e5m10"): "half fused floor fused64 nearest64",
    Accumulator("e5m10_sat"): "range fused64 nearest64",
    Accumulator("e5m10", product="e4m3"): "fused floor fused64 nearest64",
    Accumulator("e5m3_nosub"): "fused fused64",
    Accumulator("e4m3_sat"): "range fused64 nearest64",
    Accumulator("e8m22"): "fused64 nearest64",
    Accumulator("e6m9", product="e4m3", chunk=3): "fused floor fused64 nearest64",
    Accumulator("e5m10", "toward_zero"): "directed",
    Accumulator("e5m10", "nearest_away"): "directed",
    Accumulator("e5m10", "toward_positive"): "directed",
    Accumulator("e5m1", "toward_positive"): "directed",
    Accumulator("e5m0", "to_odd"): "directed",
    Accumulator("e5m0", "stochastic"): "directed",
    Accumulator("e5m10", "stochastic"): "directed",
    Accumulator("e5m10", "stochastic", chunk=64): "directed",
    Accumulator("e5m10", "stochastic", chunk=63): "",
    Accumulator("e5m10", "stochastic", random_bits=10, chunk=6): "directed",
    Accumulator("e5m10", "stochastic", random_bits=13): "",
    Accumulator("e5m10", "stochastic", rng="philox"): "directed",
    Accumulator("e5m2", "stochastic"): "directed",
    Accumulator("fp32", "toward_zero"): "directed",
    Accumulator("e5m10", "to_odd"): "directed",
    Accumulator("e6m0"): "",
    # The smallest normal is 2^-126 or below, the largest value below 2^106 or above.
    Accumulator(FloatFormat(4, 3, bias=127)): "fused floor fused64 nearest64",
    Accumulator(FloatFormat(4, 3, bias=128)): "fused fused64 nearest64",
    Accumulator(FloatFormat(4, 3, bias=-91)): "fused floor fused64 nearest64",
    Accumulator(FloatFormat(4, 3, bias=-92)): "fused fused64 nearest64",
    Accumulator(FloatFormat(4, 3, bias=-3), "to_odd"): "directed",
    Accumulator(FloatFormat(4, 3, bias=-3), "to_odd", product="e4m3"): "",
    Accumulator(FloatFormat(4, 3, bias=130), "to_odd"): "",
    Accumulator("fixed16_f8"): "fixed",
    Accumulator("fixed16_f8", "toward_zero"): "fixed",
    Accumulator("fixed16_f8", "stochastic"): "",
    Accumulator("fixed24_f8"): "",
    Accumulator(FixedFormat(21, 8, overflow="wrap")): "fixed",
    Accumulator(FixedFormat(22, 8, overflow="wrap")): "",
    Accumulator(FixedFormat(16, 8, overflow="wrap"), "toward_zero"): "fixed",
    Accumulator(FixedFormat(21, 8, overflow="wrap"), "nearest_away"): "",
    Accumulator("fixed22_f8", "nearest_away"): "fixed",
    Accumulator("fixed23_f8", "nearest_away"): "",
    Accumulator("e6m9", product="e4m3", product_rounding="toward_zero"): "",
    Accumulator("e6m9", product="e4m3_nosub"): "",
    Accumulator("e6m9", order="pairwise"): "",
    Accumulator("e6m9", block=4, aligned_bits=13): "",
}


@pytest.mark.parametrize("acc", TIERS, ids=str)
def test_of_an_accumulator(acc: Accumulator) -> None:
    assert " ".join(NAMES[tier] for tier in tiers(acc.to_ints())) == TIERS[acc]


def test_what_nvidia_alone_has() -> None:
    for fmt in ("e5m10", "bf16"):
        ints = Accumulator(fmt).to_ints()
        assert tiers(ints, nvidia=False) == tiers(ints)[1:]
    for mode, kinds in (("stochastic", (CUT,)), ("toward_zero", (CUT,)), ("to_odd", ())):
        assert tiers(Accumulator("e5m10", mode).to_ints(), nvidia=False) == kinds
    assert tiers(Accumulator("fixed8_f4").to_ints(), nvidia=False) == (FIXED,)
    assert tiers(Accumulator("fixed8_f4", "to_odd").to_ints(), nvidia=False) == ()


@pytest.mark.parametrize(
    ("how", "widths"),
    [
        ({"rounding": "toward_zero"}, range(1, 21)),
        ({"rounding": "nearest_away"}, range(1, 20)),
        ({"rounding": "to_odd"}, range(0)),
        ({"rounding": "stochastic", "random_bits": 3}, range(4, 17)),
        ({"rounding": "stochastic", "random_bits": 8}, range(4, 12)),
        ({"rounding": "stochastic", "random_bits": 9}, range(0)),
        ({"rounding": "stochastic", "random_bits": 3, "rng": "philox"}, range(0)),
    ],
    ids=str,
)
def test_the_widths_that_the_cut_of_float64_takes(how: dict[str, Any], widths: range) -> None:
    def has_cut(man_bits: int) -> bool:
        acc = Accumulator(FloatFormat(6, man_bits), **how)
        return tiers(acc.to_ints(), nvidia=False) == (CUT,)

    assert list(filter(has_cut, range(24))) == list(widths)


@pytest.mark.parametrize(
    ("outer", "single"),
    [
        ({"outer": "e6m9"}, True),
        ({"outer": "e6m9", "outer_rounding": "toward_zero"}, False),
        ({"outer": "e5m1"}, True),
        ({"outer": "e5m0"}, False),
        ({"outer": FloatFormat(6, 21)}, True),
        ({"outer": FloatFormat(6, 22)}, False),
        # The quantum is 2^-147, or the smallest normal is below those of float32.
        ({"outer": FloatFormat(4, 21, bias=127)}, True),
        ({"outer": FloatFormat(4, 3, bias=128)}, False),
        ({"outer": "e6m9_nosub"}, False),
        ({"outer": "fixed16_f8"}, False),
    ],
    ids=str,
)
def test_outer_additions_in_float32(outer: dict[str, Any], single: bool) -> None:
    assert single_outer(Accumulator("e6m9", chunk=4, **outer).to_ints()) is single


def test_draws_follow_the_steps() -> None:
    assert tiers(Accumulator("e5m10", "stochastic").to_ints(), in_order=False) == ()
    assert tiers(Accumulator("e5m10").to_ints(), in_order=False) != ()
