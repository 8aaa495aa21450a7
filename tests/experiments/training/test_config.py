"""The configuration of a run and what it means for the layers."""

import pytest

import lpkernels as lp
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.precision import body_recipe, layer_recipes, weight_quantizer


def test_config_round_trips_through_plain_values() -> None:
    config = RunConfig(name="a", recipe="fp8_wang2018", acc="e6m3", chunk=16)
    assert RunConfig.from_dict(config.to_dict()) == config
    assert hash(RunConfig.from_dict(config.to_dict())) == hash(config)


def test_config_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown field colour; written by another version"):
        RunConfig.from_dict({"colour": 1})


@pytest.mark.parametrize("field", ["width", "epochs", "batch"])
def test_config_refuses_values_below_one(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        RunConfig(**{field: 0})


def test_config_refuses_impossible_scale_and_stray_chunk() -> None:
    with pytest.raises(ValueError, match=r"must be positive, got lr=0.1 and loss_scale=0.0"):
        RunConfig(loss_scale=0.0)
    with pytest.raises(ValueError, match="chunk and acc_rounding belong to acc"):
        RunConfig(chunk=8)


def test_acc_replaces_all_three_accumulators_and_nothing_else() -> None:
    named = lp.recipe("fp8_wang2018")
    body = body_recipe(RunConfig(recipe="fp8_wang2018", acc="e6m3", chunk=16))
    assert body.fprop == body.dgrad == body.wgrad == lp.Accumulator("e6m3", chunk=16)
    assert (body.input, body.weight, body.grad_output) == (
        named.input,
        named.weight,
        named.grad_output,
    )


def test_edge_widens_the_first_input_and_the_last_layers_operands() -> None:
    recipes = layer_recipes(RunConfig(recipe="fp8_wang2018", edge="e6m9"))
    assert isinstance(recipes, dict)
    body, stem, head = recipes["*"], recipes["stem"], recipes["head"]
    assert body == lp.recipe("fp8_wang2018")
    e6m9 = lp.parse_format("e6m9")
    assert stem.input.fmt == e6m9
    assert (stem.weight, stem.grad_output) == (body.weight, body.grad_output)
    assert head.input.fmt == head.weight.fmt == head.grad_output.fmt == e6m9
    assert (head.fprop, head.dgrad, head.wgrad) == (body.fprop, body.dgrad, body.wgrad)


def test_edge_leaves_an_unquantised_recipe_alone() -> None:
    recipes = layer_recipes(RunConfig(recipe="fp32", edge="e6m9"))
    assert isinstance(recipes, dict)
    assert set(recipes.values()) == {lp.recipe("fp32")}


def test_weight_quantizer_is_read_from_text() -> None:
    assert weight_quantizer(RunConfig()) is None
    quantizer = weight_quantizer(RunConfig(weight_update="e6m9:stochastic"))
    assert quantizer is not None and quantizer.rounding == "stochastic"
