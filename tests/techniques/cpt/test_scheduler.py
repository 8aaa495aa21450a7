"""PrecisionScheduler: habits of torch's schedulers, targets, layers of lpkernels, refusals."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import lpkernels as lp
from lpkernels.techniques.cpt import PrecisionScheduler, bitops
from tests.support.refusals import refused
from tests.techniques.cpt.fakes import (
    Named,
    Refusing,
    bits_of,
    layer,
    small_model,
)

CYCLE = [3, 3, 4, 5, 6, 6, 7, 8]


def scheduled(targets: Any, total_steps: int = 8, **options: Any) -> PrecisionScheduler:
    """One cycle from 3 to 8 bits in 8 steps, unless the options say otherwise."""
    return PrecisionScheduler(targets, total_steps, **{"bits": (3, 8), "cycles": 1, **options})


def test_the_constructor_sets_step_0_and_step_the_next() -> None:
    model = small_model()
    scheduler = scheduled(model, 16, cycles=2)
    steps = []
    for _ in range(18):
        steps.append(scheduler.get_last_bits())
        assert bits_of(model) == [steps[-1]] * 2
        scheduler.step()
    assert steps == [(bits, 8) for bits in CYCLE * 2 + [8, 8]]
    assert scheduler.last_step == 18


def test_step_goes_to_a_step_and_last_step_begins_there() -> None:
    model = small_model()
    scheduler = scheduled(model, last_step=4)
    assert scheduler.last_step == 5 and scheduler.get_last_bits() == (6, 8)
    scheduler.step(3)
    assert bits_of(model) == [(5, 8)] * 2


@pytest.mark.parametrize(
    "grad_bits, plan",
    [
        pytest.param(6, [6] * 8, id="a number stays"),
        pytest.param((6, 8), [6, 6, 6, 7, 7, 7, 8, 8], id="a pair follows the settings"),
    ],
)
def test_gradients_have_bits_of_their_own(grad_bits: Any, plan: list[int]) -> None:
    scheduler = scheduled(named := Named(), grad_bits=grad_bits)
    assert scheduler.plan().T.tolist() == [CYCLE, plan] and scheduler.plan().dtype == np.int64
    assert named.calls == [(3, plan[0])]


def test_layers_that_round_no_operand_stay_so() -> None:
    sums = lp.Recipe(fprop="e6m9", dgrad="e6m9", wgrad="e6m9")
    model = nn.Sequential(*(lp.nn.Linear(4, 4, recipe=r) for r in ("cpt_fu2021", "fp32", sums)))
    scheduled(model)
    assert bits_of(model) == [(3, 8), (None, None), (None, None)]
    with pytest.raises(ValueError, match="nothing in this Sequential has a precision to set"):
        scheduled(model[1:])


def test_functions_objects_and_lists_are_targets() -> None:
    calls: list[tuple[int, int]] = []
    named, model = Named(), small_model()
    scheduled([lambda *bits: calls.append(bits), named, model], bits=(4, 8)).step()
    assert calls == named.calls == [(4, 8), (4, 8)]
    assert all(type(bits) is int for bits in calls[0])
    assert bits_of(model) == [(4, 8)] * 2


def test_at_is_the_highest_and_gives_the_bits_of_training_back() -> None:
    model = small_model()
    scheduler = scheduled(model, grad_bits=(4, 6))
    with scheduler.at():
        assert bits_of(model) == [(8, 4)] * 2
        with scheduler.as_trained():
            assert bits_of(model) == [(3, 4)] * 2
        with scheduler.at(5):
            assert bits_of(model) == [(5, 4)] * 2
        scheduler.step(3)
        assert bits_of(model) == [(8, 4)] * 2
    assert bits_of(model) == [(5, 5)] * 2


@pytest.mark.parametrize("bits, refusal", [(6, "mine"), (8, "at most 6 bits, got 8")])
def test_after_an_error_within_at_the_bits_are_those_of_training(bits: int, refusal: str) -> None:
    scheduler = scheduled(model := small_model(Refusing), bits=(3, 6))
    with pytest.raises(ValueError, match=refusal), scheduler.at(bits):
        raise ValueError("mine")
    assert bits_of(model) == [(3, 8)] * 2


@pytest.mark.parametrize("copied", [copy.deepcopy, AveragedModel])
def test_a_copied_model_has_no_schedule_unless_it_is_a_target(copied: Any) -> None:
    model = small_model()
    scheduler = scheduled(model)
    twin = copied(model)
    for _ in range(7):
        scheduler.step()
    with scheduler.at(5):
        assert bits_of(twin) == [(3, 8)] * 2
    assert bits_of(model) == [(8, 8)] * 2 and bits_of(twin) == [(3, 8)] * 2
    lp.set_precision(twin, 4, 8)
    assert bits_of(model) == [(8, 8)] * 2 and bits_of(twin) == [(4, 8)] * 2
    scheduled([model, twin], last_step=3)
    assert bits_of(model) == bits_of(twin) == [(6, 8)] * 2


def test_a_scheduler_that_is_copied_with_its_model_schedules_the_copy() -> None:
    model = small_model()
    scheduler = scheduled(model)
    twin, of_twin = copy.deepcopy((model, scheduler))
    of_twin.step(4)
    assert bits_of(model) == [(3, 8)] * 2 and bits_of(twin) == [(6, 8)] * 2
    scheduler.step(7)
    assert bits_of(model) == [(8, 8)] * 2 and bits_of(twin) == [(6, 8)] * 2


def test_costs_run_and_are_expected() -> None:
    scheduler = scheduled(Named())
    costs = [bitops(bits, 8) for bits in CYCLE + [8] * 4]
    for step in range(12):
        assert scheduler.cost() == pytest.approx(np.mean(costs[: step + 1]))
        scheduler.step()
    assert scheduler.expected_cost() == pytest.approx(np.mean(costs[:8]))
    assert scheduler.static_cost() == bitops(8, 8)


FLOATS = {
    3: "e2m0_sat", 4: "e2m1none_sat", 5: "e2m2_sat", 6: "e3m2none_sat", 7: "e3m3_sat",
    8: "e4m3fn_sat",
}  # fmt: skip


def test_a_function_schedules_formats_of_its_own() -> None:
    layer = lp.nn.Linear(2, 2, recipe=lp.Recipe(input="fp8_e4m3_sat", weight="fp8_e4m3_sat"))
    scheduler = scheduled(lambda *bits: lp.set_precision(layer, *bits, formats=FLOATS))
    for _ in range(8):
        assert str(layer.recipe.weight) == FLOATS[scheduler.get_last_bits()[0]]
        scheduler.step()
    with scheduler.at(3):
        assert str(layer.recipe.input) == FLOATS[3]


def test_a_width_that_a_target_refuses_changes_nothing() -> None:
    model = nn.Sequential(layer(6, 6), Refusing(6, 6))
    match = r"target '1' \(Refusing\) does not take .*'forward': 7.*at most 6 bits"
    with pytest.raises(ValueError, match=match):
        scheduled(model)
    assert bits_of(model) == [(8, 8)] * 2
    assert model[1].told == [] and model[1].width == 16
    scheduled(model, bits=(3, 6))
    assert model[1].told == [3] and model[1].width == 3


def test_a_step_that_a_target_refuses_is_not_made() -> None:
    def refuse(forward_bits: int, backward_bits: int) -> None:
        if forward_bits == 5:
            raise ValueError("no five")

    scheduler = scheduled([named := Named(), refuse])
    scheduler.step(2)
    with pytest.raises(ValueError, match=r"target '1' \(refuse\) does not take .*: no five"):
        scheduler.step()
    assert named.calls == [(3, 8), (4, 8), (5, 8), (4, 8)]
    assert scheduler.last_step == 2 and scheduler.get_last_bits() == (4, 8)


PLAIN = nn.Sequential(nn.Linear(2, 2))
test_wrong_targets_and_widths_are_refused = refused(
    [
        (lambda: scheduled(PLAIN), ValueError, "nothing in this Sequential has a precision to set"),
        (lambda: scheduled([]), ValueError, "nothing in this list"),
        (lambda: scheduled(3), TypeError, "object with set_precision.* got int"),
        (lambda: scheduled(Refusing(2, 2), bits=(3, 6), eval_bits=20), ValueError, "'forward': 20"),
    ],
)


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3))
    return lp.convert(model, lp.policy("cpt_fu2021"))


def precisions(model: nn.Sequential) -> list[object]:
    return [model[index].precision for index in (0, 3, 5)]


def x() -> torch.Tensor:
    return torch.randn(6, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def test_the_running_range_goes_on_at_32_bits_and_serves_fewer_bits_later() -> None:
    def after(bits: int) -> tuple[torch.Tensor, torch.Tensor]:
        model = model_of()
        lp.set_precision(model, bits, 8)
        model(3 * x())
        lp.set_precision(model, 4, 8)
        model(x())
        assert set(model.state_dict()) == set(model_of().state_dict())
        ranges = torch.cat([model[0].input_range, model[0].input_range_weight.view(1)])
        return ranges, model[0].eval()(x())

    (ranges, y), (expected, z) = after(32), after(8)
    assert torch.equal(ranges, expected) and torch.equal(y, z)
    lowest = 0.1 * (0.9 * 3 + 1) * x().min().item()
    assert ranges[::2].tolist() == pytest.approx([lowest, 1 - 0.9**2], rel=1e-5)


def test_a_schedule_of_8_to_32_bits_comes_back_to_the_same_quantizers() -> None:
    model = model_of()
    before = model[0].recipe
    scheduler = scheduled(model, bits=(8, 32), cycles=2, grad_bits=32)
    steps = []
    for _ in range(8):
        steps.append(precisions(model)[0])
        scheduler.step()
    assert steps == [(8, 32), (12, 32), (32, 32), (32, 32)] * 2
    with scheduler.at(8):
        assert str(model[3].recipe.weight) == "affine8_axis0"
    lp.set_precision(model, 8, 8)
    assert model[0].recipe == before
    assert scheduler.expected_cost() == pytest.approx(
        sum(b * b + 2 * b * 32 for b in (8, 12, 32, 32)) / 4 / 3072
    )
