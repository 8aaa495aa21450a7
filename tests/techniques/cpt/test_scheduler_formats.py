"""PrecisionScheduler: tables of formats and of accumulators."""

from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.techniques.cpt import Precision, PrecisionScheduler, Schedule
from tests.techniques.cpt.fakes import Summing, layers_of, small_model

FLOATS = {3: "e2m0_sat", 4: "fp4_e2m1", 5: "e2m2_sat"}


@pytest.mark.parametrize(
    "formats", [FLOATS, "float", "fixed{bits}_f2"], ids=["table", "name", "pattern"]
)
def test_formats_reach_targets_by_width(formats: Any) -> None:
    model = small_model()
    PrecisionScheduler(model, 8, bits=(3, 5), cycles=1, formats=formats)
    expected = "fixed3_f2" if formats == "fixed{bits}_f2" else "e2m0_sat"
    assert layers_of(model)[0].table[3] == lp.parse_format(expected)
    assert model(torch.randn(4, 6)).isfinite().all()


def test_accumulators_are_scheduled_with_bits_and_alone() -> None:
    model = small_model(Summing)
    scheduler = PrecisionScheduler(
        model, 8, bits=(3, 8), cycles=1, accumulator_bits=(4, 9), accumulators="e6m{bits}_chunk64"
    )
    layer = layers_of(model)[0]
    assert layer.accumulator == lp.Accumulator("e6m4", chunk=64)
    assert scheduler.precisions == [Precision(3, 8, None, 4)]
    with scheduler.at(5):
        assert (layer.bits, layer.accumulator.fmt.man_bits) == ((5, 8), 9)
    assert layer.accumulator.fmt.man_bits == 4

    alone = small_model(Summing)
    scheduler = PrecisionScheduler(alone, 8, bits=None, accumulator_bits=(4, 9), cycles=1)
    scheduler.step(7)
    assert layers_of(alone)[0].bits == (16, 16)
    assert layers_of(alone)[0].accumulator == lp.Accumulator("e8m9")
    plan = Schedule((4, 9), 1).plan(8)
    assert scheduler.cost("accumulator") == pytest.approx(float((plan + 1).mean()) / 24)
    assert scheduler.static_cost("accumulator") == 10 / 24
    with pytest.raises(ValueError, match="kind='bitops' needs a schedule of it"):
        scheduler.cost()


@pytest.mark.parametrize(
    "accumulators",
    [{4: "e5m4", 5: "e5m5"}, lambda bits: lp.Accumulator(f"e5m{bits}")],
    ids=["table", "function"],
)
def test_accumulators_by_table_and_function(accumulators: Any) -> None:
    model = small_model(Summing)
    options = {"bits": None, "accumulator_bits": (4, 5), "cycles": 1}
    PrecisionScheduler(model, 4, accumulators=accumulators, **options).step(3)
    assert layers_of(model)[0].accumulator == lp.Accumulator("e5m5")
