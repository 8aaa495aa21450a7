"""score: costs by hand, against the real change of the loss, and what is left as found."""

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels.techniques.assignment import (
    Assignment,
    Formats,
    Group,
    Pins,
    demote,
    group,
    score,
    trace,
)
from lpkernels.techniques.assignment.pins import tie
from lpkernels.techniques.assignment.running import assign
from tests.loops import each
from tests.techniques.assignment.networks import chain_batch, chain_model

Loss = Callable[[Any, Any], Tensor]


def costs(model: nn.Module, loss: Loss, batch: Any, **options: Any) -> dict[str, float]:
    """The cost of each tensor alone, in a group of its own."""
    specs = [t for each in group(trace(model, loss, batch)) for t in each.tensors]
    groups = tuple(Group(i, (t,)) for i, t in enumerate(specs))
    found = score(model, loss, batch, groups, **options).scores
    return {t.key: found[i] for i, t in enumerate(specs)}


def test_the_costs_of_a_line_by_hand():
    # y = 1.0625 * 1.5 + 0.25 = 1.84375, and the loss 1.1 y = 2.028125. With 3 bits of mantissa and
    # ties away, 1.0625 -> 1.125, 1.84375 -> 1.875 and 2.028125 -> 2.0. With 9 bits the first two
    # are exact, and 2.028125 -> 2.02734375. With 2 bits 1.1 -> 1.0, and with 9 bits 1.1 ->
    # 1.099609375.
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(1.0625)
        model.bias.fill_(0.25)
    batch = (torch.full((1, 1), 1.5), torch.full((1, 1), 1.1))
    found = costs(model, lambda y, target: (y * target).sum(), batch, lr=0.125, loss_scale=1.0)
    # A step against the gradients, 1.1 * 1.5 of the weight and 1.1 of the bias, moves the result by
    speed = 1.1 * 1.5 * 1.5 + 1.1
    expected = {
        "weight.P": (1.1 * 1.5 * 0.0625) ** 2,
        "linear.Y": (1.1 * 0.03125) ** 2,
        "linear.GY": (0.125 * speed * 0.099609375) ** 2,
        "loss.mul.Y": (2.02734375 - 2.0) ** 2,
    }
    assert {key: found.pop(key) for key in expected} == pytest.approx(expected, rel=2e-3)
    # The rest cost nothing: they are exact, or nothing is computed from them, or their format is as
    # wide in low precision.
    assert set(found) == {
        "bias.P", "bias.GP", "weight.GP", "input.Y", "input.GY", "loss.mul.GY", "loss.sum.Y",
        "loss.sum.GY",
    }  # fmt: skip
    assert set(found.values()) == {0.0}


def test_the_gradient_of_a_parameter_costs_by_the_update_it_causes():
    formats = Formats(
        weight="fp32", activation="fp32", grad_activation="fp32", grad_weight=("fp32", "fp_5_2_0")
    )
    model = nn.Linear(1, 1, bias=False)
    batch = (torch.full((1, 1), 1.1), None)
    found = costs(model, lambda y, _: y.sum(), batch, formats=formats, lr=0.5, loss_scale=8.0)
    # With 2 bits of mantissa, 8 * 1.1 becomes 8.
    assert found.pop("weight.GP") == pytest.approx((0.5 * 1.1 * 0.1) ** 2, rel=1e-5)
    assert set(found.values()) == {0.0}


def test_the_speed_of_a_result_is_its_derivative():
    # y = v w with v = w = 1 and the loss 1.1 y: both gradients are 1.1. A step against them moves y
    # by 2.2 at first, though not for long.
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for layer in model:
            layer.weight.fill_(1.0)
    batch = (torch.ones(1, 1), torch.full((1, 1), 1.1))
    found = costs(model, lambda y, target: (y * target).sum(), batch, lr=0.125, loss_scale=1.0)
    assert found["1.GY"] == pytest.approx((0.125 * 2.2 * 0.099609375) ** 2, rel=2e-3)


def test_gradients_are_rounded_at_the_loss_scale():
    model = nn.Linear(1, 1, bias=False)
    batch = (torch.full((1, 1), 1.5), None)

    def gradient(loss_scale: float | None) -> float:
        # 2^-17 is half the smallest number of 5 bits of exponent and 2 of mantissa.
        return costs(model, lambda y, _: (y * 2.0**-18).sum(), batch, loss_scale=loss_scale)[
            "linear.GY"
        ]

    assert gradient(1.0) > 0
    assert gradient(2.0**10) == 0
    assert gradient(None) == 0


def test_the_loss_scale_is_the_largest_at_which_no_rounded_gradient_overflows():
    model = nn.Linear(1, 1, bias=False)
    batch = (torch.full((1, 1), 1.5), None)

    def found(loss_scale: float | None) -> dict[str, float]:
        return costs(model, lambda y, _: (y * 0.3 * 2.0**-40).sum(), batch, loss_scale=loss_scale)

    # The loss's own gradient, 1, is rounded at no scale, and the largest other one is 2^-40. Times
    # 2^16 the gradient of the result, 0.3 * 2^-40, is lost in 8 bits.
    assert found(None) == found(2.0**56)
    assert found(None)["linear.GY"] < found(2.0**16)["linear.GY"]


