"""The widths of a plan by metric, margin and headroom, and its printed table with the notes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lpkernels as lp
from lpkernels.techniques.accumulation import min_mantissa_bits, plan
from lpkernels.techniques.loss_scaling import LossScaler
from tests.loops import each
from tests.support.autograd import Computes
from tests.support.techniques import grad, linear_rows, mean_square

#: The options of a plan, the metric and the margin that they mean, and the bits of 1024 products.
WIDTHS: list[tuple[dict[str, Any], str, int, int]] = [
    ({}, "nmse", 1, 9),
    ({"margin": 0}, "nmse", 0, 8),
    ({"metric": "vrr", "margin": 0}, "vrr", 0, 7),
    ({"metric": "vrr"}, "vrr", 1, 8),
    ({"metric": "vrr", "margin": 3}, "vrr", 3, 10),
]


@each("options, metric, margin, of_1024", WIDTHS)
def test_rows_are_as_wide_as_the_metric_and_the_margin_say(
    options: dict[str, Any], metric: str, margin: int, of_1024: int
):
    x, w = torch.randn(32, 1024), torch.randn(8, 1024)
    for chunk in (None, 64):
        row = linear_rows(x, w, operand="e5m2", chunk=chunk, **options)[0]
        assert row.product_bits == 5
        bits = min_mantissa_bits(1024, 5, nzr=row.nzr, chunk=chunk, metric=metric) + margin
        assert row.format.man_bits == bits
        assert row.accumulator == lp.Accumulator(row.format, chunk=chunk)
        assert row.man_bits == of_1024


@each("options, metric, margin, of_1024", WIDTHS)
def test_the_best_chunk_needs_the_fewest_bits(
    options: dict[str, Any], metric: str, margin: int, of_1024: int
):
    x, w = torch.randn(4, 16384), torch.randn(2, 16384)
    row = linear_rows(x, w, operand="e5m2", chunk="best", **options)[0]
    every = {
        c: min_mantissa_bits(16384, 5, nzr=row.nzr, chunk=2**c, metric=metric) + margin
        for c in range(4, 11)
    }
    assert row.chunk_bits == min(every.values())
    assert every[int(math.log2(row.chunk))] == row.chunk_bits
    assert row.accumulator.chunk == row.chunk
    # Chunks gain nothing on a sum this short.
    x, w = torch.randn(4, 16), torch.randn(3, 16)
    short = linear_rows(x, w, operand="e5m2", chunk="best", **options)[0]
    assert short.accumulator.chunk is None


def test_no_accumulator_has_more_mantissa_than_fp32():
    row = linear_rows(torch.randn(4, 64), torch.randn(3, 64), margin=23)[0]
    assert row.format.man_bits == 23 < row.man_bits
    assert any("more mantissa bits than the 23 of fp32" in note for note in row.notes)


def test_notes_say_where_the_theory_is_wrong():
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.weight)
    rows = plan(model, grad(2, 4), loss=mean_square, operand="e5m2").rows
    assert any("every product is zero" in note for note in rows[0].notes)
    assert rows[0].format.exp_bits == 8
    tiny = plan(nn.Linear(64, 3), grad(2, 64), loss=lambda y: y.sum() * 2.0**-30, operand="e5m2")
    dgrad = next(row for row in tiny.rows if row.gemm == "dgrad")
    assert any("rounds to zero as operands" in note for note in dgrad.notes)
    layer, options = nn.Linear(3, 3), {"loss": torch.sum, "operand": "e4m3"}
    narrow, short = "fewer mantissa bits than the operands", {"metric": "vrr", "margin": 0}
    assert all(
        narrow not in note for row in plan(layer, grad(2, 3), **options).rows for note in row.notes
    )
    (note,) = plan(layer, grad(2, 3), **options, **short).rows[0].notes
    assert note.startswith(narrow) and "the loss of 3.9 products" in note
    # The error law has no loss of whole products, and no artefact in long sums.
    options["operand"] = "fp16"
    (note,) = plan(nn.Linear(3, 3), torch.randn(2, 3), **options).rows[0].notes
    assert note.startswith(narrow) and "3.9 products" not in note
    rows = [
        linear_rows(
            torch.empty(1, 2**22, device="meta"),
            torch.empty(1, 2**22, device="meta"),
            operand="e5m2",
            **given,
        )[0]
        for given in ({}, short)
    ]
    assert ["2^22" in " ".join(row.notes) for row in rows] == [False, True]


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
