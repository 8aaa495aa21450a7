"""Layers with a running range of their input or delayed scales: which layers have the buffers, how
they come and go, load and stay in float32; averages of ranges; the ranges of cpt_fu2021."""

import copy
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.nn.layer_cases import (
    LAYERS,
    ONE_INPUT,
    assert_steps_alike,
    converted,
    inputs,
    plain,
    same,
)
from tests.nn.policy_models import Sealed


class State(NamedTuple):
    """A recipe whose layers have buffers, the recipe without them, and the names of the buffers.

    start: what the warning says of a state_dict that lacks the buffers.
    """

    recipe: lp.Recipe
    without: lp.Recipe
    keys: list[str]
    start: str


RANGE = lp.Recipe(input="affine4", input_range="running:0.5")
SCALES = lp.Recipe(
    input="tensor_e4m3_te", weight="tensor_e4m3_te", grad_output="tensor_e5m2_te",
    scaling=lp.DelayedScaling(4),
)  # fmt: skip
STATES = {
    "range": State(
        RANGE,
        replace(RANGE, input_range=None),
        ["input_range", "input_range_weight"],
        "the layer keeps",
    ),
    "scales": State(
        SCALES,
        replace(SCALES, scaling=None),
        [f"scaling.{role}_{what}" for role in ("input", "weight", "grad_output")
         for what in ("history", "scale")],
        "the layer starts",
    ),
}  # fmt: skip


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest) -> State:
    return STATES[request.param]


def trained(name: str, recipe: lp.Recipe) -> Any:
    layer = converted(name, recipe)
    layer(*inputs(name)).square().sum().backward()
    lp.nn.update_scales(layer)
    layer.zero_grad()
    return layer


@pytest.mark.parametrize("name", ONE_INPUT)
def test_buffers_come_and_go_with_the_recipe(name: str, state: State) -> None:
    torchs = plain(name)
    keys = list(torchs.state_dict())
    layer = trained(name, state.recipe)
    assert list(layer.state_dict()) == keys + state.keys
    layer.recipe = state.without
    assert list(layer.state_dict()) == keys
    layer.recipe = state.recipe
    assert list(layer.state_dict()) == keys + state.keys
    lp.revert(layer)
    assert type(layer) is type(torchs) and vars(layer).keys() == vars(torchs).keys()
    assert list(layer.state_dict()) == keys
    own = lp.revert(lp.nn.Linear(5, 3, recipe=state.recipe))
    assert list(own.state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ONE_INPUT])
def test_other_layers_keep_no_range_and_refuse_scales(name: str) -> None:
    layer = converted(name, lp.recipe("cpt_fu2021"))
    assert list(layer.state_dict()) == list(plain(name).state_dict())
    for mode in (layer, layer.eval()):
        mode(*inputs(name))
    with pytest.raises(ValueError, match=rf"{name}: delayed:history=4:max is for linear"):
        converted(name, SCALES)


def test_a_state_without_the_buffers_loads_with_a_warning(state: State) -> None:
    fresh, layer = converted("Linear", state.recipe), trained("Linear", state.recipe)
    whole = copy.deepcopy(layer.state_dict())
    with pytest.warns(UserWarning, match=f"no 0.{state.keys[0]}, 0.{state.keys[1]}.*{state.start}"):
        nn.Sequential(layer).load_state_dict(nn.Sequential(plain("Linear")).state_dict())
    # A range stays; scales and their histories start anew.
    left = whole if state.start == "the layer keeps" else fresh.state_dict()
    same([layer.state_dict()[key] for key in state.keys], [left[key] for key in state.keys])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh.load_state_dict(whole)
        plain("Linear").load_state_dict(whole, strict=False)
    same(fresh.state_dict().values(), whole.values())
    with pytest.raises(RuntimeError, match=r"Missing key.*bias"):
        fresh.load_state_dict({k: v for k, v in whole.items() if k != "bias"})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ranges_and_scales_stay_in_float32(dtype: torch.dtype) -> None:
    layer, (x,) = trained("Linear", RANGE), inputs("Linear")
    buffers = copy.deepcopy([*layer.buffers()])
    same([*layer.to(dtype).buffers()], buffers)
    layer = trained("Linear", SCALES)
    scales = copy.deepcopy(layer.scaling.state_dict())
    layer.to(dtype)
    same(layer.scaling.state_dict().values(), scales.values())
    layer(x.to(dtype)).sum().backward()
    assert layer.scaling.input_history[0] == x.to(dtype).abs().max()
    assert layer.weight.grad.dtype == dtype


