"""The named recipes of scaled formats: layers that torch compiles, and texts."""

from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.recipes import describe
from tests.functional.scaled_layers import RECIPES, SCALE
from tests.support.autograd import alike, compiled, gradients

NAMES = [name for name in lp.recipes() if lp.recipe(name).readings.by_product]
# Tests of layers compile a recipe of MX; tests of delayed scaling compile theirs.
QUICK = ["deepseek_v3", "te_current", "int8_training"]
COMPILED: list[Any] = [
    *(pytest.param(n, id=n, marks=[] if n in QUICK else pytest.mark.slow) for n in NAMES),
    pytest.param(RECIPES["nvfp4 pretraining"], id="nvfp4 pretraining"),
    pytest.param(
        lp.Recipe(**{**RECIPES["mxfp8 from codes"].to_dict(), **SCALE}),
        id="mxfp8 from codes, sums by scale",
    ),
]


@pytest.mark.parametrize("recipe", COMPILED)
def test_a_compiled_layer_is_one_graph_with_the_same_bits(recipe: Any) -> None:
    layer, x = lp.nn.Linear(48, 32, recipe=recipe), torch.randn(4, 8, 48, requires_grad=True)
    inputs = [x, *layer.parameters()]
    alike((layer, compiled(layer)), lambda run: gradients(run(x), inputs))


def test_every_recipe_of_scaled_formats_is_described_and_read_back() -> None:
    for name in lp.policies():
        recipe = lp.recipe(name)
        assert lp.Recipe.parse(str(recipe)) == recipe
        assert "Source: " in lp.recipes.describe(name) == describe(name)
