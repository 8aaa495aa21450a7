"""Linear layers and convolutions: torch.nn's modules with another arithmetic."""

import copy
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC

LAYERS: dict[str, tuple[str, tuple[Any, ...], tuple[int, ...]]] = {
    "Linear": ("Linear", (5, 3), (4, 5)),
    "Conv1d": ("Conv1d", (2, 4, 3), (2, 2, 7)),
    "Conv2d": ("Conv2d", (2, 4, 3), (2, 2, 5, 6)),
    "Conv3d": ("Conv3d", (2, 4, 2), (1, 2, 3, 4, 3)),
    "ConvTranspose1d": ("ConvTranspose1d", (2, 4, 3), (2, 2, 7)),
    "ConvTranspose2d": ("ConvTranspose2d", (2, 4, 3), (2, 2, 5, 6)),
    "ConvTranspose3d": ("ConvTranspose3d", (2, 4, 2), (1, 2, 2, 3, 2)),
}
FUNCTIONS = {
    "Linear": lp.functional.linear,
    "Conv1d": lp.functional.conv1d,
    "Conv2d": lp.functional.conv2d,
    "Conv3d": lp.functional.conv3d,
    "ConvTranspose1d": lp.functional.conv_transpose1d,
    "ConvTranspose2d": lp.functional.conv_transpose2d,
    "ConvTranspose3d": lp.functional.conv_transpose3d,
}
layers = pytest.mark.parametrize("name, arguments, shape", LAYERS.values(), ids=LAYERS)


def pair(name: str, arguments: tuple[Any, ...], **keywords: Any) -> tuple[Any, Any]:
    """The lpkernels layer and torch's, made from the same seed."""
    torch.manual_seed(7)
    emulated = getattr(lp.nn, name)(*arguments, **keywords)
    keywords.pop("recipe", None)
    torch.manual_seed(7)
    return emulated, getattr(nn, name)(*arguments, **keywords)


@layers
def test_layer_starts_as_torchs(name: str, arguments: Any, shape: Any) -> None:
    emulated, plain = pair(name, arguments, recipe=DETERMINISTIC)
    assert list(emulated.state_dict()) == list(plain.state_dict()) == ["weight", "bias"]
    for a, c in zip(emulated.parameters(), plain.parameters(), strict=True):
        assert_bit_equal(a, c)
    assert isinstance(emulated, getattr(nn, name))


@layers
def test_layer_computes_by_its_recipe(name: str, arguments: Any, shape: Any) -> None:
    emulated, _ = pair(name, arguments, recipe=DETERMINISTIC)
    x = torch.randn(shape, requires_grad=True)
    y = emulated(x)
    want = FUNCTIONS[name](x, emulated.weight, emulated.bias, recipe=DETERMINISTIC)
    assert_bit_equal(y, want)
    tensors = (x, emulated.weight, emulated.bias)
    for a, c in zip(
        torch.autograd.grad(y.square().sum(), tensors),
        torch.autograd.grad(want.square().sum(), tensors),
        strict=True,
    ):
        assert_bit_equal(a, c)


@layers
def test_layer_without_a_recipe_is_torchs(name: str, arguments: Any, shape: Any) -> None:
    emulated, plain = pair(name, arguments)
    x = torch.randn(shape)
    assert_bit_equal(emulated(x), plain(x))
    assert_bit_equal(emulated.double()(x.double()), plain.double()(x.double()))


@layers
def test_layer_signature_is_torchs_and_recipe(name: str, arguments: Any, shape: Any) -> None:
    torchs = list(inspect.signature(getattr(nn, name)).parameters)
    assert list(inspect.signature(getattr(lp.nn, name)).parameters) == [*torchs, "recipe"]


@layers
@pytest.mark.parametrize("how", ["pickle", "deepcopy", "torch.save"])
def test_layer_copies_keep_the_recipe(name: str, arguments: Any, shape: Any, how: str) -> None:
    layer, _ = pair(name, arguments, recipe=DETERMINISTIC)
    if how == "pickle":
        twin = pickle.loads(pickle.dumps(layer))
    elif how == "deepcopy":
        twin = copy.deepcopy(layer)
    else:
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    assert twin.recipe == layer.recipe
    x = torch.randn(shape)
    assert_bit_equal(twin(x), layer(x))


@layers
def test_layer_shows_its_recipe(name: str, arguments: Any, shape: Any) -> None:
    layer, plain = pair(name, arguments, recipe="fp8_wang2018")
    assert repr(layer) == repr(plain)[:-1] + ", recipe=fp8_wang2018)"
    layer.recipe = lp.Recipe(input="e4m3")
    assert repr(layer) == repr(plain)[:-1] + ", recipe=Recipe(input='e4m3'))"


