"""Recipes of scaled formats in every kind of layer, and what they refuse."""

import pytest
import torch
from torch.nn import grad as torchs

import lpkernels as lp
from lpkernels.arithmetic.by_product import along_axis
from tests.compare import assert_bit_equal
from tests.functional.scaled_layers import MXFP8, PRETRAINING, SCALE, gradients, made, top
from tests.support.autograd import same

F = lp.functional
TENSORS = {"input": "tensor_e4m3", "weight": "tensor_e4m3", "grad_output": "tensor_e5m2"}


PACKS = pytest.mark.parametrize("packs", [True, False], ids=["packed", "whole"])
SUMS = pytest.mark.parametrize("sums", [{}, SCALE], ids=["torch's sums", "sums by scale"])


@PACKS
def test_products_of_two_activations_have_blocks_along_the_sum_of_each(packs: bool) -> None:
    torch.manual_seed(1)
    a, b = torch.randn(2, 3, 32, 16), torch.randn(2, 3, 16, 48)
    y, da, db = gradients(lp.matmul, (a, b), PRETRAINING, packs=packs)
    g, w = top(y), b.mT
    want = made(a, PRETRAINING, "input", -1) @ made(w, PRETRAINING, "weight", -1).mT
    assert_bit_equal(y, want)
    weight = made(w, PRETRAINING, "dgrad_weight", -2)
    assert_bit_equal(da, made(g, PRETRAINING, "grad_output", -1) @ weight)
    left = made(g, PRETRAINING, "wgrad_grad_output", -2).mT
    assert_bit_equal(db.mT, left @ made(a, PRETRAINING, "wgrad_input", -2))


@SUMS
def test_a_product_with_a_matrix_equals_linear(sums: dict[str, str]) -> None:
    a, b = torch.randn(2, 3, 32, 16), torch.randn(16, 48)
    recipe = lp.Recipe(**{**PRETRAINING.to_dict(), **sums})
    want = gradients(lambda x, w, **k: F.linear(x, w.t(), **k), (a, b), recipe)
    same(gradients(lp.matmul, (a, b), recipe), want)


@SUMS
def test_broadcast_batches_are_one_sum(sums: dict[str, str]) -> None:
    a, b = torch.randn(1, 3, 32, 16), torch.randn(2, 1, 16, 48)
    recipe = lp.Recipe(**{**MXFP8.to_dict(), **sums})
    along_rows, along_columns = (along_axis(MXFP8.input.fmt, axis) for axis in (-1, -2))
    acc = "fp32_chunkscale" if sums else None
    y, da, db = gradients(lp.matmul, (a, b), recipe)
    g = top(y)
    # The gradient of a sums over (batch of b, n), that of b over (batch of a, m).
    for at in range(3):
        left = lp.scaled(g[:, at].transpose(0, 1).flatten(1), along_rows)
        right = lp.scaled(b[:, 0].mT.flatten(0, 1), along_columns)
        assert_bit_equal(da[0, at], lp.matmul(left, right, acc), "the left gradient")
    for at in range(2):
        left = lp.scaled(g[at].flatten(0, 1), along_columns)
        right = lp.scaled(a[0].flatten(0, 1), along_columns)
        turned = lp.Scaled(left.values.mT, left.scale.mT, None, along_rows)
        assert_bit_equal(db[at, 0].mT, lp.matmul(turned, right, acc), "the right gradient")


def test_recurrent_layers_are_linear_ones() -> None:
    torch.manual_seed(2)
    for recipe in (MXFP8, lp.Recipe(**{**MXFP8.to_dict(), **SCALE, "requantize": "codes"})):
        layer = lp.nn.RNN(32, 32, nonlinearity="relu", recipe=recipe)
        x = torch.randn(1, 64, 32, requires_grad=True)
        # In the one step from zeros the layer is one product.
        y = layer(x)[0]
        z = F.linear(x[0], layer.weight_ih_l0, layer.bias_ih_l0, recipe=recipe) + layer.bias_hh_l0
        assert_bit_equal(y[0].detach(), z.relu().detach())
        g = torch.randn_like(y)
        wanted = (x, layer.weight_ih_l0)
        want = torch.autograd.grad(z.relu(), wanted, g[0])
        for got, expected in zip(torch.autograd.grad(y, wanted, g), want, strict=True):
            assert_bit_equal(got, expected)


STATES = {
    "blocks": MXFP8.to_dict(),
    "tensors": TENSORS,
    "tensors with an operand of wgrad's own": {**TENSORS, "wgrad_input": "fp32"},
}


