"""Convolutions and transposed ones: each step is the reference's, and all else is as in torch.

test_every_layer.py tests the promises that they share with linear.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.arithmetic.products import Convolution
from lpkernels.reference import twin
from lpkernels.reference.values import narrow, widen
from lpkernels.rng import SITE_BIAS, draws
from tests.cases import CONV_CASES, ConvCase
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES
from tests.support.autograd import (
    Steps,
    assert_composed,
    close,
    gradients,
    leaves,
    output_gradients,
)

CONV = {dims: getattr(lp.functional, f"conv{dims}d") for dims in (1, 2, 3)}
TORCH_CONV = {dims: getattr(F, f"conv{dims}d") for dims in (1, 2, 3)}
SUMS = lp.Recipe(input="fp32", fprop="fp32", dgrad="fp32", wgrad="fp32")


def operands(case: ConvCase) -> list[torch.Tensor]:
    """x, weight and bias that require gradients."""
    return leaves(case.input_shape, case.weight_shape, case.weight_shape[:1])


def numbers(case: ConvCase) -> tuple[Any, ...]:
    return case.stride, case.padding, case.dilation, case.groups


def composed(case: ConvCase, tensors: list[torch.Tensor], recipe: lp.Recipe) -> list[np.ndarray]:
    """y, dx, dw, db: every rounding and every product is the reference's."""
    step, conv = Steps(recipe), Convolution(*numbers(case))
    x, w, b = (t.detach().numpy() for t in tensors)
    xq, wq, bq = step.rounded(x, "input"), step.rounded(w, "weight"), step.rounded(b, "bias")
    y = twin.conv_fprop(xq, wq, bq, conv, recipe.fprop, seed=step.seed_of("fprop"))
    y = step.rounded(y, "output")
    gq = step.rounded(output_gradients(y.shape)[0].numpy(), "grad_output")
    dx = twin.conv_dgrad(gq, wq, x.shape, conv, recipe.dgrad, seed=step.seed_of("dgrad"))
    dw = twin.conv_wgrad(xq, gq, w.shape, conv, recipe.wgrad, seed=step.seed_of("wgrad"))
    db = step.bias_gradient(np.moveaxis(gq, 1, -1).reshape(-1, len(w)))
    return [y, step.rounded(dx, "grad_input"), step.rounded(dw, "grad_weight"), db]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("case", CONV_CASES.values())
def test_conv_is_its_steps_by_the_reference(recipe: lp.Recipe, case: ConvCase, backends: list[str]):
    tensors = operands(case)
    call = partial(CONV[len(case.stride)], *tensors, *numbers(case), recipe=recipe)
    assert_composed(call, tensors, composed(case, tensors, recipe), backends)


@pytest.mark.parametrize("case", CONV_CASES.values())
def test_quantizers_alone_leave_the_products_to_torch(case: ConvCase) -> None:
    recipe = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2")
    (x, w, b), dims = operands(case), len(case.stride)
    got = gradients(CONV[dims](x, w, b, *numbers(case), recipe=recipe), [x, w, b])
    rounded = [lp.quantize(x, "e4m3").detach(), lp.quantize(w, "e5m2").detach(), b]
    y = TORCH_CONV[dims](*(t.requires_grad_() for t in rounded), *numbers(case))
    g = lp.quantize(*output_gradients(y.shape), "e5m2")
    close(got, [y, *torch.autograd.grad(y, rounded, g)])


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kernel, dilation", [(3, 1), (2, 1), (4, 3)])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_same_padding_is_torchs(dims: int, kernel: int, dilation: int) -> None:
    tensors = leaves((2, 2, 6, 5, 7)[: dims + 2], (3, 2, kernel, 3, kernel)[: dims + 2], (3,))
    got = CONV[dims](*tensors, 1, "same", dilation, recipe=SUMS)
    close(
        gradients(got, tensors), gradients(TORCH_CONV[dims](*tensors, 1, "same", dilation), tensors)
    )


def test_valid_padding_is_none_and_one_number_stands_for_both_sizes() -> None:
    x, w, b = operands(CONV_CASES["conv2d_groups"])
    for given, meant in (
        ((1, "valid", 1, 2), ((1, 1), (0, 0), (1, 1), 2)),
        ((2, [1], (1,), 2), ((2, 2), (1, 1), (1, 1), 2)),
    ):
        want = lp.functional.conv2d(x, w, b, *meant, recipe=DETERMINISTIC)
        assert_bit_equal(lp.functional.conv2d(x, w, b, *given, recipe=DETERMINISTIC), want)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
def test_an_image_alone_is_a_batch_of_one(name: str, dims: int) -> None:
    x, w = leaves((1, 2, *(5,) * dims), (2, 2, *(3,) * dims))
    conv = getattr(lp.functional, f"{name}{dims}d")
    assert_bit_equal(conv(x[0], w, recipe=DETERMINISTIC), conv(x, w, recipe=DETERMINISTIC)[0])


@pytest.mark.parametrize("order", ["sequential", "native"])
def test_results_have_row_major_strides_where_a_size_is_one(backend: str, order: str) -> None:
    """The strides decide which kernel torch's batch norm picks, and so its last bits."""
    acc = lp.Accumulator(order=order, chunk=4, outer="e6m9")
    recipe = lp.Recipe(fprop=acc, dgrad=acc, wgrad=acc)
    x, w = leaves((2, 3, 1, 1), (4, 3, 1, 1))
    y = lp.functional.conv2d(x, w, recipe=recipe, backend=backend)
    strides = [t.stride() for t in (y, *torch.autograd.grad(y.sum(), (x, w)))]
    assert strides == [(4, 1, 1, 1), (3, 1, 1, 1), (3, 1, 1, 1)]


