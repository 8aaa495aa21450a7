"""The named recipes of scaled formats in a linear layer: operands, and the errors of gradients."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.functional import linear
from lpkernels.recipes import describe
from tests.compare import assert_bit_equal
from tests.support.autograd import alike, compiled
from tests.support.autograd import gradients as flat_gradients

ROWS, INPUTS, OUTPUTS = 512, 128, 256
# Recipes without draws and transforms: an operand is its format's values.
PLAIN = ["mxfp8", "mxfp8_ocp", "mxfp6", "mxfp4", "nvfp4", "deepseek_v3", "te_block", "te_current"]


def tensors(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """An input with outliers in some channels, a weight, gradients whose rows differ in size."""
    generator = torch.Generator().manual_seed(seed)
    x, w, g, rows = (
        torch.randn(shape, generator=generator)
        for shape in ((ROWS, INPUTS), (OUTPUTS, INPUTS), (ROWS, OUTPUTS), (ROWS, 1))
    )
    x[:, ::17] *= 20
    return x, w, 1e-4 * g * 4**rows


def native(recipe: lp.Recipe) -> lp.Recipe:
    return replace(recipe, fprop="native", dgrad="native", wgrad="native")


def gradients(recipe: lp.Recipe, seed: int = 0) -> tuple[Tensor, Tensor]:
    x, w, g = tensors(seed)
    x.requires_grad_(), w.requires_grad_()
    dx, dw = torch.autograd.grad(linear(x, w, recipe=recipe), (x, w), g)
    return dx, dw


def along(recipe: lp.Recipe, role: str, x: Tensor, axis: int) -> Tensor:
    """The operand as its product has it: codes of the tensor itself, blocks along the sum."""
    fmt = getattr(recipe, role).fmt
    return lp.quantize(x, replace(fmt, axis=axis) if fmt.axis == "k" else fmt)


@pytest.mark.parametrize("name", [*PLAIN, "fp8_rowwise", "int8_training"])
def test_each_product_has_codes_along_its_sum(name: str) -> None:
    recipe = native(lp.recipe(name))
    x, w, g = tensors()
    dx, dw = gradients(recipe)
    y = along(recipe, "input", x, -1) @ along(recipe, "weight", w, -1).T
    assert_bit_equal(linear(x, w, recipe=recipe), y, name)
    assert_bit_equal(dx, along(recipe, "grad_output", g, -1) @ along(recipe, "weight", w, 0), name)
    want = along(recipe, "grad_output", g, 0).T @ along(recipe, "input", x, 0)
    assert_bit_equal(dw, want, name)


NAMES = [name for name in lp.recipes() if lp.recipe(name).readings.by_product]
# Tests of layers compile a recipe of MX and one of NVFP4; tests of delayed scaling compile theirs.
QUICK = ["deepseek_v3", "te_current", "int8_training"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in NAMES]
)
def test_a_compiled_layer_is_one_graph_with_the_same_bits(name: str) -> None:
    layer, x = lp.nn.Linear(48, 32, recipe=name), torch.randn(4, 8, 48, requires_grad=True)
    inputs = [x, *layer.parameters()]
    alike((layer, compiled(layer)), lambda run: flat_gradients(run(x), inputs))


def test_every_recipe_of_scaled_formats_is_described_and_read_back() -> None:
    for name in lp.policies():
        recipe = lp.recipe(name)
        assert lp.Recipe.parse(str(recipe)) == recipe
        assert "Source: " in lp.recipes.describe(name) == describe(name)
