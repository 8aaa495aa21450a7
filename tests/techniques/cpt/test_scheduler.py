"""PrecisionScheduler: habits of torch's schedulers, targets, layers of lpkernels, refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.techniques.cpt import PrecisionScheduler, Schedule, bitops
from lpkernels.techniques.cpt.schedule import Precision
from tests.loops import each, rows
from tests.techniques.cpt import fakes

CYCLE = [3, 3, 4, 5, 6, 6, 7, 8]


def test_the_constructor_sets_step_0_and_step_the_next() -> None:
    model = fakes.small_model()
    scheduler = PrecisionScheduler(model, 16, bits=(3, 8), cycles=2)
    seen = []
    for _ in range(18):
        seen.append(scheduler.get_last_bits())
        assert fakes.bits_of(model) == [seen[-1]] * 2
        scheduler.step()
    assert seen == [(bits, 8) for bits in CYCLE * 2 + [8, 8]]
    assert scheduler.last_step == 18


def test_step_goes_to_a_step_and_last_step_begins_there() -> None:
    model = fakes.small_model()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, last_step=4)
    assert scheduler.last_step == 5 and scheduler.get_last_bits() == (6, 8)
    scheduler.step(3)
    assert fakes.bits_of(model) == [(5, 8)] * 2


def test_gradients_follow_a_pair_stay_at_a_number_and_have_schedules_of_their_own() -> None:
    named = fakes.Named()
    PrecisionScheduler(named, 8, bits=(3, 8), cycles=1, grad_bits=6)
    scheduler = PrecisionScheduler(named, 8, bits=(3, 8), cycles=1, grad_bits=(6, 8))
    assert scheduler.plan().T.tolist() == [CYCLE, [6, 6, 6, 7, 7, 7, 8, 8]]
    own = Schedule((4, 6), 1, "linear")
    scheduler = PrecisionScheduler(named, 8, bits=(3, 8), cycles=1, grad_bits=own)
    assert scheduler.plan()[:, 1].tolist() == own.plan(8).tolist()
    assert named.calls == [(3, 6), (3, 6), (3, 4)]
    assert scheduler.plan().dtype == np.int64


def test_weights_have_bits_of_their_own_where_a_target_takes_them() -> None:
    target = fakes.Separate()
    scheduler = PrecisionScheduler(target, 8, bits=(3, 8), cycles=1, weight_bits=(2, 4))
    assert target.bits == (3, 2, 8)
    scheduler.step(7)
    assert target.bits == (8, 4, 8)
    both = zip(CYCLE, [2, 2, 2, 3, 3, 3, 4, 4], strict=True)
    costs = [bitops(bits, 8, weight_bits=weight) for bits, weight in both]
    assert scheduler.cost() == pytest.approx(np.mean(costs))
    with pytest.raises(ValueError, match=r"target '0' \(Fixed\) does not take .*'weight': 4"):
        PrecisionScheduler([Fixed()], 8, bits=(3, 8), cycles=1, weight_bits=4)


class Fixed(nn.Module):
    """A module that takes one number of bits for all operands."""

    def set_precision(self, forward: int, backward: int) -> None:
        self.bits = int(forward), backward


def test_layers_of_torchs_own_arithmetic_stay_so() -> None:
    sums = lp.Recipe(fprop="e6m9", dgrad="e6m9", wgrad="e6m9")
    model = nn.Sequential(*(lp.nn.Linear(4, 4, recipe=r) for r in ("cpt_fu2021", "fp32", sums)))
    PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, accumulator_bits=5)
    assert [layer.precision for layer in model] == [(3, 8), (None, None), (None, None)]
    planned = lp.Accumulator("e8m5")
    assert [layer.recipe.fprop for layer in model] == [planned, lp.NATIVE, planned]
    with pytest.raises(ValueError, match="no module of Sequential has a precision to set"):
        PrecisionScheduler(model[1:2], 8, bits=(3, 8), cycles=1)
    with pytest.raises(ValueError, match="no target rounds its operands"):
        PrecisionScheduler(model[2:], 8, bits=(3, 8), cycles=1)


def test_functions_objects_and_lists_are_targets() -> None:
    calls: list[tuple[int, int]] = []
    named, model = fakes.Named(), fakes.small_model()
    targets = [lambda *bits: calls.append(bits), named, model]
    PrecisionScheduler(targets, 8, bits=(4, 8), cycles=1).step()
    assert calls == named.calls == [(4, 8), (4, 8)]
    assert all(type(bits) is int for bits in calls[0])
    assert fakes.bits_of(model) == [(4, 8)] * 2


def test_at_is_the_highest_and_gives_the_bits_of_training_back() -> None:
    model = fakes.small_model()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, grad_bits=(4, 6))
    with scheduler.at():
        assert fakes.bits_of(model) == [(8, 4)] * 2
        with scheduler.as_trained():
            assert fakes.bits_of(model) == [(3, 4)] * 2
        with scheduler.at(5):
            assert fakes.bits_of(model) == [(5, 4)] * 2
        assert fakes.bits_of(model) == [(8, 4)] * 2
    assert fakes.bits_of(model) == [(3, 4)] * 2
    with pytest.raises(RuntimeError, match="mine"), scheduler.at(6):
        raise RuntimeError("mine")
    assert fakes.bits_of(model) == [(3, 4)] * 2
    with pytest.raises(ValueError, match="at most 16 bits, got 20"), scheduler.at(20):
        pass
    assert fakes.bits_of(model) == [(3, 4)] * 2


def test_a_step_within_a_block_of_at_holds_after_it_and_evaluation_may_have_bits_of_its_own():
    model = fakes.small_model()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1)
    with scheduler.at():
        scheduler.step(3)
        assert fakes.bits_of(model)[0] == (8, 8)
    assert fakes.bits_of(model)[0] == (5, 8)
    scheduler = PrecisionScheduler(model, 8, bits=(3, 6), cycles=1, eval_bits=10)
    with scheduler.at():
        assert fakes.bits_of(model) == [(10, 8)] * 2


def test_costs_run_and_are_expected() -> None:
    scheduler = PrecisionScheduler(fakes.Named(), 8, bits=(3, 8), cycles=1)
    costs = [bitops(bits, 8) for bits in CYCLE + [8] * 4]
    for step in range(12):
        assert scheduler.cost() == pytest.approx(np.mean(costs[: step + 1]))
        scheduler.step()
    assert scheduler.expected_cost() == pytest.approx(np.mean(costs[:8]))
    assert scheduler.static_cost() == bitops(8, 8)
    with pytest.raises(ValueError, match="kind: expected one of bitops, accumulator, got 'flops'"):
        scheduler.cost("flops")


FLOATS = {3: "e2m0_sat", 4: "fp4_e2m1", 5: "e2m2_sat"}


@each("formats", [FLOATS, "float", "fixed{bits}_f2"])
def test_formats_reach_targets_by_width(formats: Any) -> None:
    model = fakes.small_model()
    PrecisionScheduler(model, 8, bits=(3, 5), cycles=1, formats=formats)
    expected = "fixed3_f2" if formats == "fixed{bits}_f2" else "e2m0_sat"
    assert fakes.layers_of(model)[0].table[3] == lp.parse_format(expected)
    assert model(torch.randn(4, 6)).isfinite().all()


def test_accumulators_are_scheduled_with_bits_and_alone() -> None:
    model = fakes.small_model(fakes.Summing)
    options: dict[str, Any] = {"accumulator_bits": (4, 9), "cycles": 1}
    chunked = "e6m{bits}_chunk64"
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), accumulators=chunked, **options)
    layer = fakes.layers_of(model)[0]
    assert layer.accumulator == lp.Accumulator("e6m4", chunk=64)
    assert scheduler.precision == Precision(3, 8, None, 4)
    with scheduler.at(5):
        assert (layer.bits, layer.accumulator.fmt.man_bits) == ((5, 8), 9)
    assert layer.accumulator.fmt.man_bits == 4

    alone = fakes.small_model(fakes.Summing)
    scheduler = PrecisionScheduler(alone, 8, bits=None, **options)
    scheduler.step(7)
    assert fakes.layers_of(alone)[0].bits == (16, 16)
    assert fakes.layers_of(alone)[0].accumulator == lp.Accumulator("e8m9")
    plan = Schedule((4, 9), 1).plan(8)
    assert scheduler.cost("accumulator") == pytest.approx(float((plan + 1).mean()) / 24)
    assert scheduler.static_cost("accumulator") == 10 / 24
    with pytest.raises(ValueError, match="kind='bitops' needs a schedule of it"):
        scheduler.cost()
    table = {bits: f"e6m{bits}" for bits in range(4, 10)}
    PrecisionScheduler(alone, 8, bits=None, accumulators=table, **options)
    assert fakes.layers_of(alone)[0].accumulator == lp.Accumulator("e6m4")


class Refusing(fakes.Quantized):
    """A layer that takes up to 6 bits, and keeps what it was told in a tensor and a list."""

    MOST = 6

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("width", torch.tensor(16))
        self.told: list[int] = []

    def set_precision(self, forward_bits: int, backward_bits: int, **options: Any) -> None:
        self.told = [*self.told, forward_bits]
        self.width.fill_(forward_bits)
        super().set_precision(forward_bits, backward_bits, **options)


def test_a_width_that_a_target_refuses_changes_nothing() -> None:
    model = nn.Sequential(fakes.Quantized(6, 6), Refusing(6, 6))
    match = r"target '1' \(Refusing\) does not take .*'forward': 7.*at most 6 bits"
    with pytest.raises(ValueError, match=match):
        PrecisionScheduler(model, 8, bits=(3, 8), cycles=1)
    assert fakes.bits_of(model) == [(16, 16)] * 2
    assert model[1].told == [] and model[1].width == 16
    PrecisionScheduler(model, 8, bits=(3, 6), cycles=1)
    assert model[1].told == [3] and model[1].width == 3


def test_a_step_that_a_target_refuses_is_not_made() -> None:
    def refuse(forward_bits: int, backward_bits: int) -> None:
        if forward_bits == 5:
            raise ValueError("no five")

    scheduler = PrecisionScheduler([named := fakes.Named(), refuse], 8, bits=(3, 8), cycles=1)
    scheduler.step(2)
    with pytest.raises(ValueError, match=r"target '1' \(refuse\) does not take .*: no five"):
        scheduler.step()
    assert named.calls == [(3, 8), (4, 8), (5, 8), (4, 8)]
    assert scheduler.last_step == 2 and scheduler.get_last_bits() == (4, 8)


PLAIN, LAYER, SUMS = nn.Sequential(nn.Linear(2, 2)), fakes.Quantized(2, 2), fakes.Summing(2, 2)
TARGETS = [
    (PLAIN, {}, ValueError, "no module of Sequential has a precision to set; convert"),
    ([], {}, ValueError, "expected at least one target, got none"),
    (3, {}, TypeError, "expected a model, an object with set_precision.* got int"),
    (print, {"accumulator_bits": 4}, ValueError, "no attribute 'set_accumulator'"),
]
OPTIONS = [
    ({"bits": (8, 3)}, ValueError, r"bits: expected \(lowest, highest\), got \(8, 3"),
    ({"bits": None}, ValueError, "expected bits, accumulator_bits or both"),
    ({"eval_bits": 99}, ValueError, "eval_bits: expected 1 to 32, got 99"),
    ({"formats": "float"}, ValueError, "does not take .* unexpected keyword argument 'formats'"),
    ({"accumulator_bits": 4}, ValueError, "no attribute 'set_accumulator'"),
]
FORMATS = [
    ({"eval_bits": 20}, ValueError, "does not take {'forward': 20"),
    ({"formats": FLOATS}, ValueError, "the table lacks 6, 7, 8 of the sch"),
    ({"formats": "e4m3"}, ValueError, "text with {bits} in it once"),
    ({"formats": 3}, TypeError, "formats: expected a text"),
]
ACCUMULATORS = [
    ({"accumulators": {5: "e5m5"}}, ValueError, "accumulators: the table lacks 4"),
    ({"accumulators": 3}, TypeError, "accumulators: expected a text"),
]


@rows(
    "targets, options, error, match",
    *TARGETS,
    *((fakes.Named(), *row) for row in OPTIONS),
    *((LAYER, *row) for row in FORMATS),
    *((SUMS, {"accumulator_bits": 4} | options, *row) for options, *row in ACCUMULATORS),
)
def test_wrong_input(targets, options, error, match):
    settings = {"total_steps": 8, "bits": (3, 8), "cycles": 1, **options}
    with pytest.raises(error, match=match):
        PrecisionScheduler(targets, **settings)
    if isinstance(targets, fakes.Named):
        assert targets.calls == []
    if isinstance(targets, fakes.Quantized):
        assert targets.bits == (16, 16)


def model_of(policy: str = "cpt_fu2021") -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3))
    return lp.convert(model, lp.policy(policy))


def precisions(model: nn.Sequential) -> list[object]:
    return [model[index].precision for index in (0, 3, 5)]


def x() -> torch.Tensor:
    return torch.randn(6, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def test_all_layers_but_the_last_follow_the_schedule() -> None:
    model = model_of()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, grad_bits=6)
    assert precisions(model) == [(3, 6), (3, 6), (None, None)]
    for _ in range(7):
        scheduler.step()
    assert precisions(model)[0] == (8, 6)
    with scheduler.at(5):
        assert precisions(model)[1] == (5, 6)
        inside = model(x())
    lp.set_precision(model, 5, 6)
    assert torch.equal(inside, model(x()))


def test_weights_and_accumulators() -> None:
    model = model_of()
    options = {"weight_bits": 4, "accumulator_bits": (5, 9), "accumulators": "e6m{bits}"}
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, **options)
    assert precisions(model) == [((3, 4), 8)] * 2 + [(None, None)]
    assert str(model[0].recipe.fprop) == "e6m5" and model[5].recipe == lp.Recipe()
    scheduler.step(7)
    assert str(model[0].recipe.wgrad) == "e6m9"


def test_the_running_range_goes_on_at_32_bits_and_serves_fewer_bits_later() -> None:
    def after(bits: int) -> tuple[torch.Tensor, torch.Tensor]:
        model = model_of()
        lp.set_precision(model, bits, 8)
        model(3 * x())
        lp.set_precision(model, 4, 8)
        model(x())
        assert set(model.state_dict()) == set(model_of().state_dict())
        kept = torch.cat([model[0].input_range, model[0].input_range_weight.view(1)])
        return kept, model[0].eval()(x())

    (ranges, y), (expected, z) = after(32), after(8)
    assert torch.equal(ranges, expected) and torch.equal(y, z)
    lowest = 0.1 * (0.9 * 3 + 1) * x().min().item()
    assert ranges[::2].tolist() == pytest.approx([lowest, 1 - 0.9**2], rel=1e-5)


def test_a_schedule_of_8_to_32_bits_comes_back_to_the_same_quantizers() -> None:
    model = model_of()
    before = model[0].recipe
    scheduler = PrecisionScheduler(model, 8, bits=(8, 32), cycles=2, grad_bits=32)
    seen = []
    for _ in range(8):
        seen.append(precisions(model)[0])
        scheduler.step()
    assert seen == [(8, 32), (12, 32), (32, 32), (32, 32)] * 2
    with scheduler.at(8):
        assert str(model[3].recipe.weight) == "affine8_axis0"
    lp.set_precision(model, 8, 8)
    assert model[0].recipe == before
    assert scheduler.expected_cost() == pytest.approx(
        sum(b * b + 2 * b * 32 for b in (8, 12, 32, 32)) / 4 / 3072
    )
