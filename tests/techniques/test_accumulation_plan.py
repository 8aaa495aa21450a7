"""The plan of a model: measurements, widths, notes, recipes for convert(); the model is left."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.techniques.accumulation import (
    AccumulatorPlan,
    accumulator_of,
    measure,
    min_mantissa_bits,
    plan,
)
from tests.nn.policy_models import Attention
from tests.support.autograd import Computes
from tests.support.techniques import grad, linear_rows, mean_square


def test_measured_mantissas_of_operands_and_products():
    def bits(left: list[float], right: float = 1.0) -> int:
        x = torch.tensor([left])
        return measure(x, torch.full((len(left), 1), right), "e8m23", counted=0).product_bits

    assert bits([0.0, 1.0, -4.0]) == bits([0.0, 0.0]) == 0
    assert bits([1.5, -3.25]) == 3
    assert bits([1.0 + 2.0**-23]) == 23
    assert bits(lp.quantize(torch.randn(999), "e5m2").tolist()) == 2
    assert bits([2.0**-149, 3 * 2.0**-149]) == 1
    # Two significands of m + 1 bits make one of 2 m + 2; a power of two adds no bit.
    assert [bits([1.25], 1.75), bits([1.125], 4.0)] == [5, 3]
    # Nothing has no bits.
    assert linear_rows(torch.zeros(0, 8), torch.full((3, 8), 1.5))[0].product_bits == 1


def test_zeros_ranges_and_growth_are_measured():
    x = torch.ones(4, 8)
    x[:, ::2] = 0
    w = torch.full((3, 8), 2.0**-10)
    fprop, wgrad = linear_rows(x, w)
    assert (fprop.nzr, fprop.product_bits, fprop.length) == (0.5, 0, 8)
    # Every product is 0 or 2^-10, and the sums are 2^-8: with four equal products, E[sum^2] = 4
    # E[sum p^2].
    assert fprop.exponents == (-10, -8)
    assert fprop.growth == pytest.approx(4)
    assert any("not of mean zero" in note for note in fprop.notes)
    # Five exponent bits reach down to 2^-14, four to 2^-6; and one is headroom.
    assert (fprop.format.exp_bits, fprop.headroom) == (6, 1)
    assert (wgrad.length, wgrad.exponents) == (4, (0, 2))


@pytest.mark.parametrize("name, bits", [("te_current", 7), ("int8_training", 13), ("nvfp4", 11)])
def test_scales_of_rows_and_tensors_are_in_no_sum(name: str, bits: int):
    """The operands of each product lie with the dimension that it sums last."""

    def summed(x: Tensor, quantizer: lp.Quantizer) -> Tensor:
        parts = lp.scaled(x, replace(quantizer.fmt, axis=-1))
        blocks = parts.scale.repeat_interleave(16, -1) if name == "nvfp4" else 1
        return (parts.values * blocks).abs()

    recipe, layer = lp.recipe(name), nn.Linear(64, 48, bias=False)
    x, w, g = grad(32, 64), layer.weight, torch.randn(32, 48)
    rows = plan(layer, x, loss=lambda y: (y * g).sum(), operand=name).rows
    q = recipe.input, recipe.weight, recipe.grad_output
    largest = {
        "fprop": summed(x, q[0]) @ summed(w, q[1]).T,
        "dgrad": summed(g, q[2]) @ summed(w.T, q[1]).T,
        "wgrad": summed(x.T, q[0]) @ summed(g.T, q[2]).T,
    }
    tops = {gemm: math.floor(math.log2(sums.max().item())) for gemm, sums in largest.items()}
    assert {row.gemm: row.exponents[1] for row in rows} == tops
    assert rows[0].product_bits == bits
    shapes = linear_rows(x.to("meta"), w.to("meta"), operand=name)[0]
    assert shapes.product_bits == bits


def test_blocks_lie_along_the_dimension_that_each_product_sums():
    """Beside a value of 1, a block of four bits has nothing but zero for one of 2^-12."""
    layer = nn.Linear(64, 48, bias=False)
    layer.weight.data.sign_()[::2] *= 2.0**-12  # a sum of dgrad has both kinds of rows
    x, g = grad(32, 64).data.sign(), torch.randn(32, 48).sign()
    x[::2] *= 2.0**-12
    g[1::4] *= 2.0**-12
    rows = plan(layer, x.requires_grad_(), loss=lambda y: (y * g).sum(), operand="nvfp4").rows
    shares = {"fprop": 1, "dgrad": 1 / 2, "wgrad": 1 / 4}
    assert {row.gemm: row.nzr for row in rows} == pytest.approx(shares, abs=0.01)


def small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Flatten(), nn.Linear(128, 5),
    )  # fmt: skip


def test_the_recipes_convert_the_model():
    model = small_net()
    x = torch.randn(4, 3, 4, 4)
    table = plan(model, x, loss=mean_square, operand="e5m2", chunk=16)
    assert list(table) == list(table.recipes) == ["0", "5"]
    assert len(table) == 2
    lp.convert(model, table)
    by_gemm = {row.gemm: row.accumulator for row in table.rows if row.layer == "5"}
    recipe = model[5].recipe
    assert (recipe.fprop, recipe.dgrad, recipe.wgrad) == tuple(by_gemm.values())
    assert recipe.input == recipe.weight == recipe.grad_output == lp.Quantizer("e5m2")
    model(x).square().mean().backward()
    narrow = table.narrowed(2)["5"].fprop
    assert narrow.fmt.man_bits == max(1, recipe.fprop.fmt.man_bits - 2)
    assert table.rows[0].to_dict()["format"] == str(table.rows[0].format)
    # Names with glob characters are matched literally.
    model = nn.Sequential()
    model.add_module("a[0]*", nn.Linear(4, 4))
    recipes = plan(model, torch.randn(2, 4), loss=mean_square, operand="e5m2").recipes
    lp.convert(model, recipes)
    assert isinstance(model[0], lp.nn.Linear)
    # A recipe can name the operands.
    table = plan(nn.Linear(4, 4), grad(2, 4), loss=mean_square, operand="hfp8_sun2019")
    assert table.operands.grad_output == lp.Quantizer("fp_5_2_0_backward")
    assert table.rows[0].product_bits <= 7


def test_a_layer_called_twice_gets_the_wider_of_both():
    def forward(own: Any, x: Tensor) -> Tensor:
        return own.layer(own.layer(x) * 1000).sum() + own.layer(x[:1]).sum()

    twice = Computes(forward, layer=nn.Linear(6, 6))
    rows = plan(twice, grad(40, 6), loss=lambda y: y, operand="bf16").rows
    assert {row.layer for row in rows} == {"layer"}
    assert [(row.gemm, row.length) for row in rows] == [("fprop", 6), ("dgrad", 6), ("wgrad", 40)]
    assert rows[0].exponents[1] - rows[0].exponents[0] >= 9


def test_layers_without_gradient_say_so():
    def forward(own: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = own.silent(x)
        own.unused(x)
        return own.used(x)

    layers = {name: nn.Linear(4, 4) for name in ("silent", "unused", "used")}
    model = Computes(forward, **layers)
    rows = plan(model, torch.randn(2, 4), loss=mean_square, operand="e5m2").rows
    unseen = [row.layer for row in rows if any("no gradient came back" in n for n in row.notes)]
    assert unseen == ["silent", "unused"]
    assert [row.gemm for row in rows if row.layer == "used"] == ["fprop", "wgrad"]


@pytest.mark.parametrize("rounding", ["stochastic", "aligned_truncation"])
def test_other_roundings_are_planned_and_converted(rounding: str):
    model, x = nn.Linear(512, 8), torch.randn(64, 512)
    options: dict = {"loss": mean_square, "operand": "e5m2", "rounding": rounding}
    table = plan(model, x, **options)
    fprop = table.rows[0]
    bits = min_mantissa_bits(512, 5, metric="nmse", rounding=rounding)
    assert fprop.man_bits == bits + 1
    assert fprop.accumulator == accumulator_of(fprop.format, rounding)
    assert fprop.notes == ()
    narrow = next(iter(table.narrowed(2).values()))
    assert narrow.fprop.fmt.man_bits == fprop.man_bits - 2
    a, b = lp.quantize(x, "e5m2"), lp.quantize(model.weight, "e5m2").T
    got = measure(a, b, fprop.accumulator, counted=0)
    assert got.nmse < 1e-3
    lp.convert(model, table)
    model(x).sum().backward()
    # The variance criterion does not see the effects of these roundings, and each row says so.
    model = nn.Linear(512, 8)
    assert all("metric" in row.notes[0] for row in plan(model, x, metric="vrr", **options).rows)
    chunked = plan(model, x, chunk=64, **options).rows[0]
    assert chunked.accumulator == accumulator_of(chunked.format, rounding, chunk=64)


def all_kinds() -> nn.Module:
    def forward(model: Any, x: Tensor) -> Tensor:
        x = x + model.own(x)
        x = x + model.torchs(x, x, x, need_weights=False)[0]
        x, _ = model.memory(x)
        h = x.new_zeros(len(x), 8)
        for step in x.unbind(1):
            h = model.cell(step, h)
        return F.linear(model.head(h), torch.eye(5))

    return Computes(
        forward,
        own=Attention(),
        torchs=nn.MultiheadAttention(8, 2, batch_first=True),
        memory=nn.LSTM(8, 12, num_layers=2, bidirectional=True, batch_first=True),
        cell=nn.GRUCell(24, 8),
        head=nn.Linear(8, 5),
    )


def check_recipes(model: nn.Module, table: AccumulatorPlan) -> None:
    """Check that every row's product has a recipe in its module that is wide enough for it."""
    lp.convert(model, table)
    modules = dict(model.named_modules())
    for row in table.rows:
        recipe = modules[table.modules[row.layer]].recipe
        acc = getattr(recipe, row.gemm)
        assert recipe.input == table.operands.input
        assert acc.order != "native"
        assert acc.fmt.man_bits >= row.format.man_bits
        assert acc.fmt.exp_bits >= row.format.exp_bits


