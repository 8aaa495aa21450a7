"""Which certified kernels an accumulator has."""

import pytest

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.triton._tiers import NAMES, tiers

pytestmark = pytest.mark.triton

TIERS = {
    Accumulator("fp32"): "plain nearest64",
    Accumulator("e6m9"): "split floor nearest64",
    Accumulator("bf16"): "brain split nearest64",
    Accumulator("e5m10"): "half split floor nearest64",
    Accumulator("e5m10_sat"): "range nearest64",
    Accumulator("e5m10", product="e4m3"): "split floor nearest64",
    Accumulator("e5m3_nosub"): "split nearest64",
    Accumulator("e4m3_sat"): "range nearest64",
    Accumulator("e8m22"): "nearest64",
    Accumulator("e6m9", product="e4m3", chunk=3): "split floor nearest64",
    Accumulator("e5m10", "toward_zero"): "cut64",
    Accumulator("e5m10", "nearest_away"): "cut64",
    Accumulator("e5m10", "stochastic"): "cut64",
    Accumulator("e5m10", "stochastic", chunk=64): "cut64",
    Accumulator("e5m10", "stochastic", chunk=63): "",
    Accumulator("e5m10", "stochastic", random_bits=10): "",
    Accumulator("e5m10", "stochastic", rng="philox"): "",
    Accumulator("e5m2", "stochastic"): "",
    Accumulator("fp32", "toward_zero"): "",
    Accumulator("e5m10", "to_odd"): "",
    Accumulator("e6m0"): "",
    Accumulator("fixed16_f8"): "",
    Accumulator("e6m9", product="e4m3", product_rounding="toward_zero"): "",
    Accumulator("e6m9", product="e4m3_nosub"): "",
    Accumulator("e6m9", order="pairwise"): "",
    Accumulator("e6m9", block=4, aligned_bits=13): "",
}


@pytest.mark.parametrize("acc", TIERS, ids=str)
def test_of_an_accumulator(acc: Accumulator) -> None:
    assert " ".join(NAMES[tier] for tier in tiers(acc.to_ints())) == TIERS[acc]


def test_halves_are_nvidias() -> None:
    for fmt in ("e5m10", "bf16"):
        ints = Accumulator(fmt).to_ints()
        assert tiers(ints, halves=False) == tiers(ints)[1:]


def test_draws_follow_the_steps() -> None:
    assert tiers(Accumulator("e5m10", "stochastic").to_ints(), in_order=False) == ()
    assert tiers(Accumulator("e5m10").to_ints(), in_order=False) != ()
