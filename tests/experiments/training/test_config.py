"""The configuration of a run: its sections, its flat names, the values it reads and refuses."""

import dataclasses
import json
from typing import Any

import pytest
from pydantic import Field
from torch import nn

import lpkernels as lp
from lpkernels.experiments.settings import option_of
from lpkernels.experiments.training.arithmetic import ArithmeticConfig, body_recipe, layer_recipes
from lpkernels.experiments.training.callback import CallbackConfig
from lpkernels.experiments.training.callbacks import CALLBACKS
from lpkernels.experiments.training.callbacks.loss_scale import LossScaleConfig
from lpkernels.experiments.training.callbacks.weight_update import WeightUpdateConfig
from lpkernels.experiments.training.config import RunConfig, flat_settings, flatten, sections
from tests.support.refusals import rejects

# First and last layer have the names of the bundled networks'.
NETWORK = nn.ModuleDict({"stem": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
EVERYTHING = RunConfig.of(
    name="a", recipe="fp8_wang2018", acc="e6m3_chunk16", lr=1, optimizer="adam", loss_scale=1024,
    weight_update="e6m9:stochastic", layer_accs=(("stem", "e6m9", "e6m9", "native"),),
)  # fmt: skip
# The recipe in every layer, as opposed to the method of that name.
WANG = str(lp.recipe("fp8_wang2018"))


def test_a_config_round_trips_through_json_and_flat_fields() -> None:
    read = RunConfig.from_dict(json.loads(json.dumps(EVERYTHING.to_dict())))
    assert read == EVERYTHING == RunConfig.of(**EVERYTHING.flat())
    assert hash(read) == hash(EVERYTHING)
    assert EVERYTHING.flat().keys() == flat_settings().keys()
    # Whole numbers are floats where floats are meant.
    assert json.dumps(RunConfig.of(lr=1).to_dict()) == json.dumps(RunConfig.of(lr=1.0).to_dict())
    tables = {"epochs": 3, "optimizer": {"optimizer": "adam", "lr": 1}, "loss_scale": 8.0}
    assert flatten(tables) == {"epochs": 3, "optimizer": "adam", "lr": 1, "loss_scale": 8.0}


def test_callbacks_are_in_their_order_absent_at_defaults_and_replaced_as_fields() -> None:
    callbacks = (WeightUpdateConfig(weight_update="e6m9"), LossScaleConfig(loss_scale=8.0))
    config = RunConfig(callbacks=callbacks)
    assert config.callbacks == callbacks[::-1]
    assert config == RunConfig.of(loss_scale=8.0, weight_update="e6m9")
    assert config.replace(weight_update="").callbacks == (LossScaleConfig(loss_scale=8.0),)
    assert RunConfig.of(loss_scale=1.0) == RunConfig()
    with pytest.raises(ValueError, match="callbacks: expected each once, got loss_scale, loss_"):
        RunConfig(callbacks=(callbacks[1], LossScaleConfig(loss_scale=4.0)))
    config = EVERYTHING.replace(epochs=3, lr=0.5, width=4)
    assert (config.epochs, config.optimizer.lr, config.workload.width) == (3, 0.5, 4)
    assert config.replace(epochs=10, lr=1, width=0) == EVERYTHING


test_config_of_another_version_is_refused = rejects(
    lambda values: RunConfig.from_dict(values, "9.9"),
    [
        ({"colour": 1}, "unknown field colour.*; written by lpkernels 9.9, this is"),
        ({"workload": {"colour": 1}}, "WorkloadConfig: unknown field colour.* written by lpker"),
        ({"callbacks": {"x": {}}}, r"unknown callback 'x'; import the module .* 9.9"),
    ],
)
test_config_refuses = rejects(
    lambda values: RunConfig.of(**values),
    [
        *(({f: 0}, f"{f}: expected greater .*, got 0") for f in ("epochs", "batch")),
        ({"recipe": "fp7"}, "ArithmeticConfig: recipe: .*fp7"),
        ({"recipe": "Recipe(inputs='e5m2')"}, r"recipe: Recipe\.parse: .*inputs"),
        ({"epoch": 3}, "unknown field epoch; expected one of epochs"),
        ({"lr": "x"}, "OptimizerConfig: lr: expected a valid number, got 'x'"),
        ({"device": "tpu7"}, "device: expected cpu, cuda .* got 'tpu7'"),
        ({"beta1": 0.5}, "beta1 is an argument of adam and adamw, got it with sgd"),
        ({"optimiser": {"lr": 1}}, "unknown section 'optimiser'; expected one of optimizer, "),
        ({"optimizer": {"epochs": 1}}, "section 'optimizer': unknown field epochs; expected one"),
        ({"lr": 1, "optimizer": {"lr": 1}}, "lr: given twice"),
    ],
    (ValueError, TypeError),
)


def test_fields_are_documented_and_have_names_of_their_own(monkeypatch) -> None:
    for section, fields in sections().items():
        for name, field in fields.items():
            assert str(field.description).endswith("."), (section, name)
            assert option_of(name, field).startswith("--") or name == "layer_accs"

    class Other(CallbackConfig):
        lr: float = Field(0.0, description="Another rate.")

    monkeypatch.setitem(CALLBACKS, "other", Other)
    with pytest.raises(ValueError, match=r"other.lr: section 'optimizer' has a field of that name"):
        flat_settings()


def recipes(**settings: Any) -> dict[Any, lp.Recipe]:
    return layer_recipes(ArithmeticConfig(**settings), NETWORK)


@pytest.mark.parametrize("name", lp.policies())
def test_a_name_is_the_method(name: str) -> None:
    assert list(recipes(recipe=name).items()) == list(lp.policy(name).items())
    assert body_recipe(ArithmeticConfig(recipe=name)) == lp.recipe(name)


def test_a_text_is_a_recipe_for_every_layer_and_settings_replace_parts() -> None:
    assert recipes(recipe=WANG) == {"*": lp.recipe("fp8_wang2018")}
    assert recipes() == {"*": lp.Recipe()}
    body = recipes(operands="affine4", grads="affine8:stochastic", acc="e6m5:stochastic")["*"]
    assert str(body.input) == str(body.weight) == "affine4"
    assert str(body.grad_output) == "affine8:stochastic"
    assert body.fprop == body.wgrad == lp.Accumulator("e6m5", "stochastic")
    text = "Recipe(input='e5m2', wgrad='e6m9_chunk64')"
    assert recipes(recipe=text) == {"*": lp.Recipe.parse(text)}
    assert recipes(recipe=text, acc="native") == {"*": lp.Recipe(input="e5m2")}


def test_settings_change_the_layers_that_a_method_quantizes_and_no_other() -> None:
    acc = lp.Accumulator("e6m3", chunk=16)
    method = lp.policy("fp8_wang2018")
    narrow = recipes(recipe="fp8_wang2018", acc="e6m3_chunk16")
    for key, recipe in method.items():
        changed = dataclasses.replace(recipe, fprop=acc, dgrad=acc, wgrad=acc)
        assert narrow[key] == (recipe if recipe.is_torch else changed), key
    # Norms that read and write fp16 multiply nothing; the last layer of mxfp8 is torch's own.
    half = recipes(recipe="fp16_mixed", operands="e4m3", grads="e5m2", acc="e6m9")
    assert half[nn.LayerNorm] == lp.policy("fp16_mixed")[nn.LayerNorm]
    assert [str(half["*"].input), str(half["*"].grad_output)] == ["e4m3", "e5m2"]
    # An edge is the format of the ends in place of the method's own.
    ends = recipes(recipe="fp8_wang2018", edge="bf16")
    assert {str(ends["head"].weight), str(ends["stem"].input)} == {"e8m7"}
    assert ends["stem"].weight == method["*"].weight


@pytest.mark.parametrize("recipe", [WANG, "mxfp8"], ids=["recipe", "method"])
def test_layers_are_left_to_torch(recipe: str) -> None:
    left = dict.fromkeys(["stem", "he*"], lp.Recipe())
    assert recipes(recipe=recipe, torch_layers="stem, he*") == {**left, **recipes(recipe=recipe)}
    ends = recipes(recipe="fp8_wang2018", edge="bf16", torch_layers="he*")
    assert [*ends][:2] == ["he*", "stem"]


def test_edge_widens_the_first_input_and_the_last_layers_operands() -> None:
    ends = recipes(recipe=WANG, edge="e6m9")
    assert ends.keys() == {"*", "stem", "head"}
    body, stem, head = (ends[name] for name in ("*", "stem", "head"))
    assert body == lp.recipe("fp8_wang2018")
    assert str(stem.input) == "e6m9"
    assert (stem.weight, stem.grad_output) == (body.weight, body.grad_output)
    assert {*map(str, (head.input, head.weight, head.grad_output))} == {"e6m9"}
    assert (head.fprop, head.dgrad, head.wgrad) == (body.fprop, body.dgrad, body.wgrad)
    # An unquantised recipe is left alone.
    assert {*recipes(recipe="fp32", edge="e6m9").values()} == {lp.recipe("fp32")}
    message = r"edge: the model has no layer 'stem'; .* or give a method's name"
    with pytest.raises(ValueError, match=message):
        layer_recipes(ArithmeticConfig(recipe="fp8_wang2018", edge="e6m9"), nn.Linear(2, 2))


def test_a_running_range_goes_where_the_input_has_another_format() -> None:
    cyclic = str(lp.recipe("cpt_fu2021"))
    ends = recipes(recipe=cyclic, operands="affine4", edge="bf16")
    assert str(ends["*"].input_range) == "running:0.9"
    assert ends["head"].input_range is ends["stem"].input_range is None
    assert recipes(recipe=cyclic, operands="e4m3")["*"].input_range is None
