"""Quantizer, Accumulator, Recipe and the named ones: fields, text forms, integers."""

import inspect
from dataclasses import replace

import pytest
import torch

from lpkernels import formats
from lpkernels.arithmetic import (
    NATIVE,
    UNITS,
    Accumulator,
    Adam,
    FixedAxisWarning,
    Quantizer,
    Recipe,
    Sgd,
    accumulator,
    as_accumulator,
)
from lpkernels.arithmetic.products import conv_lengths, longest_residue, matmul_lengths
from lpkernels.recipes import as_recipe, describe, recipe, recipes


def test_native_is_torch_only_without_chunks():
    assert NATIVE.is_native
    assert as_accumulator(None) is NATIVE
    assert accumulator("native") == NATIVE
    chunked = accumulator("native_chunk64:outer=e6m9")
    assert chunked == Accumulator("fp32", order="native", chunk=64, outer="e6m9")
    assert not chunked.is_native
    assert not accumulator("fp32").is_native
    assert Accumulator("fp32", "stochastic", order="native", chunk=8).is_stochastic


HOPPER = Accumulator(
    "e8m13", "toward_zero", chunk=128, outer="fp32", outer_rounding="nearest_even", block=32,
    aligned_bits=13,
)  # fmt: skip


@pytest.mark.parametrize("name, acc", [
    ("fp32", Accumulator()),
    ("fp16", Accumulator("e5m10")),
    ("e6m9_chunk64", Accumulator("e6m9", chunk=64)),
    ("ibm_e6m9_chunk64", Accumulator("e6m9", chunk=64)),
    ("e5m10:toward_zero", Accumulator("e5m10", "toward_zero")),
    ("hopper_fp8", replace(HOPPER, operands="e4m3fn")),
    ("e8m13_chunk128:toward_zero:outer=fp32:outer_rounding=nearest_even:block=32:"
     "aligned_bits=13", HOPPER),
    ("e6m9_chunk8:order=pairwise", Accumulator("e6m9", chunk=8, order="pairwise")),
    ("bf16:order=compensated", Accumulator("bf16", order="compensated")),
    ("fp32:aligned_bits=24:block=4", Accumulator("fp32", block=4, aligned_bits=24)),
    ("bf16:product=e4m3:product_rounding=nearest_away:bits=3",
     Accumulator("bf16", product="e4m3", product_rounding="nearest_away", random_bits=3)),
])  # fmt: skip
def test_accumulator_names(name, acc):
    assert accumulator(name) == acc


@pytest.mark.parametrize("name, fprop", [("h100_fp8", "h100_e4m3"), ("hopper_fp8", "hopper_fp8")])
def test_fp8_of_hopper_promotes_gradients_of_e5m2(name, fprop):
    built = recipe(name)
    assert built.fprop == accumulator(fprop)
    operands = (formats.E5M2, formats.E4M3FN)
    assert built.dgrad == built.wgrad == replace(accumulator("hopper_fp8"), operands=operands)
    for quantizer, fmt in ((built.input, "e4m3fn"), (built.grad_output, "e5m2")):
        assert str(quantizer.fmt) == f"{fmt}_sat"
    assert built.weight == built.input


@pytest.mark.parametrize("unit", UNITS.values())
def test_every_unit_is_a_recipe(unit):
    built = recipe(unit.name)
    assert as_recipe(unit.name) == built
    assert "Source:" in describe(unit.name) and unit.decided and unit.unknown
    assert built.fprop == unit.accumulator == accumulator(unit.name)
    if unit.inputs == "fp32":
        assert built == Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
        return
    left, right = built.dgrad.operands
    # Each rounded operand fits the format that bounds its exponents.
    rounded = [built.grad_output.fmt, built.weight.fmt, built.input.fmt]
    bounds = [left, right, built.fprop.operands[0]]
    for fmt, bound in zip(rounded, bounds, strict=True):
        assert (fmt.exp_bits, fmt.man_bits) <= (bound.exp_bits, bound.man_bits)
    assert replace(built.dgrad, operands=unit.accumulator.operands) == unit.accumulator
    assert built.wgrad == built.dgrad


@pytest.mark.parametrize("name", ["v100_fp16", "a100_bf16", "h100_fp16", "h100_bf16"])
def test_recipes_of_16_bit_units_are_the_mixed_ones(name):
    built, acc = recipe(name), accumulator(name)
    mixed = recipe(f"{name.split('_')[1]}_mixed")
    assert built == replace(mixed, fprop=acc, dgrad=acc, wgrad=acc)


def test_recipe_takes_objects_and_names():
    named = Recipe("e5m2", weight="e4m3:stochastic", fprop="e6m9_chunk64", wgrad="fp32")
    built = Recipe(
        input=formats.E5M2,
        weight=Quantizer("e4m3", "stochastic"),
        fprop=Accumulator("e6m9", chunk=64),
        wgrad=Accumulator("fp32"),
    )
    assert named == built
    assert (named.bias, named.dgrad) == (None, NATIVE)
    assert eval(str(named)) == named
    assert str(Recipe()) == "Recipe()"


