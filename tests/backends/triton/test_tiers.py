"""Which certified kernels an accumulator has."""

from typing import Any

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.backends.planning.triton_tiers import CUT, FIXED, NAMES, single_outer, tiers
from lpkernels.formats import FloatFormat
from tests.loops import each

#: Accumulators by their tiers. Those of bias 127 and -91 have their smallest normal value at
#: 2^-126, or their largest below 2^106; one more is too many.
TIERS = {
    "plain fused64 nearest64": "fp32",
    "fused floor fused64 nearest64": "e6m9 e5m10:product=e4m3 e6m9_chunk3:product=e4m3 e4m3_b127 "
    "e4m3_b-91",
    "fused fused64 nearest64": "e4m3_b128 e4m3_b-92",
    "split floor fused64 nearest64": "e6m11",
    "brain fused fused64 nearest64": "bf16",
    "half fused floor fused64 nearest64": "e5m10",
    "range fused64 nearest64": "e5m10_sat e4m3_sat",
    "fused fused64": "e5m3_nosub",
    "fused64 nearest64": "e8m22",
    "directed": "e5m10:toward_zero e5m10:nearest_away e5m10:toward_positive e5m1:toward_positive "
    "e5m0:to_odd e5m0:stochastic e5m10:stochastic e5m10_chunk64:stochastic "
    "e5m10_chunk6:stochastic:bits=10 e5m10:stochastic:philox e5m2:stochastic fp32:toward_zero "
    "e5m10:to_odd e4m3_b-3:to_odd",
    "fixed": "fixed16_f8 fixed16_f8:toward_zero fixed21_f8_wrap fixed16_f8_wrap:toward_zero "
    "fixed22_f8:nearest_away",
    "": "e5m10_chunk63:stochastic e5m10:stochastic:bits=13 e6m0 e4m3_b-3:to_odd:product=e4m3 "
    "e4m3_b130:to_odd fixed16_f8:stochastic fixed24_f8 fixed22_f8_wrap "
    "fixed21_f8_wrap:nearest_away fixed23_f8:nearest_away "
    "e6m9:product=e4m3:product_rounding=toward_zero e6m9:product=e4m3_nosub e6m9:order=pairwise "
    "e6m9:block=4:aligned_bits=13",
}


@each("names, accumulators", TIERS.items())
def test_of_an_accumulator(names: str, accumulators: str) -> None:
    for text in accumulators.split():
        found = tiers(accumulator(text).to_ints())
        assert " ".join(NAMES[tier] for tier in found) == names, text


def test_what_nvidia_alone_has() -> None:
    for fmt in ("e5m10", "bf16"):
        ints = Accumulator(fmt).to_ints()
        assert tiers(ints, nvidia=False) == tiers(ints)[1:]
    for mode, kinds in (("stochastic", (CUT,)), ("toward_zero", (CUT,)), ("to_odd", ())):
        assert tiers(Accumulator("e5m10", mode).to_ints(), nvidia=False) == kinds
    assert tiers(Accumulator("fixed8_f4").to_ints(), nvidia=False) == (FIXED,)
    assert tiers(Accumulator("fixed8_f4", "to_odd").to_ints(), nvidia=False) == ()


@each(
    "how, widths",
    [
        ({"rounding": "toward_zero"}, range(1, 21)),
        ({"rounding": "nearest_away"}, range(1, 20)),
        ({"rounding": "to_odd"}, range(0)),
        ({"rounding": "stochastic", "random_bits": 3}, range(4, 17)),
        ({"rounding": "stochastic", "random_bits": 8}, range(4, 12)),
        ({"rounding": "stochastic", "random_bits": 9}, range(0)),
        ({"rounding": "stochastic", "random_bits": 3, "rng": "philox"}, range(0)),
    ],
)
def test_the_widths_that_the_cut_of_float64_takes(how: dict[str, Any], widths: range) -> None:
    def has_cut(man_bits: int) -> bool:
        acc = Accumulator(FloatFormat(6, man_bits), **how)
        return tiers(acc.to_ints(), nvidia=False) == (CUT,)

    assert list(filter(has_cut, range(24))) == list(widths)


def test_outer_additions_in_float32() -> None:
    # Beyond, the quantum is below 2^-147, or the smallest normal below those of float32.
    for outer in ("e6m9", "e5m1", "e6m21", "e4m21_b127"):
        assert single_outer(accumulator(f"e6m9_chunk4:outer={outer}").to_ints()), outer
    for outer in ("e6m9:outer_rounding=toward_zero", "e5m0", "e6m22", "e4m3_b128", "e6m9_nosub",
                  "fixed16_f8"):  # fmt: skip
        assert not single_outer(accumulator(f"e6m9_chunk4:outer={outer}").to_ints()), outer


def test_draws_follow_the_steps() -> None:
    assert tiers(Accumulator("e5m10", "stochastic").to_ints(), in_order=False) == ()
    assert tiers(Accumulator("e5m10").to_ints(), in_order=False) != ()
