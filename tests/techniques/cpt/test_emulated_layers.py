"""Schedules on the layers of lpkernels, under the policy of the paper."""

import copy

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.techniques.cpt import PrecisionScheduler, precision_range_test, recalibrate
from tests.techniques.loss_scaling.optimizers import assert_same


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


def test_layers_by_glob_weights_and_accumulators() -> None:
    model = model_of()
    options = {"weight_bits": 4, "accumulator_bits": (5, 9), "accumulators": "e6m{bits}"}
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, layers={"3": 7}, **options)
    assert precisions(model) == [((3, 4), 8), ((7, 4), 8), (None, None)]
    assert str(model[0].recipe.fprop) == "e6m5" and model[5].recipe == lp.Recipe()
    scheduler.step(7)
    assert str(model[0].recipe.wgrad) == "e6m9"


def test_widths_that_affine_formats_lack_and_floats_without_a_table_are_refused() -> None:
    model = model_of()
    with pytest.raises(ValueError, match=r"'forward': 17.*bits must be in 1..16, got 17"):
        PrecisionScheduler(model, 8, bits=(3, 20), cycles=1)
    assert precisions(model)[0] == (8, 8)
    model = model_of("hfp8_sun2019")
    before = model[0].recipe, model[3].recipe
    with pytest.raises(ValueError, match=r"does not take .* give a table of formats"):
        PrecisionScheduler(model, 8, bits=(3, 8), cycles=1)
    assert (model[0].recipe, model[3].recipe) == before
    PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, formats="float")
    assert str(model[3].recipe.input) == "e2m0_sat"


def test_recalibration_redoes_ranges() -> None:
    model = model_of()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1)
    for _ in range(3):
        model(100 * x())
    recalibrate(model, [x()] * 2, scheduler)
    low, high = (model[0].input_range / model[0].input_range_weight).tolist()
    assert (low, high) == pytest.approx((x().min().item(), x().max().item()), rel=1e-5)
    assert precisions(model)[0] == (3, 8)


def test_the_range_test_leaves_precisions_and_ranges() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(x())
    before, state = precisions(model), copy.deepcopy(model.state_dict())
    rising = iter(range(10))

    def step() -> float:
        model(x()).square().mean().backward()
        optimizer.step()
        return next(rising) / 10

    options = {"candidates": (2, 4), "window": 1, "steps_per_level": 3}
    options["restore"] = (model, optimizer)
    precision_range_test(step, lambda bits: lp.set_precision(model, bits, 4), **options)
    assert precisions(model) == before
    assert_same(model.state_dict(), state)
