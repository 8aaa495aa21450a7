"""Linear layers and convolutions: torch.nn's modules with another arithmetic."""

from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC
from tests.loops import each
from tests.nn.layer_cases import same

lpf = lp.functional
# The arguments of a layer, the shape of its input, and the function that computes it.
LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any]] = {
    "Linear": ((5, 3), (4, 5), lpf.linear),
    "Conv1d": ((2, 4, 3), (2, 2, 7), lpf.conv1d),
    "Conv2d": ((2, 4, 3), (2, 2, 5, 6), lpf.conv2d),
    "Conv3d": ((2, 4, 2), (1, 2, 3, 4, 3), lpf.conv3d),
    "ConvTranspose1d": ((2, 4, 3), (2, 2, 7), lpf.conv_transpose1d),
    "ConvTranspose2d": ((2, 4, 3), (2, 2, 5, 6), lpf.conv_transpose2d),
    "ConvTranspose3d": ((2, 4, 2), (1, 2, 2, 3, 2), lpf.conv_transpose3d),
}


@each("name", LAYERS)
def test_layer_computes_by_its_recipe(name: str) -> None:
    arguments, shape, function = LAYERS[name]
    layer = getattr(lp.nn, name)(*arguments, recipe=DETERMINISTIC)
    x = torch.randn(shape, requires_grad=True)
    tensors = (x, layer.weight, layer.bias)
    y, want = layer(x), function(*tensors, recipe=DETERMINISTIC)
    assert_bit_equal(y, want)
    same(*(torch.autograd.grad(out.square().sum(), tensors) for out in (y, want)))


@each("name", LAYERS)
def test_layer_without_a_recipe_is_torchs_in_float64(name: str) -> None:
    arguments, shape, _ = LAYERS[name]
    layer, plain = (getattr(kind, name)(*arguments).double() for kind in (lp.nn, nn))
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(shape).double()
    assert_bit_equal(layer(x), plain(x))


def test_recipe_can_be_assigned() -> None:
    layer = lp.nn.Linear(5, 3)
    layer.recipe = "bf16_mixed"
    assert layer.recipe == lp.recipe("bf16_mixed")
    with pytest.raises(ValueError, match="unknown name 'fp9'"):
        layer.recipe = "fp9"
    layer.recipe = lp.Recipe(input="e4m3")
    assert repr(layer) == repr(nn.Linear(5, 3))[:-1] + ", recipe=Recipe(input='e4m3'))"
    with pytest.raises(TypeError, match="expected a Recipe or its name"):
        lp.nn.Conv2d(2, 3, 1, recipe=None)


@each("device, dtype", [("meta", None), (None, torch.bfloat16)])
def test_layer_passes_device_and_dtype_on(device: Any, dtype: Any) -> None:
    for name, (arguments, _, _) in LAYERS.items():
        layer = getattr(lp.nn, name)(*arguments, device=device, dtype=dtype, recipe="bf16_mixed")
        assert layer.weight.device.type == (device or "cpu")
        assert layer.weight.dtype == (dtype or torch.float32)


def test_conv_adds_the_gradients_of_padding_in_float32() -> None:
    layer = lp.nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular", recipe=DETERMINISTIC)
    x = torch.randn(1, 1, 4, dtype=torch.bfloat16, requires_grad=True)
    wide = x.detach().float().requires_grad_()
    layer(x).sum().backward()
    layer(wide).sum().backward()
    assert_bit_equal(x.grad, wide.grad.to(torch.bfloat16))


def test_conv_transpose_knows_padding_with_zeros_only() -> None:
    with pytest.raises(ValueError, match='Only "zeros" padding mode is supported for ConvT'):
        lp.nn.ConvTranspose2d(2, 3, 1, padding_mode="circular")