def test_every_product_of_the_model_has_a_recipe():
    model, x = all_kinds(), torch.randn(2, 3, 8)
    plain = model(x)
    table = plan(model, x, loss=mean_square, operand="e5m2")
    assert list(table) == ["own.qkv", "own", "own.out", "torchs", "memory", "cell", "head", ""]
    layers = {
        name: {r.layer for r in table.rows if table.modules[r.layer] == name} for name in table
    }
    parts = ("in_proj_q", "in_proj_k", "in_proj_v", "scores", "values", "out_proj")
    assert layers["torchs"] == {f"torchs.{part}" for part in parts}
    assert layers["cell"] == {"cell.ih", "cell.hh"}
    check_recipes(model, table)
    y = model(x)
    assert not torch.equal(y, plain)
    mean_square(y).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    narrow = table.narrowed(1)["torchs"].fprop.fmt.man_bits
    assert narrow == max(1, table["torchs"].fprop.fmt.man_bits - 1)


#: The options of a plan, the metric and the margin that they mean, and the bits of 1024 products.
WIDTHS: list[tuple[dict[str, Any], str, int, int]] = [
    ({}, "nmse", 1, 9),
    ({"margin": 0}, "nmse", 0, 8),
    ({"metric": "vrr", "margin": 0}, "vrr", 0, 7),
    ({"metric": "vrr"}, "vrr", 1, 8),
    ({"metric": "vrr", "margin": 3}, "vrr", 3, 10),
]


@pytest.mark.parametrize("options, metric, margin, of_1024", WIDTHS)
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


@pytest.mark.parametrize("options, metric, margin, of_1024", WIDTHS)
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
    assert note.startswith(narrow)
    # The error law has no artefact in long sums.
    options["operand"] = "fp16"
    (note,) = plan(nn.Linear(3, 3), torch.randn(2, 3), **options).rows[0].notes
    assert note.startswith(narrow)
    long = torch.empty(1, 2**22, device="meta")
    rows = [linear_rows(long, long, operand="e5m2", **widths)[0] for widths in ({}, short)]
    assert ["2^22" in " ".join(row.notes) for row in rows] == [False, True]


def exponents(x: Tensor, **options: Any) -> list[tuple[int, int | None]]:
    table = plan(nn.Linear(8, 3), x, loss=lambda y: y.sum(), operand="e5m2", **options)
    return [(row.format.exp_bits, row.headroom) for row in table.rows]


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