def test_a_conversion_that_fails_leaves_no_buffers(state: State) -> None:
    model = nn.Sequential(plain("Linear"), Sealed(2, 2))
    with pytest.raises(TypeError, match="cannot be derived from"):
        lp.convert(model, state.recipe)
    assert not list(model.buffers())


def test_a_lazy_layer_starts_with_its_first_batch() -> None:
    layer = lp.nn.LazyLinear(3, recipe=RANGE)
    layer(torch.tensor([[-1.0, 0.0, 1.0]]))
    assert type(layer) is lp.nn.Linear and layer.input_range.tolist() == [-0.5, 0.5]


def test_a_recipe_that_is_given_in_inference_mode_trains(state: State) -> None:
    layer = nn.Linear(4, 3)
    with torch.inference_mode():
        lp.convert(layer, state.recipe)
    layer(torch.ones(2, 4)).sum().backward()


PLAIN = lp.Recipe(input="affine4")
DEBIASED = lp.Recipe(input="affine4", input_range="running:0.5:debiased")
# Ranges of three batches.
ENDS = [(-1.0, 2.0), (-3.0, 0.5), (0.25, 1.0)]


def batch(low: float, high: float) -> torch.Tensor:
    """A batch of the shape (3, 5) with these ends."""
    torch.manual_seed(2)
    x = torch.rand(3, 5) * (high - low) + low
    x[0, 0], x[2, 4] = low, high
    return x


def after_batches(recipe: lp.Recipe) -> Any:
    layer = converted("Linear", recipe)
    for ends in ENDS:
        layer(batch(*ends))
    return layer


@pytest.mark.parametrize("name", ONE_INPUT)
def test_training_rounds_in_the_range_of_the_batch(name: str) -> None:
    recipe = lp.recipe("cpt_fu2021")
    layer, want = converted(name, recipe), converted(name, replace(recipe, input_range=None))
    assert_steps_alike(layer, layer, *inputs(name), other=want)


@pytest.mark.parametrize("debiased", [False, True])
def test_evaluation_rounds_in_the_average_of_ranges(debiased: bool) -> None:
    layer = after_batches(DEBIASED if debiased else RANGE)
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


@pytest.mark.parametrize("recipe", [RANGE, DEBIASED])
def test_evaluation_before_training_takes_the_range_of_the_input(recipe: lp.Recipe) -> None:
    x = batch(-1.0, 3.0)
    want = converted("Linear", PLAIN)(x)
    assert_bit_equal(converted("Linear", recipe).eval()(x), want)
    layer = after_batches(recipe).eval()
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
    layer = converted("Linear", replace(RANGE, input_range=lp.RunningRange(0.0)))
    layer(batch(-1.0, 1.0))
    y = layer(x)
    assert_bit_equal(y, converted("Linear", PLAIN)(x))
    assert layer.input_range.tolist() == list(ends or (-1.0, 1.0))


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


@pytest.mark.parametrize("name", ONE_INPUT)
def test_weight_has_a_range_for_each_output_channel(name: str) -> None:
    model = nn.Sequential(plain(name), nn.Linear(1, 1))
    layer = lp.convert(model, lp.policy("cpt_fu2021"))[0]
    recipe, axis = layer.recipe, 1 if "Transpose" in name else 0
    assert recipe.weight is not None
    rounded = lp.quantize(layer.weight, recipe.weight)
    for i in range(layer.weight.shape[axis]):
        alone = lp.quantize(layer.weight.select(axis, i), "affine8")
        assert_bit_equal(rounded.select(axis, i), alone)
