"""score: costs by hand, against the real change of the loss; the model is left as found."""

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels.techniques import assignment
from lpkernels.techniques.assignment.precisions import tie
from lpkernels.techniques.assignment.running import assign
from tests.compare import assert_bit_equal
from tests.loops import each, rows
from tests.support.computes import Computes
from tests.techniques.assignment.networks import chain_batch, chain_model

Loss = Callable[[Any, Any], Tensor]


def costs(model: nn.Module, loss: Loss, batch: Any, **options: Any) -> dict[str, float]:
    """The cost of each tensor alone, in a group of its own."""
    specs = [
        t for each in assignment.group(assignment.trace(model, loss, batch)) for t in each.tensors
    ]
    groups = tuple(assignment.Group(i, (t,)) for i, t in enumerate(specs))
    found = assignment.score(model, loss, batch, groups, **options).scores
    return {t.key: found[i] for i, t in enumerate(specs)}


def scored(model: nn.Module, batch: Any, **options: Any) -> Any:
    groups = assignment.group(assignment.trace(model, cross_entropy, batch))
    return groups, assignment.score(model, cross_entropy, batch, groups, **options)


def line(**values: float) -> nn.Linear:
    """y = weight x + bias."""
    model = nn.Linear(1, 1, bias="bias" in values)
    with torch.no_grad():
        for name, value in values.items():
            model.get_parameter(name).fill_(value)
    return model


def test_the_costs_of_a_line_by_hand():
    # y = 1.0625 * 1.5 + 0.25 = 1.84375, and the loss 1.1 y = 2.028125. With 3 bits of mantissa and
    # ties away, 1.0625 -> 1.125, 1.84375 -> 1.875 and 2.028125 -> 2.0. With 9 bits the first two
    # are exact, and 2.028125 -> 2.02734375. With 2 bits 1.1 -> 1.0, and with 9 bits 1.1 ->
    # 1.099609375.
    model = line(weight=1.0625, bias=0.25)
    batch = (torch.full((1, 1), 1.5), torch.full((1, 1), 1.1))
    found = costs(model, lambda y, target: (y * target).sum(), batch, lr=0.125, loss_scale=1.0)
    # A step against the gradients, 1.1 * 1.5 of the weight and 1.1 of the bias, moves the result by
    speed = 1.1 * 1.5 * 1.5 + 1.1
    expected = {
        "weight.P": (1.1 * 1.5 * 0.0625) ** 2, "linear.Y": (1.1 * 0.03125) ** 2,
        "linear.GY": (0.125 * speed * 0.099609375) ** 2, "loss.mul.Y": (2.02734375 - 2.0) ** 2,
    }  # fmt: skip
    assert {key: found.pop(key) for key in expected} == pytest.approx(expected, rel=2e-3)
    # The rest cost nothing: they are exact, or nothing is computed from them, or their format is as
    # wide in low precision.
    rest = "bias.P bias.GP weight.GP input.Y input.GY loss.mul.GY loss.sum.Y loss.sum.GY"
    assert found == dict.fromkeys(rest.split(), 0.0)


def test_the_gradient_of_a_parameter_costs_by_the_update_it_causes():
    formats = assignment.Formats(
        weight="fp32", activation="fp32", grad_activation="fp32", grad_weight=("fp32", "fp_5_2_0")
    )
    batch = (torch.full((1, 1), 1.1), None)
    options: Any = {"formats": formats, "lr": 0.5, "loss_scale": 8.0}
    found = costs(line(weight=1), lambda y, _: y.sum(), batch, **options)
    # With 2 bits of mantissa, 8 * 1.1 becomes 8.
    assert found.pop("weight.GP") == pytest.approx((0.5 * 1.1 * 0.1) ** 2, rel=1e-5)
    assert set(found.values()) == {0.0}


def test_the_speed_of_a_result_is_its_derivative():
    # y = v w with v = w = 1 and the loss 1.1 y: both gradients are 1.1. A step against them moves y
    # by 2.2 at first, though not for long.
    model = nn.Sequential(line(weight=1), line(weight=1))
    batch = (torch.ones(1, 1), torch.full((1, 1), 1.1))
    found = costs(model, lambda y, target: (y * target).sum(), batch, lr=0.125, loss_scale=1.0)
    assert found["1.GY"] == pytest.approx((0.125 * 2.2 * 0.099609375) ** 2, rel=2e-3)


def at_scale(loss_scale: float | None, *factors: float) -> dict[str, float]:
    """The costs of a line under a loss of so many products."""
    batch = (torch.full((1, 1), 1.5), None)
    return costs(
        line(weight=1), lambda y, _: math.prod(factors, start=y).sum(), batch, loss_scale=loss_scale
    )


def test_gradients_are_rounded_at_the_largest_loss_scale_at_which_none_overflows():
    # 2^-17 is half the smallest number of 5 bits of exponent and 2 of mantissa.
    assert at_scale(1.0, 2.0**-18)["linear.GY"] > 0
    assert at_scale(2.0**10, 2.0**-18)["linear.GY"] == 0
    assert at_scale(None, 2.0**-18)["linear.GY"] == 0
    # The loss's own gradient, 1, is rounded at no scale, and the largest other one is 2^-40. Times
    # 2^16 the gradient of the result, 0.3 * 2^-40, is lost in 8 bits.
    found = at_scale(None, 0.3, 2.0**-40)
    assert found == at_scale(2.0**56, 0.3, 2.0**-40)
    assert found["linear.GY"] < at_scale(2.0**16, 0.3, 2.0**-40)["linear.GY"]


