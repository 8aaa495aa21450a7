"""Layers with a running range of their input: two buffers, averages, evaluation; cpt_fu2021."""

import copy
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.nn.layer_cases import LAYERS, converted, inputs, plain, same, step
from tests.nn.policy_models import Sealed

BUFFERS = ["input_range", "input_range_weight"]
ONE_INPUT = {
    "Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"
}  # fmt: skip
PLAIN = lp.Recipe(input="affine4")
HALF = lp.Recipe(input="affine4", input_range="running:0.5")
DEBIASED = lp.Recipe(input="affine4", input_range="running:0.5:debiased")
# Ranges of three batches.
ENDS = [(-1.0, 2.0), (-3.0, 0.5), (0.25, 1.0)]


def batch(low: float, high: float) -> torch.Tensor:
    """A batch of the shape (3, 5) with these ends."""
    torch.manual_seed(2)
    x = torch.rand(3, 5) * (high - low) + low
    x[0, 0], x[2, 4] = low, high
    return x


def trained(recipe: lp.Recipe, count: int = 3) -> Any:
    layer = converted("Linear", recipe)
    for ends in ENDS[:count]:
        layer(batch(*ends))
    return layer


@pytest.mark.parametrize("name", LAYERS)
def test_only_layers_of_one_input_have_buffers(name: str) -> None:
    layer = converted(name, lp.recipe("cpt_fu2021"))
    keys = list(plain(name).state_dict())
    assert set(layer.state_dict()) == {*keys, *(BUFFERS if name in ONE_INPUT else [])}
    x = inputs(name)
    layer(*x)
    layer.eval()
    layer(*x)
    layer.recipe = replace(lp.recipe("cpt_fu2021"), input_range=None)
    assert list(layer.state_dict()) == keys


@pytest.mark.parametrize("name", sorted(ONE_INPUT))
def test_training_rounds_in_the_range_of_the_batch(name: str) -> None:
    recipe = lp.recipe("cpt_fu2021")
    layer, want = converted(name, recipe), converted(name, replace(recipe, input_range=None))
    args = inputs(name)
    same(step(layer, layer, *args), step(want, want, *args))


@pytest.mark.parametrize("debiased", [False, True])
def test_evaluation_rounds_in_the_average_of_ranges(debiased: bool) -> None:
    layer = trained(DEBIASED if debiased else HALF)
    low = high = weight = 0.0
    for one, other in ENDS:
        low, high = 0.5 * low + 0.5 * one, 0.5 * high + 0.5 * other
        weight = 0.5 * weight + 0.5
    assert layer.input_range.tolist() == [low, high] and layer.input_range_weight == weight
    if debiased:
        low, high = low / weight, high / weight
    x = batch(-2.0, 2.0)
    layer.eval()
    state = copy.deepcopy(layer.state_dict())
    step_of = (torch.tensor(high) - torch.tensor(low)).item() / 15
    codes = ((x.clamp(low, high) - low) / step_of).round()
    want = nn.functional.linear(codes * step_of + low, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), want)
    for key, value in layer.state_dict().items():
        assert_bit_equal(value, state[key])


@pytest.mark.parametrize("recipe", [HALF, DEBIASED])
def test_evaluation_before_training_takes_the_range_of_the_input(recipe: lp.Recipe) -> None:
    x = batch(-1.0, 3.0)
    want = converted("Linear", PLAIN)(x)
    assert_bit_equal(converted("Linear", recipe).eval()(x), want)
    layer = trained(recipe).eval()
    assert not torch.equal(layer(x), want)
    layer.reset_range()
    assert layer.input_range.tolist() == [0, 0] and layer.input_range_weight == 0
    assert_bit_equal(layer(x), want)