def mlp() -> nn.Sequential:
    torch.manual_seed(3)
    widths = (12, 24, 40, 16, 32, 20, 5)
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batch_of(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 12, generator=generator), torch.arange(16) % 5


def real_change(
    model: nn.Sequential, groups: tuple[Group, ...], formats: Formats, *, later: bool
) -> list[float]:
    """For each group, the mean square of what its demotion does to the loss of batches that were
    not scored or, if `later`, to the loss after a step of lr 0.1."""

    def losses(low: frozenset[str]) -> Tensor:
        found = []
        for seed in range(1, 7):
            trained, batch = copy.deepcopy(model), batch_of(seed)
            with assign(
                trained, cross_entropy, Assignment(groups, low, (), formats), promote=None
            ) as assigned:
                value = assigned(*batch)
                (value * 1024).backward()
            with torch.no_grad():
                for p in trained.parameters():
                    p -= 0.1 * p.grad / 1024
            found.append(cross_entropy(trained(batch[0]), batch[1]) if later else value)
        return torch.stack(found).detach().double()

    high = losses(frozenset())
    last = group_keys(groups[-1])[-2]
    return [
        float((losses(frozenset(group_keys(each)) - {last}) - high).square().mean())
        for each in groups
    ]


def group_keys(each: Group) -> list[str]:
    return [tensor.key for tensor in each.tensors]


def ranks_alike(a: list[float], b: list[float]) -> float:
    """Spearman's correlation."""
    x, y = (torch.tensor(v).argsort().argsort().double() for v in (a, b))
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


FORWARD = Formats(
    weight=("fp32", "fp_4_3_4"), activation=("fp32", "fp_4_3_4"), grad_activation="fp32",
    grad_weight="fp32",
)  # fmt: skip
BACKWARD = Formats(
    weight="fp32", activation="fp32", grad_activation=("fp32", "fp_5_2_0_backward"),
    grad_weight="fp32",
)  # fmt: skip


@each("formats", [FORWARD, BACKWARD])
def test_scores_rank_groups_as_the_loss_really_changes(formats: Formats):
    model = mlp()
    groups = group(trace(model, cross_entropy, batch_of(0)))
    found = score(model, cross_entropy, batch_of(0), groups, formats, loss_scale=1024.0)
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
    groups = group(trace(model, cross_entropy, batch))
    before = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters()]
    random = torch.get_rng_state()
    kept = batch[0].clone()
    first = score(model, cross_entropy, batch, groups)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(p.grad, gradient)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(batch[0], kept) and not batch[0].requires_grad
    assert score(model, cross_entropy, batch, groups) == first
    assert demote(groups, 0.5, order="sensitivity", scores=first).ratio >= 0.5


def test_tied_groups_are_scored_together():
    model, batch = chain_model(), chain_batch()
    groups = group(trace(model, cross_entropy, batch))
    alone = score(model, cross_entropy, batch, groups, loss_scale=64.0).scores
    tied = tie(groups, Pins(tied=["0*", "8*", "loss*", "[3-7]*"]))
    together = score(model, cross_entropy, batch, tied, loss_scale=64.0).scores
    assert together != alone
    assert sum(together.values()) == pytest.approx(sum(alone.values()))


class InPlace(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.in_place = in_place
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        return self.two(y.relu_().mul_(2) if self.in_place else y.relu() * 2)


def test_what_works_in_place_costs_the_same():
    batch = (torch.randn(7, 6), torch.arange(7) % 5)
    found = []
    for in_place in (False, True):
        model = InPlace(in_place)
        groups = group(trace(model, cross_entropy, batch))
        found.append(score(model, cross_entropy, batch, groups).scores)
    assert found[0] == pytest.approx(found[1])


def nan_loss(y: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(y, target) * float("nan")


@each(
    "change, error, match",
    [
        ({"lr": 0.0}, ValueError, "lr must be a positive number, got 0.0"),
        ({"lr": float("nan")}, ValueError, "lr must be a positive number, got nan"),
        ({"loss_scale": -1.0}, ValueError, "loss_scale must be a positive number, got -1.0"),
        ({"lr": "0.1"}, TypeError, "lr must be a number, got '0.1'"),
        ({"loss_scale": 2.0**60}, ValueError, r"G.' times the loss scale .* a smaller loss_scale"),
        (
            {"formats": Formats(activation=("fp32", "e2m1"))},
            ValueError,
            "Y' is not finite in e2m1.* or saturate$",
        ),
    ],
)
def test_wrong_options_are_refused(change: dict[str, Any], error: type, match: str):
    model, batch = chain_model(), (100 * chain_batch()[0], chain_batch()[1])
    groups = group(trace(model, cross_entropy, batch))
    with pytest.raises(error, match=match):
        score(model, cross_entropy, batch, groups, **change)


def test_other_groups_and_a_loss_that_is_not_finite_are_refused():
    model, batch = chain_model(), chain_batch()
    groups = group(trace(model, cross_entropy, batch))
    with pytest.raises(ValueError, match="it is of another batch"):
        score(model, cross_entropy, chain_batch(3), groups)
    groups = group(trace(model, nan_loss, batch))
    with pytest.raises(ValueError, match="score: the loss is nan"):
        score(model, nan_loss, batch, groups)