def mlp() -> nn.Sequential:
    torch.manual_seed(3)
    layers: list[nn.Module] = []
    for a, b in pairwise((12, 24, 40, 16, 32, 20, 5)):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batch_of(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 12, generator=generator), torch.arange(16) % 5


def real_change(
    model: nn.Sequential,
    groups: tuple[assignment.Group, ...],
    formats: assignment.Formats,
    *,
    later: bool,
) -> list[float]:
    """For each group, the mean square of the change that its demotion makes to the loss of batches
    that were not scored or, if `later`, to the loss after a step of lr 0.1."""

    def losses(low: set[str]) -> Tensor:
        found = []
        made = assignment.Assignment(groups, frozenset(low), (), formats)
        for seed in range(1, 7):
            trained, batch = copy.deepcopy(model), batch_of(seed)
            value = assign(trained, cross_entropy, made, promote=None)(*batch)
            (value * 1024).backward()
            with torch.no_grad():
                for p in trained.parameters():
                    p -= 0.1 * p.grad / 1024
            found.append(cross_entropy(trained(batch[0]), batch[1]) if later else value)
        return torch.stack(found).detach().double()

    keys = [{tensor.key for tensor in each.tensors} for each in groups]
    last, high = groups[-1].tensors[-2].key, losses(set())
    return [float((losses(low - {last}) - high).square().mean()) for low in keys]


def ranks_alike(a: list[float], b: list[float]) -> float:
    """Spearman's correlation."""
    x, y = (torch.tensor(v).argsort().argsort().double() for v in (a, b))
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


FULL = dict.fromkeys(("weight", "activation", "grad_activation", "grad_weight"), "fp32")
FORWARD = assignment.Formats(**FULL | dict.fromkeys(("weight", "activation"), ("fp32", "fp_4_3_4")))
BACKWARD = assignment.Formats(**FULL | {"grad_activation": ("fp32", "fp_5_2_0_backward")})


@each("formats", [FORWARD, BACKWARD])
def test_scores_rank_groups_as_the_loss_really_changes(formats: assignment.Formats):
    model = mlp()
    groups, found = scored(model, batch_of(0), formats=formats, loss_scale=1024.0)
    real = real_change(model, groups, formats, later=formats is BACKWARD)
    guess = [found.scores[each.index] for each in groups]
    assert ranks_alike(guess, real) > 0.7
    # The scores have the size of the real changes too, not only their order.
    ratios = [a / b for a, b in zip(guess, real, strict=True) if b]
    assert all(1 / 20 < ratio < 20 for ratio in ratios), ratios


def test_the_model_is_left_as_found():
    model = nn.Sequential(*chain_model(), nn.Dropout(0.5))
    batch = chain_batch()
    cross_entropy(model(batch[0]), batch[1]).backward()

    def state() -> list[Tensor]:
        gradients = [p.grad for p in model.parameters()]
        return [*model.state_dict().values(), *gradients, batch[0], torch.get_rng_state()]

    before = [x.clone() for x in state()]
    groups, first = scored(model, batch)
    for x, old in zip(state(), before, strict=True):
        assert_bit_equal(x, old)
    assert not batch[0].requires_grad
    assert assignment.score(model, cross_entropy, batch, groups) == first
    assert assignment.demote(groups, 0.5, order="sensitivity", scores=first).ratio >= 0.5


def test_tied_groups_are_scored_together():
    model, batch = chain_model(), chain_batch()
    groups, alone = scored(model, batch, loss_scale=64.0)
    tied = tie(groups, assignment.Pins(tied=["0*", "8*", "loss*", "[3-7]*"]))
    together = assignment.score(model, cross_entropy, batch, tied, loss_scale=64.0)
    assert together.scores != alone.scores
    assert sum(together.scores.values()) == pytest.approx(sum(alone.scores.values()))


def test_what_works_in_place_costs_the_same():
    batch = (torch.randn(7, 6), torch.arange(7) % 5)
    layers = {"one": nn.Linear(6, 8), "two": nn.Linear(8, 5)}
    outside, inside = (
        scored(Computes(function, **layers), batch)[1].scores
        for function in (
            lambda m, x: m.two(m.one(x).relu() * 2),
            lambda m, x: m.two(m.one(x).relu_().mul_(2)),
        )
    )
    assert outside == pytest.approx(inside)


@rows(
    "change, error, match",
    ({"lr": 0.0}, ValueError, "lr: expected a finite number above 0, got 0.0"),
    ({"lr": float("nan")}, ValueError, "lr: expected a finite number above 0, got nan"),
    ({"loss_scale": -1.0}, ValueError, "loss_scale: expected a finite number above 0, got -1.0"),
    ({"lr": "0.1"}, TypeError, "lr: expected a number, got str '0.1'"),
    ({"loss_scale": 2.0**60}, ValueError, r"G.' times the loss scale .* a smaller loss_scale"),
    ({"formats": assignment.Formats(activation=("fp32", "e2m1"))}, ValueError,
     "Y' is not finite in e2m1.* or saturate$"),
)  # fmt: skip
def test_wrong_options_are_refused(change: dict[str, Any], error: type, match: str):
    with pytest.raises(error, match=match):
        scored(chain_model(), (100 * chain_batch()[0], chain_batch()[1]), **change)


def test_other_groups_and_a_loss_that_is_not_finite_are_refused():
    def nan(y: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(y, target) * float("nan")

    model, batch = chain_model(), chain_batch()
    groups = assignment.group(assignment.trace(model, cross_entropy, batch))
    with pytest.raises(ValueError, match="it is of another batch"):
        assignment.score(model, cross_entropy, chain_batch(3), groups)
    with pytest.raises(ValueError, match="score: the loss is nan"):
        assignment.score(model, nan, batch, assignment.group(assignment.trace(model, nan, batch)))
