"""PrecisionOnPlateau: ReduceLROnPlateau's rule, upwards."""

import math
from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.techniques.cpt import PrecisionOnPlateau, PrecisionScheduler, bitops
from tests.loops import each, rows
from tests.techniques.cpt.fakes import Named, Quantized, Summing


@each("mode, threshold_mode, cooldown", ["min", "max"], ["rel", "abs"], [0, 3])
def test_it_rises_when_torch_would_reduce(mode: str, threshold_mode: str, cooldown: int) -> None:
    rule: dict[str, Any] = {"mode": mode, "threshold": 0.05, "threshold_mode": threshold_mode}
    rule |= {"patience": 2, "cooldown": cooldown}
    parameter = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, **rule)
    ours = PrecisionOnPlateau(target := Named(), bits=(1, 24), **rule)
    generator = torch.Generator().manual_seed(0)
    sign = 1 if mode == "min" else -1
    reduced = 0
    for step in range(60):
        noise = torch.randn((), generator=generator).item()
        metric = sign * (3 * math.exp(-step / 10) + 0.2 * noise)
        metric = math.nan if step == 20 else metric
        theirs.step(metric)
        ours.step(metric)
        reduced = round(-math.log2(optimizer.param_groups[0]["lr"]))
        assert ours.get_last_bits() == [(1 + reduced, 8)]
    assert reduced >= 4
    assert target.calls[-1] == (1 + reduced, 8)


def test_it_stops_at_the_highest() -> None:
    scheduler = PrecisionOnPlateau(Named(), bits=(3, 8), increment=2, patience=0)
    seen = []
    for _ in range(6):
        seen.append(scheduler.get_last_bits()[0][0])
        scheduler.step(1.0)
    assert seen == [3, 3, 5, 7, 8, 8]
    assert scheduler.at_highest


def test_at_is_the_highest_and_the_metric_may_be_a_tensor() -> None:
    scheduler = PrecisionOnPlateau(layer := Quantized(2, 2), bits=(3, 8), patience=0)
    for _ in range(2):
        scheduler.step(torch.tensor(1.0))
    with scheduler.at():
        assert layer.bits == (8, 8)
    assert layer.bits == (4, 8)


def test_accumulators_rise_too() -> None:
    layer, options = Summing(2, 2), {"accumulator_bits": (4, 6), "accumulators": "e6m{bits}"}
    scheduler = PrecisionOnPlateau(layer, bits=None, patience=0, **options)
    assert layer.accumulator == lp.Accumulator("e6m4")
    assert scheduler.cost("accumulator") == 5 / 24
    for _ in range(2):
        scheduler.step(1.0, steps=10)
    assert layer.accumulator == lp.Accumulator("e6m5")
    scheduler.step(1.0, steps=20)
    assert scheduler.cost("accumulator") == pytest.approx((20 * 5 + 20 * 6) / 40 / 24)
    with pytest.raises(ValueError, match="kind='bitops' needs a schedule of it"):
        scheduler.cost()


def test_cost_is_the_mean_over_the_steps() -> None:
    scheduler = PrecisionOnPlateau(Named(), bits=(3, 4), patience=0)
    assert scheduler.cost() == bitops(3, 8)
    scheduler.step(1.0, steps=30)
    scheduler.step(1.0, steps=10)
    scheduler.count(60)
    assert scheduler.cost() == pytest.approx(0.4 * bitops(3, 8) + 0.6 * bitops(4, 8))


def test_state_goes_on_to_the_same_bits() -> None:
    def made(target: Any) -> PrecisionOnPlateau:
        return PrecisionOnPlateau(target, bits=(3, 8), patience=1, cooldown=1)

    metrics = [3.0, 2.0, 2.5, 2.4, 2.3, 1.9, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    whole, first, second = made(Named()), made(Named()), made(target := Named())
    for metric in metrics[:5]:
        for scheduler in (whole, first):
            scheduler.step(metric, steps=7)
    second.load_state_dict(first.state_dict())
    assert target.calls[-1] == whole.get_last_bits()[0] == (4, 8)
    for metric in metrics[5:]:
        for scheduler in (whole, second):
            scheduler.step(metric)
    assert second.state_dict() == whole.state_dict()
    assert second.cost() == whole.cost()
    # The state is plain, whatever was counted before.
    PrecisionScheduler(Named(), 8, bits=(3, 4), cycles=1).expected_cost()
    scheduler = PrecisionOnPlateau(Named(), bits=(3, 4))
    scheduler.step(torch.tensor(1.0), steps=3)
    kinds = {type(value) for value in scheduler.state_dict().values()}
    assert kinds <= {int, float, str, dict}


def test_state_of_other_settings_is_refused() -> None:
    state = PrecisionOnPlateau(Named(), bits=(3, 8)).state_dict()
    other = PrecisionOnPlateau(Named(), bits=(4, 8))
    with pytest.raises(ValueError, match="expected the state of bits="):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="expected the state of patience=3, got 10"):
        PrecisionOnPlateau(Named(), bits=(3, 8), patience=3).load_state_dict(state)
    with pytest.raises(ValueError, match="got one without rises, best"):
        other.load_state_dict({})
    with pytest.raises(TypeError, match="expected a dict, got int"):
        other.load_state_dict(3)  # type: ignore[arg-type]
    before = other.state_dict()
    for name, value, error in (("rises", -3, ValueError), ("bad", None, TypeError)):
        with pytest.raises(error, match=f"load_state_dict: {name}: expected"):
            other.load_state_dict({**before, "best": 1.0, name: value})
        assert other.state_dict() == before


@rows(
    "options, error, match",
    ({"bits": (8, 3)}, ValueError, r"got \(8, 3\); write \(3, 8\)"),
    ({"bits": None}, ValueError, "expected bits or accumulator_bits, got neither"),
    ({"increment": 0}, ValueError, "increment: expected at least 1, got 0"),
    ({"patience": -1}, ValueError, "patience: expected at least 0, got -1"),
    ({"threshold": "x"}, TypeError, "threshold: expected a number, got str"),
    ({"threshold": math.inf}, ValueError, "threshold: expected a finite number"),
    ({"mode": "low"}, ValueError, "mode: expected one of min, max"),
    ({"formats": "float"}, ValueError, "takes no formats="),
)
def test_wrong_input(options, error, match):
    target = Named()
    with pytest.raises(error, match=match):
        PrecisionOnPlateau(target, **{"bits": (3, 8), **options})
    assert target.calls == []
