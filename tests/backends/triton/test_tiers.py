"""Which certified kernels an accumulator has."""

import pytest

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning.triton_tiers import CUT, FIXED, NAMES, tiers
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


def test_draws_follow_the_steps() -> None:
    assert tiers(Accumulator("e5m10", "stochastic").to_ints(), in_order=False) == ()
    assert tiers(Accumulator("e5m10").to_ints(), in_order=False) != ()