@pytest.mark.parametrize("wgrad", ["native", "e6m9"])
@pytest.mark.parametrize("fields", STATES.values(), ids=STATES)
def test_the_weight_and_bias_of_the_states_have_one_sum_over_all_steps(
    fields: dict[str, str], wgrad: str
) -> None:
    torch.manual_seed(3)
    recipe = lp.Recipe(**{**fields, "wgrad": wgrad})
    layer = lp.nn.RNN(32, 32, nonlinearity="relu", recipe=recipe)
    x, w, b = torch.randn(3, 16, 32), layer.weight_hh_l0, layer.bias_hh_l0
    y = layer(x)[0]
    g = torch.zeros_like(y)
    g[2] = torch.randn(16, 32)
    dw, db = torch.autograd.grad(y, (w, b), g)
    # The gradient goes back through the steps.
    tops, state = [], g[2] * (y[2] > 0)
    weight = made(w.detach(), recipe, "dgrad_weight", -2)
    for step in (2, 1, 0):
        tops.append(state)
        back = made(state, recipe, "grad_output", -1) @ weight
        state = back * (y[step - 1] > 0)
    states = [y[1].detach(), y[0].detach(), torch.zeros(16, 32)]
    if "tensor_e4m3" in fields.values():
        # Each step has a scale of its own.
        left = torch.cat([made(top, recipe, "wgrad_grad_output", -2) for top in tops])
        right = torch.cat([made(state, recipe, "wgrad_input", -2) for state in states])
    else:
        left = made(torch.cat(tops), recipe, "wgrad_grad_output", -2)
        right = made(torch.cat(states), recipe, "wgrad_input", -2)
    # Where all products share the codes of a gradient, so does the bias.
    of_bias = left if fields is TENSORS else torch.cat(tops)
    assert_bit_equal(dw, lp.matmul(left.t(), right, wgrad))
    ones = torch.ones(1, 48)
    want = of_bias.sum(0) if wgrad == "native" else lp.matmul(ones, of_bias, wgrad)[0]
    assert_bit_equal(db, want)


def test_convolutions_take_one_scale_a_tensor_and_blocks_along_fixed_axes() -> None:
    torch.manual_seed(4)
    x, w = torch.randn(4, 16, 6, 6), torch.randn(8, 16, 3, 3)
    channels, batch = "block8_axis1_e4m3_up", "block8_axis0_e4m3_up"
    blocks = lp.Recipe(
        input=channels, weight=channels, grad_output=channels, dgrad_weight=batch,
        wgrad_input=batch, wgrad_grad_output=batch,
    )  # fmt: skip
    for packs in (True, False):
        for recipe in (blocks, lp.Recipe(**TENSORS)):
            y, dx, dw = gradients(F.conv2d, (x, w), recipe, packs=packs)
            g = top(y)
            fields = ("input", "weight", "grad_output", "dgrad_weight")
            xq, wq, gq, dq = (
                lp.quantize(t, getattr(recipe, f) or recipe.weight)
                for t, f in zip((x, w, g, w), fields, strict=True)
            )
            assert_bit_equal(y, torch.nn.functional.conv2d(xq, wq))
            assert_bit_equal(dx, torchs.conv2d_input(x.shape, dq, gq))
            left = lp.quantize(x, recipe.wgrad_input or recipe.input)
            tops = lp.quantize(g, recipe.wgrad_grad_output or recipe.grad_output)
            assert_bit_equal(dw, torchs.conv2d_weight(left, w.shape, tops))


def test_scales_of_tensors_multiply_the_sums_of_a_convolution() -> None:
    torch.manual_seed(5)
    x, w, b = torch.randn(2, 4, 5, 5), torch.randn(3, 4, 3, 3), torch.randn(3)
    codes = [lp.scaled(t, "tensor_e4m3") for t in (x, w)]
    for acc, plain in (("e6m9", "e6m9"), ("e6m9_chunkscale:outer=fp32", "e6m9_chunk36:outer=fp32")):
        recipe = lp.Recipe(**TENSORS, **dict.fromkeys(("fprop", "dgrad", "wgrad"), acc))
        y, dx, dw, _ = gradients(F.conv2d, (x, w, b), recipe)
        top_codes = lp.scaled(top(y), "tensor_e5m2")
        inputs, kernel, tops = (t.scale.view(()) for t in (*codes, top_codes))
        sums = lp.Recipe(fprop=plain, dgrad=plain, wgrad=plain)
        of_codes = gradients(F.conv2d, [t.values for t in codes], sums, top_codes.values)
        scales = (inputs * kernel, tops * kernel, tops * inputs)
        found = [(t.double() * s.double()).float() for t, s in zip(of_codes, scales, strict=True)]
        want = found[0].double() + b.double()[:, None, None]
        assert_bit_equal(y, lp.quantize(want, recipe.fprop.outermost).float(), acc)
        same([dx, dw], found[1:], acc)