@pytest.mark.parametrize(
    "x, ends",
    [
        (torch.tensor([[float("nan"), 1.0, -float("inf"), 3.0, 2.0]]), (1.0, 3.0)),
        (torch.full((1, 5), float("inf")), None),
        (torch.full((2, 5), float("nan")), None),
        (torch.zeros(0, 5), None),
        (torch.full((2, 5), -2.0), (-2.0, -2.0)),
    ],
)
def test_only_finite_values_count(x: torch.Tensor, ends: tuple[float, float] | None) -> None:
    layer = converted("Linear", replace(HALF, input_range=lp.RunningRange(0.0)))
    layer(batch(-1.0, 1.0))
    y = layer(x)
    assert_bit_equal(y, converted("Linear", PLAIN)(x))
    assert layer.input_range.tolist() == list(ends or (-1.0, 1.0))


def test_state_dict_without_a_running_range_loads_with_a_warning() -> None:
    model = nn.Sequential(plain("Linear"), nn.ReLU())
    state = model.state_dict()
    lp.convert(model, HALF)
    with pytest.warns(UserWarning, match="no 0.input_range, 0.input_range_weight; the layer keeps"):
        model.load_state_dict(state)
    whole = trained(HALF).state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model[0].load_state_dict(whole)
        plain("Linear").load_state_dict(state, strict=False)
    assert_bit_equal(model[0].input_range, whole["input_range"])
    with pytest.raises(RuntimeError, match=r"Missing key.*bias"):
        model[0].load_state_dict({k: v for k, v in whole.items() if k != "bias"})


def test_revert_leaves_nothing_behind() -> None:
    layer = trained(HALF)
    lp.revert(layer)
    assert type(layer) is nn.Linear and vars(layer).keys() == vars(plain("Linear")).keys()
    assert list(layer.state_dict()) == list(plain("Linear").state_dict())
    own = lp.nn.Linear(5, 3, recipe=HALF)
    lp.revert(own)
    assert list(own.state_dict()) == ["weight", "bias"]


def test_a_conversion_that_fails_leaves_no_buffers_and_lazy_layers_start_with_them() -> None:
    model = nn.Sequential(plain("Linear"), Sealed(2, 2))
    with pytest.raises(TypeError, match="cannot be derived from"):
        lp.convert(model, HALF)
    assert not list(model.buffers())
    layer = lp.nn.LazyLinear(3, recipe=HALF)
    layer(batch(-1.0, 1.0))
    assert type(layer) is lp.nn.Linear and layer.input_range.tolist() == [-0.5, 0.5]


@pytest.mark.parametrize("recipe", ["cpt_fu2021", "te_delayed"])
def test_a_recipe_that_is_given_in_inference_mode_trains(recipe: str) -> None:
    layer = nn.Linear(4, 3)
    with torch.inference_mode():
        lp.convert(layer, recipe)
    layer(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize("training", [True, False])
def test_gradient_passes_the_input_quantizer_as_it_is(training: bool) -> None:
    layer = converted("Linear", lp.Recipe(input="affine2", input_range="running:0.5"))
    layer(torch.rand(6, 5))
    layer.train(training)
    # In evaluation half of the values lie outside of the range.
    x = (4 * torch.randn(6, 5)).requires_grad_()
    y = layer(x)
    error = torch.randn_like(y)
    y.backward(error)
    assert_bit_equal(x.grad, error @ layer.weight)


@pytest.mark.parametrize(
    "name", ["Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d"]
)
def test_weight_has_a_range_for_each_output_channel(name: str) -> None:
    model = nn.Sequential(plain(name), nn.Linear(1, 1))
    layer = lp.convert(model, lp.policy("cpt_fu2021"))[0]
    recipe, axis = layer.recipe, 1 if "Transpose" in name else 0
    assert recipe.weight is not None
    rounded = lp.quantize(layer.weight, recipe.weight)
    for i in range(layer.weight.shape[axis]):
        alone = lp.quantize(layer.weight.select(axis, i), "affine8")
        assert_bit_equal(rounded.select(axis, i), alone)


def test_transformers_linear_layer_has_a_range_for_each_column() -> None:
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(0)
    layer = lp.convert(conv1d(3, 5), lp.recipe("cpt_fu2021"))
    layer.set_precision(3, 8)
    x = torch.randn(4, 5)
    weight = lp.quantize(layer.weight, "affine3_axis1")
    assert_bit_equal(layer(x), torch.addmm(layer.bias, lp.quantize(x, "affine3"), weight))