def test_recipe_is_torch_only_when_nothing_is_emulated():
    assert Recipe().is_torch
    assert not Recipe(grad_weight="fp16").is_torch
    assert not Recipe(dgrad="fp32").is_torch
    assert not Recipe(fprop="native_chunk8").is_torch
    assert not Recipe(input="e5m2").is_stochastic
    assert Recipe(grad_output="e5m2:stochastic").is_stochastic
    assert Recipe(wgrad="e6m9:stochastic").is_stochastic


@pytest.mark.parametrize("name", recipes())
def test_named_recipes(name):
    built = recipe(name)
    assert as_recipe(name) == built
    assert as_recipe(built) is built
    assert eval(str(built)) == Recipe.parse(str(built)) == built
    assert built.is_torch == (name == "fp32")
    assert name == "fp32" or "Source:" in describe(name)


@pytest.mark.parametrize(
    "fields_, message",
    [
        ({"input": "mxfp8"}, r"input=block32_e4m3: .*\(input's in wgrad\)"),
        (
            {"weight": "nvfp4", "grad_output": "tile2x4_e4m3_up"},
            r"weight=block16_e2m1_se4m3fn_t, grad_output=tile2x4_e4m3_up: .*\(weight's in dgrad, "
            r"grad_output's in dgrad and wgrad\).*axis='k'",
        ),
        ({"input": "row_e4m3_se8m0"}, "input=row_e4m3_se8m0"),
    ],
)
def test_a_recipe_with_a_fixed_axis_warns(fields_, message):
    with pytest.warns(FixedAxisWarning, match=message) as warned:
        Recipe(**fields_)
    assert warned[0].filename == __file__


def test_a_recipe_whose_codes_serve_every_product_does_not_warn(recwarn):
    Recipe(
        input="fp8_tensor", weight="nvfp4_2d", output="mxfp8", bias="fp8_row", grad_input="mxfp8"
    )
    assert not recwarn.list


def test_fp8_wang2018_and_the_formats_of_hfp8_sun2019():
    acc = Accumulator("e6m9", chunk=64)
    expected = Recipe("e5m2", "e5m2", grad_output="e5m2", fprop=acc, dgrad=acc, wgrad=acc)
    assert recipe("fp8_wang2018") == expected
    built = recipe("hfp8_sun2019")
    assert built.input.fmt == formats.NAMED["fp_4_3_4"]
    assert (built.input.fmt.max, built.grad_output.fmt.max) == (30.0, 114688.0)
    assert built.grad_output.fmt.overflow == "infinity"


def test_defaults_are_those_of_torch() -> None:
    sgd, adam = (
        {name: parameter.default for name, parameter in inspect.signature(of).parameters.items()}
        for of in (torch.optim.SGD, torch.optim.Adam)
    )
    assert {name: sgd[name] for name in Sgd._field_defaults} == Sgd._field_defaults
    own = dict(Adam._field_defaults)
    assert (own.pop("beta1"), own.pop("beta2")) == adam["betas"]
    assert own.pop("decoupled") == adam["decoupled_weight_decay"]
    assert {name: adam[name] for name in own} == own


@pytest.mark.parametrize(
    "x, w, y, want",
    [
        ((3, 5), (5, 7), (3, 7), (5, 7, 3)),
        ((2, 3, 5), (2, 5, 7), (2, 3, 7), (5, 7, 3)),
        # One matrix meets all of a batch: its gradient sums over the batch, too.
        ((2, 3, 5), (5, 7), (2, 3, 7), (5, 7, 6)),
        ((3, 5), (4, 5, 7), (4, 3, 7), (5, 28, 3)),
        ((4, 1, 3, 5), (2, 5, 7), (4, 2, 3, 7), (5, 14, 12)),
    ],
)
def test_of_matrix_products(x, w, y, want):
    assert matmul_lengths(x, w, y) == want


@pytest.mark.parametrize("dilation", range(1, 5))
@pytest.mark.parametrize("stride", range(1, 5))
@pytest.mark.parametrize("taps", range(1, 8))
def test_the_longest_residue_is_what_a_count_finds(taps: int, stride: int, dilation: int):
    met: dict[int, int] = {}
    for output in range(20 * taps):
        for tap in range(taps):
            position = output * stride + tap * dilation
            met[position] = met.get(position, 0) + 1
    assert longest_residue(taps, stride, dilation) == max(met.values())


def test_of_convolutions():
    # 8 outputs of 3 input channels in 2 groups, 3 x 4 taps, stride 2 x 1.
    assert conv_lengths((8, 3, 3, 4), (5, 8, 6, 7), (2, 1), (1, 1), 2) == (36, 4 * 2 * 4, 5 * 42)