TRANSPOSED = {dims: getattr(lp.functional, f"conv_transpose{dims}d") for dims in (1, 2, 3)}
TORCH_TRANSPOSED = {dims: getattr(F, f"conv_transpose{dims}d") for dims in (1, 2, 3)}


class Transposed(NamedTuple):
    """Shapes and numbers of one transposed convolution."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int
    dilation: tuple[int, ...]

    @property
    def numbers(self) -> tuple[Any, ...]:
        return self[2:]

    @property
    def channels(self) -> int:
        return self.w[1] * self.groups


TRANSPOSED_CASES = {
    "1d": Transposed((2, 3, 5), (3, 2, 3), (1,), (0,), (0,), 1, (1,)),
    "1d room beyond the stride": Transposed((2, 2, 4), (2, 3, 2), (1,), (1,), (2,), 1, (3,)),
    "2d strided": Transposed((2, 3, 4, 3), (3, 2, 3, 2), (2, 3), (1, 0), (1, 2), 1, (1, 1)),
    "2d groups": Transposed((1, 4, 3, 4), (4, 2, 3, 3), (2, 1), (1, 1), (0, 0), 2, (1, 2)),
    "2d kernel below the stride": Transposed(
        (1, 2, 3, 3), (2, 2, 1, 2), (3, 3), (0, 0), (2, 1), 1, (1, 1)
    ),
    "3d": Transposed(
        (1, 2, 2, 3, 2), (2, 2, 2, 2, 3), (1, 2, 1), (0, 1, 1), (0, 1, 0), 1, (1, 1, 1)
    ),
}


def transposed_operands(case: Transposed) -> list[torch.Tensor]:
    """x, weight and bias that require gradients."""
    return leaves(case.x, case.w, (case.channels,))


def biased(y: np.ndarray, bias: np.ndarray, acc: lp.Accumulator, seed: int) -> np.ndarray:
    """y (N, C, *) plus bias (C,): one addition in the outermost accumulator.

    Its draws are keyed by position.
    """
    rows = np.moveaxis(y, 1, -1)
    flat = np.ascontiguousarray(rows).reshape(-1, y.shape[1])
    bits = None
    if acc.outermost_rounding == "stochastic":
        row, col = np.arange(len(flat))[:, None], np.arange(y.shape[1])
        bits = draws(seed, SITE_BIAS, row, col, 0, acc.random_bits, acc.rng)
    total = twin.add(
        widen(flat), widen(bias), acc.outermost, acc.outermost_rounding,
        draws=bits, random_bits=acc.random_bits,
    )  # fmt: skip
    return np.moveaxis(narrow(total).reshape(rows.shape), -1, 1)


def composed_transposed(
    case: Transposed, tensors: list[torch.Tensor], recipe: lp.Recipe
) -> list[np.ndarray]:
    """y, dx, dw, db composed of the passes of the reference's convolution."""
    step = Steps(recipe)
    conv = Convolution(case.stride, case.padding, case.dilation, case.groups)
    shape = tuple(TORCH_TRANSPOSED[len(case.stride)](*tensors, *case.numbers).shape)
    x, w, b = (t.detach().numpy() for t in tensors)
    xq, wq, bq = step.rounded(x, "input"), step.rounded(w, "weight"), step.rounded(b, "bias")
    y = twin.conv_dgrad(xq, wq, shape, conv, recipe.fprop, seed=step.seed_of("fprop"))
    y = step.rounded(biased(y, bq, recipe.fprop, step.seed_of("fprop")), "output")
    gq = step.rounded(output_gradients(shape)[0].numpy(), "grad_output")
    dx = twin.conv_fprop(gq, wq, None, conv, recipe.dgrad, seed=step.seed_of("dgrad"))
    dx = step.rounded(dx[tuple(slice(n) for n in x.shape)], "grad_input")
    dw = twin.conv_wgrad(gq, xq, w.shape, conv, recipe.wgrad, seed=step.seed_of("wgrad"))
    db = step.bias_gradient(np.moveaxis(gq, 1, -1).reshape(-1, case.channels))
    return [y, dx, step.rounded(dw, "grad_weight"), db]


@pytest.mark.parametrize("recipe", RECIPES.values())
@pytest.mark.parametrize("case", TRANSPOSED_CASES.values())
def test_conv_transpose_is_its_steps_by_the_reference(recipe, case, backends):
    tensors = transposed_operands(case)
    call = partial(TRANSPOSED[len(case.stride)], *tensors, *case.numbers, recipe=recipe)
    assert_composed(call, tensors, composed_transposed(case, tensors, recipe), backends)


@pytest.mark.parametrize("product", ["fp32", "native", "native_chunk1", "native_chunk3"])
@pytest.mark.parametrize("case", TRANSPOSED_CASES.values())
def test_transposed_sums_in_fp32_are_torchs_within_rounding(case: Transposed, product: str) -> None:
    sums = lp.Recipe(input="fp32", fprop=product, dgrad=product, wgrad=product)
    tensors, dims = transposed_operands(case), len(case.stride)
    got = gradients(TRANSPOSED[dims](*tensors, *case.numbers, recipe=sums), tensors)
    close(got, gradients(TORCH_TRANSPOSED[dims](*tensors, *case.numbers), tensors))


def test_a_transposed_empty_batch_has_gradients_of_zero() -> None:
    x, w, b = leaves((0, 4, 3, 4), (4, 2, 3, 3), (4,))
    y = lp.functional.conv_transpose2d(x, w, b, groups=2, recipe=DETERMINISTIC)
    assert y.shape == F.conv_transpose2d(x, w, b, groups=2).shape
    y.sum().backward()
    assert not w.grad.any() and not b.grad.any()
