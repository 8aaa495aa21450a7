"""Diagnoses of converted models: every quantizer is seen, and unseen gradients get no advice."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from lpkernels.techniques.loss_scaling import LossScaler, Report, diagnose
from lpkernels.techniques.loss_scaling.advice import ScaleAdvice
from tests.loops import each
from tests.nn import layer_cases
from tests.techniques.loss_scaling.diagnosed import (
    deep,
    gpt,
    gpt_loss,
    histogram,
    one_pass,
)

QUANTIZERS = ("input", "weight", "bias", "output", "grad_output", "grad_input", "grad_weight")
# A format for each quantizer, so that a row shows whose it is.
FORMATS = {kind: f"e6m{3 + i}" for i, kind in enumerate(QUANTIZERS)}
# The quantizers without a row: these layers do not have the tensors.
WITHOUT = {
    "Embedding": {"input", "bias", "grad_input"}, "Softmax": {"weight", "bias", "grad_weight"},
    "GELU": {"weight", "bias", "grad_weight"}, "RMSNorm": {"bias"},
}  # fmt: skip


@each("name", layer_cases.LAYERS)
def test_every_quantizer_of_every_layer_has_a_row_and_the_same_bits(name: str) -> None:
    rounded = {kind: f"{fmt}:stochastic" for kind, fmt in FORMATS.items()}
    model = layer_cases.converted(name, lp.Recipe(**rounded, fprop="e6m9", dgrad="e6m9"))
    inputs = layer_cases.inputs(name)
    plain = layer_cases.step(model, model, *inputs)
    with diagnose(model) as report:
        layer_cases.same(layer_cases.step(model, model, *inputs), plain)
    found = {(row.kind, str(row.format)) for row in report.rows}
    assert found == {item for item in FORMATS.items() if item[0] not in WITHOUT.get(name, ())}
    assert all(row.rounded == row.format for row in report.rows)


def test_an_input_with_a_running_range_has_a_row() -> None:
    model = lp.convert(nn.Linear(4, 4), lp.recipe("cpt_fu2021"))
    report = one_pass(model, torch.randn(3, 4), fmt="recipe")
    found = [(row.kind, row.calls) for row in report.rows]
    assert found == [("input", 1), ("weight", 1), ("grad_output", 1)]


@each("name", layer_cases.LAYERS)
def test_a_plain_model_s_rows_are_those_of_every_layer(name: str) -> None:
    model = layer_cases.plain(name)
    with diagnose(model, "fp16") as report:
        layer_cases.step(model, model, *layer_cases.inputs(name))
    expected = set(QUANTIZERS) - WITHOUT.get(name, set()) - {"bias"}
    assert {row.kind for row in report.rows} == expected
    assert not any(row.rounded for row in report.rows)


@each("kind, acc", ["output", "grad_input", "grad_weight"], ["e6m9", lp.NATIVE])
def test_results_are_counted_before_they_are_rounded(kind: str, acc: Any) -> None:
    """The rounded sums lie beyond e2m1, some below its least value and some above its largest."""
    model, sums = nn.Linear(16, 16), {"fprop": acc, "dgrad": acc, "wgrad": acc}
    x = 8 * torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    lp.convert(model, lp.Recipe(**sums))
    y = model(x)
    (y * y).sum().backward()
    assert x.grad is not None and model.weight.grad is not None
    exact = {"output": y.detach(), "grad_input": x.grad, "grad_weight": model.weight.grad}[kind]
    exact = exact.clone()
    lp.set_recipe(model, lp.Recipe(**sums, **{kind: "e2m1"}))
    with diagnose(model) as report:
        z = model(x)
        # The gradient of the result is the same, whatever rounds the result.
        (z * y.detach() * 2).sum().backward()
    (row,) = report.rows
    assert np.array_equal(row.histogram.bins, histogram(exact.numpy()).bins)
    assert row.overflow + row.underflow


def test_products_of_a_layer_have_rows_of_their_own() -> None:
    model = nn.ModuleDict({"lstm": nn.LSTM(4, 4), "attention": nn.MultiheadAttention(4, 2)})
    lp.convert(model, lp.Recipe(grad_output="e4m3"))
    with diagnose(model) as report:
        x = model["lstm"](torch.randn(3, 2, 4))[0]
        model["attention"](x, x, x)[0].mean().backward()
    attention = "attention.multi_head_attention_forward"
    # Three projections, scores, values, out_proj; the LSTM's products of the input and the state.
    assert [(row.layer, row.tensor) for row in report.rows] == [
        *[("lstm", each) for each in ("", "2")],
        *[(attention, each) for each in ("", "2", "3", "4", "5", "6")],
    ]


@each("reentrant", [False, True])
def test_what_checkpointing_computes_again_is_counted_once(reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    lp.convert(model, lp.Recipe(input="e4m3", grad_output="e4m3"))
    with diagnose(model) as report:
        x = torch.randn(3, 4, requires_grad=True)
        y: Tensor = checkpoint(model, x, use_reentrant=reentrant)
        y.mean().backward()
    # The reentrant form's forward pass records no graph to be seen.
    calls = {row.kind: row.calls for row in report.rows}
    assert calls == ({"input": 1} if reentrant else {"input": 1, "grad_output": 1})


def diagnosed(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], scale: float, fmt: Any = "recipe"
) -> Report:
    """The report of one step at a scale."""
    model.zero_grad()
    with diagnose(model, fmt, scaler=scale) as report:
        (loss(model) * scale).backward()
    return report


def advice(report: Report) -> ScaleAdvice:
    found = report.recommend().scale
    assert found is not None
    return found


def deep_loss(model: nn.Module) -> Tensor:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    return 2.0**-8 * model(x).square().mean()


@pytest.mark.parametrize("gain", [0.8, 1.25])
@pytest.mark.parametrize("start", [1.0, 2.0**40])
def test_advice_that_is_followed_ends_at_a_scale_that_fits(gain: float, start: float) -> None:
    """From a scale at which most gradients are zero, and from one at which most are infinite."""
    formats = {"grad_output": "e4m3", "grad_weight": "e5m2"}
    plain = advice(diagnosed(deep(gain), deep_loss, 1.0, formats))
    model, scale = lp.convert(deep(gain), lp.Recipe(**formats)), start
    report = diagnosed(model, deep_loss, scale)
    assert advice(report).unseen
    for _ in range(8):
        scale, before = advice(report).scale, scale
        if scale == before:
            break
        report = diagnosed(model, deep_loss, scale)
    found = advice(report)
    # The plain model shows it at once.
    assert (plain.unseen, plain.scale) == ("", scale)
    assert (found.unseen, found.scale) == ("", scale) and found.fits
    rows = [row for row in report.rows if row.is_gradient]
    assert len(rows) == 13 + 13
    assert all(row.histogram.numbers and not row.overflow for row in rows)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("converted", [False, True])
def test_no_step_of_a_gpt_is_skipped_at_the_recommended_scale(converted: bool) -> None:
    """The largest gradients are those of its embeddings."""
    model, recipe = gpt(), lp.Recipe(weight="e4m3fn_sat", grad_output="e5m2", grad_weight="e5m2")
    if converted:
        scale = advice(diagnosed(lp.convert(model, recipe), gpt_loss, 1.0)).scale
    else:
        formats = {"grad_output": "e5m2", "grad_weight": "e5m2"}
        scale = advice(diagnosed(model, gpt_loss, 1.0, formats)).scale
        lp.convert(model, recipe)
    # Beyond the margin of two binades a gradient overflows.
    assert advice(diagnosed(model, gpt_loss, 8 * scale)).scale <= scale
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler, skipped = LossScaler(static=scale, named_parameters=model.named_parameters()), []
    for _ in range(15):
        optimizer.zero_grad()
        scaler.scale(gpt_loss(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped += [scaler.last_step.parameter] * (not scaler.last_step.ran)
    assert skipped == []