@layers
def test_layer_loads_torchs_state(name: str, arguments: Any, shape: Any) -> None:
    layer = getattr(lp.nn, name)(*arguments, recipe=DETERMINISTIC)
    plain = getattr(nn, name)(*arguments)
    layer.load_state_dict(plain.state_dict())
    assert_bit_equal(layer.weight, plain.weight)
    assert layer.recipe == DETERMINISTIC


def test_recipe_can_be_assigned_by_name() -> None:
    layer = lp.nn.Linear(5, 3)
    layer.recipe = "bf16_mixed"
    assert layer.recipe == lp.recipe("bf16_mixed")
    with pytest.raises(ValueError, match="unknown name 'fp9'"):
        layer.recipe = "fp9"


@pytest.mark.parametrize("recipe", [None, 8])
def test_layer_refuses_what_is_no_recipe(recipe: Any) -> None:
    with pytest.raises(TypeError, match="expected a Recipe or its name"):
        lp.nn.Conv2d(2, 3, 1, recipe=recipe)


@pytest.mark.parametrize("device, dtype", [("meta", None), (None, torch.bfloat16)], ids=str)
def test_layer_passes_device_and_dtype_on(device: Any, dtype: Any) -> None:
    for name, arguments, _ in LAYERS.values():
        layer = getattr(lp.nn, name)(*arguments, device=device, dtype=dtype, recipe="bf16_mixed")
        assert layer.weight.device.type == (device or "cpu")
        assert layer.weight.dtype == (dtype or torch.float32)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_conv_pads_first_where_the_padding_is_not_zeros(dims: int, mode: str) -> None:
    sums = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
    options = {"padding": 1, "padding_mode": mode}
    emulated, plain = pair(f"Conv{dims}d", (2, 3, 3), **options, recipe=sums)
    x = torch.randn(1, 2, *(4,) * dims, requires_grad=True)
    y, want = emulated(x), plain(x)
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(y.square().sum(), x),
        torch.autograd.grad(want.square().sum(), x),
        rtol=1e-4,
        atol=1e-4,
    )


def test_conv_adds_the_gradients_of_padding_in_float32() -> None:
    layer = lp.nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular", recipe=DETERMINISTIC)
    x = torch.randn(1, 1, 4, dtype=torch.bfloat16, requires_grad=True)
    wide = x.detach().float().requires_grad_()
    layer(x).sum().backward()
    layer(wide).sum().backward()
    assert_bit_equal(x.grad, wide.grad.to(torch.bfloat16))


@pytest.mark.parametrize("padding", ["same", "valid", (1, 2)], ids=str)
@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"dilation": 2}, {"bias": False}], ids=str)
def test_conv_options_are_torchs(padding: Any, options: dict[str, Any]) -> None:
    sums = lp.Recipe(fprop="fp32")
    emulated, plain = pair("Conv2d", (2, 4, (3, 2)), padding=padding, **options, recipe=sums)
    x = torch.randn(2, 2, 6, 7)
    torch.testing.assert_close(emulated(x), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_conv_transpose_takes_an_output_size(dims: int) -> None:
    sums = lp.Recipe(fprop="fp32")
    options = {"stride": 3, "padding": 1, "recipe": sums}
    emulated, plain = pair(f"ConvTranspose{dims}d", (2, 4, 3), **options)
    x = torch.randn(2, 2, *(4,) * dims)
    for size in ([11] * dims, (2, 4, *[12] * dims)):
        got, want = emulated(x, output_size=size), plain(x, output_size=size)
        assert got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="requested an output size of"):
        emulated(x, output_size=[20] * dims)


def test_conv_transpose_knows_padding_with_zeros_only() -> None:
    with pytest.raises(ValueError, match='Only "zeros" padding mode is supported for ConvT'):
        lp.nn.ConvTranspose2d(2, 3, 1, padding_mode="circular")


def test_layers_compile_into_one_graph() -> None:
    model = nn.Sequential(
        lp.nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular", recipe=STOCHASTIC),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        lp.nn.Linear(32, 3, recipe=STOCHASTIC),
    )
    x = torch.randn(2, 1, 4, 4)

    def gradients(run: Any) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(3)
        return torch.autograd.grad(run(x).square().sum(), list(model.parameters()))

    want = gradients(model)
    got = gradients(torch.compile(model, fullgraph=True, backend="aot_eager"))
    for a, c in zip(got, want, strict=True):
        assert_bit_equal(a, c)


def test_layers_take_their_seeds_from_seed_from() -> None:
    layer = lp.nn.Linear(5, 3, recipe=STOCHASTIC)
    x = torch.randn(4, 5)
    results = []
    for _ in range(2):
        with lp.seed_from(torch.tensor(11)):
            results.append(layer(x))
    assert_bit_equal(*results)
