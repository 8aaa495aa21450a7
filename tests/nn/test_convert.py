"""convert, set_recipe, revert: changes, unchanged parts, refusals."""

import copy
import pickle
import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC
from tests.nn.layer_cases import twins
from tests.nn.policy_models import Tagged, converted
from tests.support.autograd import Computes

FP8 = lp.recipe("fp8_wang2018")
BF16 = lp.recipe("bf16_mixed")


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)),
        nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip


IMAGES = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def test_convert_keeps_objects_hooks_mode_and_state() -> None:
    model = network().eval()
    calls: list[str] = []
    model[4].register_forward_hook(lambda *_: calls.append("forward"))
    model[4].register_full_backward_hook(lambda *_: calls.append("backward"))
    layers, parameters, keys = list(model), list(model.parameters()), list(model.state_dict())
    model[0].weight.requires_grad_(False)
    lp.convert(model, FP8)
    assert all(a is c for a, c in zip(model, layers, strict=True))
    assert all(a is c for a, c in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys
    assert not any(m.training for m in model.modules())
    model(IMAGES).sum().backward()
    assert calls == ["forward", "backward"]
    assert model[0].weight.grad is None


def test_convert_keeps_shared_modules_and_parameters() -> None:
    layer = nn.Linear(4, 4)
    tied = nn.Linear(4, 4)
    tied.weight = layer.weight
    model = nn.ModuleDict({"a": layer, "b": layer, "c": tied})
    lp.convert(model, FP8, include="b")
    assert model["a"] is model["b"]
    assert type(model["a"]) is lp.nn.Linear
    assert type(model["c"]) is nn.Linear
    assert model["c"].weight is model["a"].weight


@pytest.mark.parametrize("include, exclude, names", [
    ("2.*", None, ["2.0"]), (["0", "4"], None, ["0", "4"]),
    (nn.Conv2d, None, ["0", "2.0"]), (None, nn.Conv2d, ["4"]), (None, ["0", nn.Linear], ["2.0"]),
    (lambda name, module: module.bias.numel() == 2, "0", ["2.0"]),
    ((nn.Conv2d, nn.Linear), "2*", ["0", "4"]),
])  # fmt: skip
def test_convert_selects_layers(include: Any, exclude: Any, names: list[str]) -> None:
    assert list(converted(lp.convert(network(), FP8, include=include, exclude=exclude))) == names


def test_set_recipe_changes_converted_layers_only() -> None:
    model = lp.convert(network(), FP8, exclude="4")
    assert lp.set_recipe(model, {"0": BF16, nn.Linear: BF16}) is model
    assert converted(model) == {"0": BF16, "2.0": FP8}
    lp.set_recipe(model, "fp32")
    assert set(converted(model).values()) == {lp.Recipe()}


def test_revert_gives_every_class_back_and_a_users_own_subclass_the_fp32_recipe() -> None:
    model = network().append(Tagged(3, 3))
    before = [(type(m), sorted(vars(m))) for m in model.modules()]
    for converted_or_not in (lp.convert(model, FP8), model):
        assert lp.revert(converted_or_not) is model
        assert [(type(m), sorted(vars(m))) for m in model.modules()] == before

    class Mine(lp.nn.Linear):
        pass

    layer = lp.revert(Mine(3, 2, recipe=FP8))
    assert type(layer) is Mine
    assert layer.recipe == lp.Recipe()


def test_converted_subclass_keeps_its_class_through_copies() -> None:
    layer = lp.convert(Tagged(5, 3), DETERMINISTIC)
    x = torch.randn(4, 5)
    want = lp.functional.linear(x, layer.weight, layer.bias, recipe=DETERMINISTIC)
    for twin in twins(layer):
        assert isinstance(twin, Tagged) and isinstance(twin, lp.nn.Linear)
        assert twin.tag == "mine"
        assert "recipe=" in repr(twin) and repr(twin).startswith("Tagged(")
        assert_bit_equal(twin(x), want)
        assert type(lp.revert(twin)) is Tagged


def replaced() -> nn.Linear:
    layer = nn.Linear(3, 3)
    layer.forward = lambda x: x  # type: ignore[method-assign, assignment]
    return layer


def experts() -> nn.Module:
    """A product of a parameter that is no layer."""
    w = nn.Parameter(torch.randn(2, 4, 4))
    return Computes(lambda m, x: m.out(x @ m.w[0] + x @ m.w[1]), w=w, out=nn.Linear(4, 4))


NVFP4 = lp.policy("nvfp4")
CONVS = "2 Conv2d stay torch's own, because the policy has no arithmetic for their class"


def convolutions(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), *more)


