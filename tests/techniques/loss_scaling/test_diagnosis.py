"""The counts of a running model, plain and converted, against NumPy; advice that is followed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from lpkernels.nn.observing import observe
from lpkernels.techniques.loss_scaling import Report, diagnose
from lpkernels.techniques.loss_scaling.rows import TensorRow
from tests.compare import assert_bit_equal
from tests.nn import layer_cases
from tests.nn.observed import Calls
from tests.support.autograd import Computes, Reads
from tests.techniques.loss_scaling.diagnosed import (
    batch,
    deep,
    histogram,
    net,
    one_pass,
    row_of,
    train,
)


def assert_counts(row: TensorRow, values: list[Tensor], fmt: str) -> None:
    """The row has the counts of these tensors, found with NumPy and the reference's rounding."""
    array = torch.cat([v.reshape(-1).float() for v in values])
    rounded = lp.quantize(array, fmt, backend="reference").double()
    expected = histogram(array.numpy())
    assert np.array_equal(row.histogram.bins, expected.bins)
    assert row.histogram.zeros == expected.zeros
    assert row.calls == len(values)
    finite = array.isfinite()
    assert row.underflow == int(((array != 0) & (rounded == 0)).sum())
    most = lp.parse_format(fmt).max
    assert row.overflow == int((finite & ~(rounded.abs() <= most)).sum())
    numbers = array[finite & (array != 0)].abs().double()
    assert row.below_normal == float((numbers < lp.parse_format(fmt).min_normal).double().mean())
    low = lp.parse_format(fmt).min_subnormal
    assert row.below_subnormal == float((numbers < low).double().mean())


@pytest.mark.parametrize("fmt", ["fp16", "e4m3fn", "e2m1"])
def test_counts_are_those_of_the_tensors(fmt: str) -> None:
    model, seen = net(), Calls()
    with diagnose(model, fmt) as report, observe(model, seen):
        train(model)
    # The norm, which is no product, is counted too.
    counted = [*["conv"] * 5, *["norm"] * 6, *["left"] * 6, *["right"] * 6]
    kinds = ["input", "weight", "output", "grad_output", "grad_input", "grad_weight"]
    assert [row.layer for row in report.rows] == counted
    assert [row.kind for row in report.rows if row.layer == "left"] == kinds
    for number, layer in enumerate(["conv", "left", "right"]):
        calls = [number, number + 3]
        values = {
            "input": [seen.arguments[i]["input"] for i in calls],
            "weight": [seen.arguments[i]["weight"] for i in calls],
            "output": [seen.results[i].detach() for i in calls],
            "grad_output": [seen.gradients[i]["result"] for i in calls],
            "grad_weight": [seen.gradients[i]["weight"] for i in calls],
        }
        if layer != "conv":
            values["grad_input"] = [seen.gradients[i]["input"] for i in calls]
        for kind, tensors in values.items():
            assert_counts(row_of(report, layer, kind), tensors, fmt)
    assert row_of(report, "left", "grad_output").underflow > 0


STOCHASTIC = lp.Recipe(weight="e5m2:stochastic", grad_output="e4m3:stochastic")


@pytest.mark.parametrize(
    "recipe", [None, lp.recipe("fp8_wang2018"), STOCHASTIC], ids=["plain", "wang", "stochastic"]
)
def test_a_diagnosed_loop_has_the_bits_of_one_that_is_not(recipe: lp.Recipe | None) -> None:
    found = []
    for diagnosed in (False, True):
        model = net()
        if recipe:
            lp.convert(model, recipe)
        hooks = [dict(m._forward_hooks) for m in model.modules()]
        torch.manual_seed(7)
        if diagnosed:
            with diagnose(model, "recipe" if recipe else "fp16") as report:
                losses = train(model)
            assert report.rows
        else:
            losses = train(model)
        state = [torch.get_rng_state().float(), *model.state_dict().values()]
        gradients = [p.grad for p in model.parameters()]
        assert [dict(m._forward_hooks) for m in model.modules()] == hooks
        found.append([*losses, *state, *gradients])
    for plain, watched in zip(*found, strict=True):
        assert_bit_equal(plain.float(), watched.float())


def test_an_error_leaves_no_trace() -> None:
    model = net()
    diagnosis = diagnose(model, "fp16")
    with pytest.raises(RuntimeError, match="mat1 and mat2"), diagnosis:
        model(torch.randn(1, 2, 9, 9))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch._C._len_torch_function_stack() == 0
    assert row_of(diagnosis, "conv", "input").calls == 1
    train(model, 1)
    assert row_of(diagnosis, "conv", "input").calls == 1


def test_nothing_waits_for_the_device_during_steps() -> None:
    model = net()
    scaler = lp.techniques.loss_scaling.LossScaler(init_scale=8.0)
    with diagnose(model, "fp16", scaler=scaler) as report:
        with Reads() as reads:
            for step in range(3):
                scaler.scale(model(batch(step)).mean()).backward()
        assert reads.count == 0
        assert report.rows


def test_a_block_adds_up_and_may_be_looked_at_inside() -> None:
    model = net()
    diagnosis = diagnose(model, "fp16")
    with diagnosis as report:
        assert report is diagnosis
        train(model, 1)
        assert row_of(report, "conv", "weight").calls == 1
        train(model, 2)
    train(model, 1)
    with diagnosis:
        train(model, 1)
    row = row_of(diagnosis, "conv", "weight")
    assert (row.calls, row.histogram.elements) == (4, 4 * 72)


def test_forward_without_backward() -> None:
    model = net()
    with diagnose(model, "fp16") as report:
        with torch.no_grad():
            model(batch())
        model.eval()
        model(batch())
        with torch.inference_mode():
            model(batch())
        model.train()
        for seed in (1, 2):
            model(batch(seed)).mean().backward()
    assert row_of(report, "conv", "input").calls == 5
    assert row_of(report, "conv", "grad_output").calls == 2
    assert not any(row.kind == "grad_input" for row in report.rows if row.layer == "conv")


