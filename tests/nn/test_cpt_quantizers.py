"""The quantizers of the recipe cpt_fu2021: its source's numbers, and what layers do with them."""

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.nn.layer_cases import converted, inputs, plain

ONE_INPUT = ["Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d"]


def step_of(x: torch.Tensor, bits: int) -> float:
    return (x.max() - x.min()).item() / (2**bits - 1)


@each("name", ONE_INPUT)
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


def test_one_rounded_error_feeds_both_products() -> None:
    (x,) = inputs("Linear")
    layer = converted("Linear", lp.recipe("cpt_fu2021"))
    layer.set_precision(8, 3)
    x.requires_grad_()
    torch.manual_seed(0)
    y = layer(x)
    error = torch.randn_like(y)
    y.backward(error)
    # The input's gradient tells what became of the error.
    weight = lp.quantize(layer.weight.detach(), "affine8_axis0")
    found = torch.linalg.lstsq(weight.T.double(), x.grad.T.double()).solution.T
    step = step_of(error, 3)
    codes = (found - error.min()) / step
    torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-4)
    assert 0 <= codes.round().min() and codes.round().max() <= 7
    error = (codes.round() * step + error.min()).float()
    torch.testing.assert_close(layer.bias.grad, error.sum(0), rtol=1e-4, atol=1e-5)
    wanted = error.T @ lp.quantize(x.detach(), "affine8")
    torch.testing.assert_close(layer.weight.grad, wanted, rtol=1e-4, atol=1e-5)


@each("training", [True, False])
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
