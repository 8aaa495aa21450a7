"""A method's name means the method for a whole model, and elsewhere the recipe of its layers."""

from typing import Any

import pytest
from torch import nn

import lpkernels as lp
from tests.loops import each
from tests.nn.policy_models import Doubled, ResNet, converted

LAYERS = [
    lambda: nn.Linear(4, 4), lambda: nn.Conv2d(4, 4, 1), lambda: nn.LSTM(4, 4),
    lambda: Doubled(4, 4), lambda: nn.MultiheadAttention(4, 2), lambda: lp.nn.Linear(4, 4),
]  # fmt: skip


@each("make", LAYERS)
def test_a_name_is_the_recipe_of_a_model_that_is_one_layer(make: Any) -> None:
    for name in ("fp16_mixed", "hopper_fp8"):
        model = lp.convert(make(), name)
        assert converted(model) == {"": lp.recipe(name)}
        assert getattr(model, "attention_recipe", model.recipe) == lp.recipe(name)
        lp.set_recipe(lp.set_recipe(model, "fp32"), name)
        assert converted(model) == {"": lp.recipe(name)}


def test_a_recipe_and_a_name_without_a_policy_are_for_every_layer_and_so_are_values() -> None:
    for name in ("fp32", "hopper_fp8", "lba_m7e4", "h100_fp16"):
        assert {*converted(lp.convert(ResNet(), name)).values()} == {lp.recipe(name)}
    mixed = lp.recipe("fp16_mixed")
    assert {*converted(lp.convert(ResNet(), mixed)).values()} == {mixed}
    assert converted(lp.convert(ResNet(), {"fc": "mxfp8"})) == {"fc": lp.recipe("mxfp8")}
    # Where the layers are convolutions, every one of them would have blocks along "k".
    assert "stem" in converted(lp.convert(ResNet(), "mxfp8"))
    with pytest.raises(ValueError, match="'stem': input=block32_k_e4m3_up has blocks along 'k'"):
        lp.convert(ResNet(), lp.recipe("mxfp8"))
