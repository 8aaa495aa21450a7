"""convert, set_recipe, revert: what changes, what stays, what is refused."""

import copy
import pickle
import sys
import types
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC

FP8 = lp.recipe("fp8_wang2018")
BF16 = lp.recipe("bf16_mixed")


class Tagged(nn.Linear):
    """A subclass that inherits forward."""

    tag = "mine"


class Doubled(nn.Linear):
    """A subclass with its own forward."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


IMAGES = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def converted(model: nn.Module) -> dict[str, lp.Recipe]:
    """The recipe of every converted layer, by name."""
    modules = model.named_modules()
    return {name: m.recipe for name, m in modules if hasattr(m, "_recipe")}


def test_convert_makes_every_layer_compute_by_the_recipe() -> None:
    model = network()
    assert lp.convert(model, DETERMINISTIC) is model
    assert converted(model) == dict.fromkeys(["0", "2.0", "4"], DETERMINISTIC)
    assert [type(model[i]) for i in (0, 4)] == [lp.nn.Conv2d, lp.nn.Linear]
    conv = model[0]
    want = lp.functional.conv2d(IMAGES, conv.weight, conv.bias, recipe=DETERMINISTIC)
    assert_bit_equal(conv(IMAGES), want)


def test_convert_by_name_to_fp32_changes_no_bit() -> None:
    model = network().eval()
    want = model(IMAGES)
    assert_bit_equal(lp.convert(model, "fp32")(IMAGES), want)


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


@pytest.mark.parametrize(
    "include, exclude, names",
    [
        ("2.*", None, ["2.0"]),
        (["0", "4"], None, ["0", "4"]),
        (nn.Conv2d, None, ["0", "2.0"]),
        (None, nn.Conv2d, ["4"]),
        (None, ["0", nn.Linear], ["2.0"]),
        (lambda name, module: module.bias.numel() == 2, "0", ["2.0"]),
        ((nn.Conv2d, nn.Linear), "2*", ["0", "4"]),
    ],
    ids=["glob", "names", "class", "not class", "not mixed", "function", "tuple"],
)
def test_convert_selects_layers(include: Any, exclude: Any, names: list[str]) -> None:
    assert list(converted(lp.convert(network(), FP8, include=include, exclude=exclude))) == names


def test_convert_takes_the_first_matching_rule() -> None:
    rules = {"0": BF16, nn.Conv2d: "fp8_wang2018", lambda name, module: name == "9": "fp32"}
    assert converted(lp.convert(network(), rules)) == {"0": BF16, "2.0": FP8}


def test_convert_again_gives_the_new_recipe() -> None:
    model = lp.convert(network(), FP8)
    lp.convert(model, BF16, include="4")
    assert converted(model) == {"0": FP8, "2.0": FP8, "4": BF16}


def test_convert_a_layer_itself() -> None:
    layer = nn.Linear(3, 2)
    assert lp.convert(layer, FP8) is layer
    assert type(layer) is lp.nn.Linear
    assert type(lp.revert(layer)) is nn.Linear


def test_set_recipe_changes_converted_layers_only() -> None:
    model = lp.convert(network(), FP8, exclude="4")
    assert lp.set_recipe(model, {"0": BF16, nn.Linear: BF16}) is model
    assert converted(model) == {"0": BF16, "2.0": FP8}
    lp.set_recipe(model, "fp32")
    assert set(converted(model).values()) == {lp.Recipe()}


def test_set_recipe_takes_layers_built_from_lpkernels() -> None:
    assert lp.set_recipe(lp.nn.Linear(3, 2), FP8).recipe == FP8


def test_revert_gives_every_class_back() -> None:
    model = network()
    model.append(Tagged(3, 3))
    before = [type(m) for m in model.modules()]
    attributes = [sorted(vars(m)) for m in model.modules()]
    assert lp.revert(lp.convert(model, FP8)) is model
    assert [type(m) for m in model.modules()] == before
    assert [sorted(vars(m)) for m in model.modules()] == attributes
    assert lp.revert(model) is model


def test_revert_of_a_users_own_subclass_is_the_fp32_recipe() -> None:
    class Mine(lp.nn.Linear):
        pass

    layer = lp.revert(Mine(3, 2, recipe=FP8))
    assert type(layer) is Mine
    assert layer.recipe == lp.Recipe()


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_converted_subclass_keeps_its_class_through_copies(how: str) -> None:
    layer = lp.convert(Tagged(5, 3), DETERMINISTIC)
    twin = pickle.loads(pickle.dumps(layer)) if how == "pickle" else copy.deepcopy(layer)
    assert isinstance(twin, Tagged) and isinstance(twin, lp.nn.Linear)
    assert twin.tag == "mine"
    assert "recipe=" in repr(twin) and repr(twin).startswith("Tagged(")
    x = torch.randn(4, 5)
    want = lp.functional.linear(x, layer.weight, layer.bias, recipe=DETERMINISTIC)
    assert_bit_equal(twin(x), want)
    assert type(lp.revert(twin)) is Tagged


@pytest.mark.parametrize("model", [Tagged(5, 3), nn.Linear(5, 3)], ids=["subclass", "torch's"])
def test_class_of_a_converted_module_builds_one_with_torchs_arithmetic(model: nn.Module) -> None:
    layer = lp.convert(copy.deepcopy(model), DETERMINISTIC)
    anew: Any = type(layer)(5, 3)
    anew.load_state_dict(model.state_dict())
    x = torch.randn(4, 5)
    assert_bit_equal(anew(x), model(x))
    assert anew.recipe == lp.Recipe()


def test_convert_leaves_a_layer_with_its_own_forward_and_says_so() -> None:
    model = nn.Sequential(Doubled(3, 3), nn.Linear(3, 3))
    with pytest.warns(UserWarning, match=r"left 1 .*'0': Doubled has its own forward.*exclude="):
        lp.convert(model, FP8, functions=False)
    assert type(model[0]) is Doubled
    assert list(converted(model)) == ["1"]


def test_convert_leaves_a_layer_whose_forward_was_replaced() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].forward = lambda x: x
    with pytest.warns(UserWarning, match="'0': its forward was replaced on the object"):
        lp.convert(model, FP8)
    assert list(converted(model)) == ["1"]


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


def test_convert_warns_of_nothing_that_is_excluded() -> None:
    model = nn.Sequential(Doubled(3, 3), nn.Linear(3, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lp.convert(model, FP8, exclude=Doubled)


@pytest.mark.parametrize("include", ["*.linear1", "*.self_attn"])
def test_convert_switches_off_the_fused_path_of_a_transformer(include: str) -> None:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(block, 2).eval()
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, True]] * 2)
    names: list[str] = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if func.namespace == "lpkernels":
                names.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    def run() -> torch.Tensor:
        with torch.no_grad(), Products():
            return encoder(x, src_key_padding_mask=padding)[:, :2]

    plain = run()
    lp.convert(encoder, DETERMINISTIC, include=include)
    assert not names and not torch.allclose(run(), plain, atol=1e-4)
    # Each block computes one product, or four: the projection, scores, values and out_proj.
    assert names.count("lpkernels::_matmul") == (2 if include == "*.linear1" else 8)
    lp.revert(encoder)
    assert encoder.use_nested_tensor
    assert encoder.layers[0].activation_relu_or_gelu == 1
    torch.testing.assert_close(run(), plain)


def test_convert_on_the_meta_device() -> None:
    model = lp.convert(network().to("meta"), DETERMINISTIC)
    assert model(IMAGES.to("meta")).shape == (2, 3)
    model.to_empty(device="cpu").load_state_dict(network().state_dict())
    assert model(IMAGES).isfinite().all()


def test_convert_twice_is_convert_once() -> None:
    once, twice = (lp.convert(network(), DETERMINISTIC) for _ in range(2))
    lp.convert(twice, DETERMINISTIC)
    assert [type(m) for m in twice.modules()] == [type(m) for m in once.modules()]
    assert repr(twice) == repr(once)


def test_optimizers_keep_working_across_a_conversion() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for recipe in (None, DETERMINISTIC, None):
        lp.revert(model) if recipe is None else lp.convert(model, recipe)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        model(IMAGES).square().mean().backward()
        optimizer.step()
        assert any(not torch.equal(a, c) for a, c in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    "lazy, x, becomes",
    [
        (nn.LazyLinear(3), torch.randn(2, 5), lp.nn.Linear),
        (nn.LazyConv2d(3, 2), torch.randn(1, 2, 4, 4), lp.nn.Conv2d),
    ],
    ids=["LazyLinear", "LazyConv2d"],
)
def test_convert_takes_lazy_layers(lazy: nn.Module, x: torch.Tensor, becomes: type) -> None:
    layer: Any = lp.convert(lazy, DETERMINISTIC)
    y = layer(x)
    assert type(layer) is becomes
    assert layer.recipe == DETERMINISTIC
    assert_bit_equal(layer(x), y)


def test_convert_takes_the_linear_layer_of_transformers(monkeypatch: Any) -> None:
    # A stand-in with the names and the layout of transformers.pytorch_utils.Conv1D.
    stand_in = types.ModuleType("transformers.pytorch_utils")
    source = (
        "import torch\n"
        "class Conv1D(torch.nn.Module):\n"
        "    def __init__(self, nf, nx):\n"
        "        super().__init__()\n"
        "        self.nf, self.nx = nf, nx\n"
        "        self.weight = torch.nn.Parameter(torch.randn(nx, nf))\n"
        "        self.bias = torch.nn.Parameter(torch.randn(nf))\n"
        "    def forward(self, x):\n"
        "        return x @ self.weight + self.bias\n"
    )
    exec(source, stand_in.__dict__)
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    layer = stand_in.Conv1D(3, 5)
    x = torch.randn(2, 4, 5)
    plain = layer(x)
    lp.convert(layer, DETERMINISTIC)
    want = lp.functional.linear(x, layer.weight.t(), layer.bias, recipe=DETERMINISTIC)
    assert_bit_equal(layer(x), want)
    assert_bit_equal(copy.deepcopy(layer)(x), want)
    assert_bit_equal(lp.revert(layer)(x), plain)


def test_converted_model_trains_alike_from_the_same_seed() -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(4)
        model = lp.convert(network(), STOCHASTIC)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(IMAGES).square().mean().backward()
            optimizer.step()
        return list(model.parameters())

    for a, c in zip(run(), run(), strict=True):
        assert_bit_equal(a, c)


@pytest.mark.parametrize(
    "call, error, match",
    [
        (lambda: lp.convert(IMAGES, FP8), TypeError, "convert: model must be a torch.nn.Module"),
        (lambda: lp.set_recipe(3, FP8), TypeError, "set_recipe: model must be a torch.nn.Module"),
        (lambda: lp.revert(None), TypeError, "revert: model must be .* got NoneType"),
        (lambda: lp.convert(network(), "fp9"), ValueError, "unknown name 'fp9'"),
        (
            lambda: lp.convert(network(), {"0": 3}),
            TypeError,
            "expected a Recipe or its name, got 3",
        ),
        (lambda: lp.convert(network(), {3: FP8}), TypeError, "key of the mapping must be a glob"),
        (lambda: lp.convert(network(), FP8, include=3), TypeError, "include must be a glob.* int"),
        (lambda: lp.convert(network(), FP8, exclude=[3]), TypeError, "exclude must be a glob"),
        (
            lambda: lp.convert(network(), FP8, include="layer*"),
            ValueError,
            r"convert: include='layer\*' fits the name of no module\. A glob is compared ",
        ),
        (
            lambda: lp.convert(network(), {nn.Conv3d: FP8, nn.Bilinear: BF16}),
            ValueError,
            r"no layer matched \(recipe for Conv3d, Bilinear\); the model has '0' \(Conv2d\),",
        ),
        (lambda: lp.convert(nn.ReLU(), FP8), ValueError, "none of the kind; .*torch.nn.Linear"),
        (
            lambda: lp.convert(Doubled(2, 2), FP8, functions=False),
            ValueError,
            "Doubled has its own forward",
        ),
        (
            lambda: lp.convert(network(), FP8, functions="no"),
            TypeError,
            "functions must be True or False, got 'no'",
        ),
        (lambda: lp.set_recipe(network(), FP8), ValueError, "lp.convert makes them"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_conversion_refuses_wrong_arguments(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
