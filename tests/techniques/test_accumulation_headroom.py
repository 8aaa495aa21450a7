"""Headroom: exponent bits beyond those of one batch, with which planned networks train on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lpkernels as lp
from lpkernels.techniques.accumulation import plan
from lpkernels.techniques.loss_scaling import LossScaler
from tests.loops import each
from tests.support.computes import Computes

SCALE = 1024


def vit() -> nn.Module:
    """Patches of 4 x 4, places, two layers of attention."""

    def forward(own: Any, x: Tensor) -> Tensor:
        tokens = own.patch(x).flatten(2).transpose(1, 2) + own.places
        return own.head(own.encoder(tokens).mean(1))

    patch, places = nn.Conv2d(1, 16, 4, 4), nn.Parameter(torch.randn(4, 16) * 0.02)
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Computes(forward, patch=patch, places=places, encoder=encoder, head=nn.Linear(16, 4))


def skipped_steps(**options: int) -> tuple[list[int], list[float]]:
    """The steps that are skipped, and all losses, of 10 steps of a planned transformer."""
    torch.manual_seed(0)
    model, x, labels = vit(), torch.rand(8, 1, 8, 8), torch.arange(8) % 4

    def loss_of(y: Tensor) -> Tensor:
        return cross_entropy(y, labels) * SCALE

    lp.convert(model, plan(model, x, loss=loss_of, operand="e5m2", **options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = LossScaler(static=SCALE)
    skipped, losses = [], []
    for step in range(10):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        if not scaler.last_step.ran:
            skipped.append(step)
    return skipped, losses


def test_a_planned_network_trains_under_the_scale_it_was_planned_with() -> None:
    skipped, losses = skipped_steps()
    assert skipped == []
    assert losses[-1] < 0.9 * losses[0]
    # Exponents that fit the first batch do not fit the steps after it.
    assert skipped_steps(headroom=0)[0]


def exponents(x: Tensor, **options: Any) -> list[tuple[int, int | None]]:
    made = plan(nn.Linear(8, 3), x, loss=lambda y: y.sum(), operand="e5m2", **options)
    return [(row.format.exp_bits, row.headroom) for row in made.rows]


def test_headroom_is_added_to_the_measured_bits_up_to_eight() -> None:
    x = torch.randn(4, 8)
    fitted = [bits for bits, _ in exponents(x, headroom=0)]
    assert exponents(x) == exponents(x, headroom=1) == [(bits + 1, 1) for bits in fitted]
    assert exponents(x, headroom=20) == [(8, 8 - bits) for bits in fitted]
    # Where nothing was measured there is no headroom.
    assert exponents(torch.zeros(4, 8))[0] == (8, None)


def test_given_exponent_bits_have_no_headroom() -> None:
    x = torch.randn(4, 8)
    fitted = [bits for bits, _ in exponents(x, headroom=0)]
    assert exponents(x, exp_bits=3) == [(3, 3 - bits) for bits in fitted]
    with pytest.raises(ValueError, match="headroom=2 adds to exponent bits"):
        exponents(x, exp_bits=6, headroom=2)


@each("headroom, error", [(-1, ValueError), (1.0, TypeError), (True, TypeError), (None, TypeError)])
def test_headroom_is_a_number_of_bits(headroom: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"headroom: expected (an int|at least 0)"):
        exponents(torch.ones(4, 8), headroom=headroom)
