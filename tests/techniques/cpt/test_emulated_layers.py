"""Schedules on the layers of lpkernels, under the policy of the paper."""

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.techniques.cpt import PrecisionScheduler, recalibrate


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


def test_recalibration_redoes_ranges() -> None:
    model = model_of()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1)
    for _ in range(3):
        model(100 * x())
    recalibrate(model, [x()] * 2, scheduler)
    low, high = (model[0].input_range / model[0].input_range_weight).tolist()
    assert (low, high) == pytest.approx((x().min().item(), x().max().item()), rel=1e-5)
    assert precisions(model)[0] == (3, 8)