@pytest.mark.parametrize("model, recipe, options, text", [
    # Classes without arithmetic are named with counts; layers left out on purpose are not.
    (convolutions(), NVFP4, {}, f"{CONVS}; no product of this model is emulated"),
    (nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 2)), lp.policy("te_delayed"), {},
     ""),
    (convolutions(nn.Linear(4, 4)), NVFP4, {"exclude": nn.Conv2d}, ""),
    (convolutions(nn.Linear(4, 4)), {nn.Linear: FP8}, {}, ""),
    (convolutions(), FP8, {}, ""), (convolutions(), "fp32", {}, ""),
    (nn.Sequential(nn.Embedding(4, 4), nn.LayerNorm(4)), FP8, {}, "no product of this model is"),
    (experts(), NVFP4, {}, r"1 Computes with stacks of weights stay .*{'': recipe} \|"),
    (nn.ModuleList([experts()]), {"0": NVFP4["*"]} | NVFP4, {}, ""),
    (nn.Sequential(replaced(), *convolutions()), NVFP4, {}, f"{CONVS}; no .*; left 1 selected"),
])  # fmt: skip
def test_convert_warns_once_of_what_nobody_left_out(
    model: Any, recipe: Any, options: Any, text: str
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lp.convert(model, recipe, **options)
    assert len(caught) == bool(text)
    for warning in caught:
        assert issubclass(warning.category, lp.nn.NotEmulatedWarning)
        assert re.search(text, str(warning.message)) and warning.filename == __file__


def test_convert_takes_attention_and_no_layer_of_its_projection() -> None:
    model = nn.ModuleDict({"a": nn.MultiheadAttention(4, 2), "b": nn.Linear(4, 4)})
    kind, projection = type(model["a"].out_proj), model["a"].out_proj.weight
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lp.convert(model, FP8)
    assert list(converted(model)) == ["a", "b"]
    assert type(model["a"].out_proj) is kind and model["a"].out_proj.weight is projection
    with pytest.raises(ValueError, match="no layer matched"):
        lp.convert(model, FP8, include="a.out_proj")


def test_convert_takes_the_linear_layer_of_transformers() -> None:
    layer = pytest.importorskip("transformers.pytorch_utils").Conv1D(3, 5)
    plain = layer(X)
    lp.convert(layer, DETERMINISTIC)
    want = lp.functional.linear(X, layer.weight.t(), layer.bias, recipe=DETERMINISTIC)
    for copied in (layer, *twins(layer)):
        assert_bit_equal(copied(X), want)
    # Its weight has a range for each column.
    lp.set_precision(lp.set_recipe(layer, "cpt_fu2021"), 3, 8)
    weight = lp.quantize(layer.weight, "affine3_axis1")
    assert_bit_equal(layer(X), torch.addmm(layer.bias, lp.quantize(X, "affine3"), weight))
    assert_bit_equal(lp.revert(layer)(X), plain)


X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [nn.Linear, Tagged])
@pytest.mark.parametrize("reverts_first", [False, True])
def test_parametrizations_stay(kind: Any, reverts_first: bool) -> None:
    model = nn.Sequential(weight_norm(kind(5, 3)), nn.Linear(3, 2))
    keys = list(model.state_dict())
    lp.convert(model, DETERMINISTIC)
    layer = model[0]
    assert isinstance(layer, kind) and parametrize.is_parametrized(layer)
    assert list(model.state_dict()) == keys
    want = lp.functional.linear(X, layer.weight, layer.bias, recipe=DETERMINISTIC)
    for copied in (layer, copy.deepcopy(layer)):
        assert_bit_equal(copied(X), want)
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        pickle.dumps(layer)
    if reverts_first:
        lp.revert(layer)
    parametrize.remove_parametrizations(layer, "weight")
    assert isinstance(layer, lp.nn.Linear) is not reverts_first
    assert type(lp.revert(layer)) is kind


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_convert_keeps_norms_that_are_hooks(norm: Any) -> None:
    torch.manual_seed(0)
    layer = norm(nn.Conv2d(2, 3, 2)).eval()
    keys, x = list(layer.state_dict()), torch.randn(1, 2, 4, 4)
    plain = layer(x)
    weight = layer.weight.detach().clone()
    lp.convert(nn.Sequential(layer), DETERMINISTIC)
    want = lp.functional.conv2d(x, weight, layer.bias, recipe=DETERMINISTIC)
    assert_bit_equal(layer(x), want)
    assert list(layer.state_dict()) == keys
    assert_bit_equal(lp.revert(layer)(x), plain)