def products() -> nn.Module:
    """A module that computes products of its own beside a layer."""

    def forward(own: Any, x: Tensor) -> Tensor:
        return torch.addmm(torch.zeros(()), own.layer(x) @ own.w, own.w) @ x.mT

    return Computes(forward, layer=nn.Linear(4, 4), w=nn.Parameter(torch.ones(4, 4)))


def test_formats_of_the_recipe() -> None:
    model = nn.Sequential(products(), nn.Linear(3, 3), nn.Linear(3, 3))
    recipe = lp.Recipe(input="affine8", weight="e4m3fn:stochastic", grad_output="e5m2")
    lp.convert(model, recipe, exclude="1")
    report = one_pass(model, torch.randn(3, 4), fmt="recipe")
    for layer in ("0.layer", "0.matmul", "2"):
        assert str(row_of(report, layer, "weight").format) == "e4m3fn"
        assert str(row_of(report, layer, "grad_output").format) == "e5m2"
        assert not any(row.kind == "output" for row in report.rows)
    affine = row_of(report, "2", "input")
    assert (str(affine.format), affine.below_subnormal, affine.overflow) == ("affine8", None, 0)
    assert "1" not in {row.layer for row in report.rows}
    assert "affine8" in str(report)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_formats_by_kind_and_other_dtypes(dtype: torch.dtype) -> None:
    model, formats = nn.Linear(4, 4, dtype=dtype), {"weight": "e4m3fn", "grad_weight": "e5m2"}
    asked = {**formats, "weight": lp.Quantizer("e4m3fn")}
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float64):
        report = one_pass(model, torch.randn(3, 4, dtype=dtype), fmt=asked)
    assert {row.kind: str(row.format) for row in report.rows} == formats
    assert row_of(report, "Linear", "grad_weight").histogram.elements == 16


def test_products_without_a_row_are_named_below_the_table(tmp_path: Path) -> None:
    """By formats the products that no function shows, by recipe all that no recipe rounds."""
    parts = {"left": nn.Linear(4, 4), "right": nn.Linear(4, 4)}
    model = Computes(lambda m, x: torch.cdist(m.right(m.left(x)), x), **parts)
    lp.convert(model, lp.Recipe(input="e5m2"), include="left")
    texts = {}
    for fmt in ("e5m2", "recipe"):
        with diagnose(model, fmt) as report:
            # Two passes are named as one.
            for _ in range(2):
                model(torch.randn(2, 4)).sum().backward()
        texts[fmt] = report.uncovered.rpartition(": ")[2]
        assert str(report).splitlines()[-1] == report.uncovered
        assert str(Report.load(report.save(tmp_path / "report.jsonl"))) == str(report)
    assert texts == {
        "e5m2": "aten::_cdist_forward x1", "recipe": "aten::addmm x1, aten::_cdist_forward x1"
    }  # fmt: skip
    with diagnose(model.left, "e5m2") as report:
        model.left(torch.randn(2, 4))
    assert report.uncovered == "" and "no row" not in str(report)


QUANTIZERS = ("input", "weight", "bias", "output", "grad_output", "grad_input", "grad_weight")
# A format for each quantizer, so that a row shows whose it is.
FORMATS = {kind: f"e6m{3 + i}" for i, kind in enumerate(QUANTIZERS)}
# The quantizers without a row: these layers do not have the tensors.
WITHOUT = {
    "Embedding": {"input", "bias", "grad_input"}, "Softmax": {"weight", "bias", "grad_weight"},
    "RMSNorm": {"bias"},
}  # fmt: skip


@pytest.mark.parametrize("name", layer_cases.LAYERS)
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


@pytest.mark.parametrize("name", layer_cases.LAYERS)
def test_a_plain_model_s_rows_are_those_of_every_layer(name: str) -> None:
    model = layer_cases.plain(name)
    with diagnose(model, "fp16") as report:
        layer_cases.step(model, model, *layer_cases.inputs(name))
    expected = set(QUANTIZERS) - WITHOUT.get(name, set()) - {"bias"}
    assert {row.kind for row in report.rows} == expected
    assert not any(row.rounded for row in report.rows)


@pytest.mark.parametrize("acc", ["e6m9", lp.NATIVE], ids=["e6m9", "native"])
@pytest.mark.parametrize("kind", ["output", "grad_input", "grad_weight"])
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


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputation_of_a_checkpoint_is_counted_once(reentrant: bool) -> None:
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


def deep_loss(model: nn.Module) -> Tensor:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    return 2.0**-8 * model(x).square().mean()


@pytest.mark.parametrize("gain", [0.8, 1.25])
def test_advice_that_is_followed_is_a_scale_that_fits(gain: float) -> None:
    """The plain model shows the scale at once; converted it shows too little, at no scale and at
    one at which most gradients are infinite."""
    formats = {"grad_output": "e4m3", "grad_weight": "e5m2"}
    plain = diagnosed(deep(gain), deep_loss, 1.0, formats).recommend()
    assert plain.scale is not None
    model = lp.convert(deep(gain), lp.Recipe(**formats))
    for scale in (1.0, 2.0**40):
        assert diagnosed(model, deep_loss, scale).recommend().unseen
    report = diagnosed(model, deep_loss, plain.scale)
    found = report.recommend()
    assert plain.unseen == found.unseen == "" and found.scale == plain.scale and found.least
    rows = [row for row in report.rows if row.is_gradient]
    assert len(rows) == 13 + 13
    assert all(row.histogram.numbers and not row.overflow for row in rows)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
