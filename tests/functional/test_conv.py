"""Convolutions and transposed ones: each step is the reference's, and all else is as in torch.

test_every_function.py tests the promises that they share with other functions.
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
from tests.functional.layer_recipes import RECIPES
from tests.support.autograd import (
    Steps,
    assert_composed,
    leaves,
    output_gradients,
)

CONV = {dims: getattr(lp.functional, f"conv{dims}d") for dims in (1, 2, 3)}
TRANSPOSED = {dims: getattr(lp.functional, f"conv_transpose{dims}d") for dims in (1, 2, 3)}
TORCH_TRANSPOSED = {dims: getattr(F, f"conv_transpose{dims}d") for dims in (1, 2, 3)}


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
@pytest.mark.parametrize("case", CONV_CASES.values(), ids=CONV_CASES)
def test_conv_is_its_steps_by_the_reference(recipe: lp.Recipe, case: ConvCase, backends: list[str]):
    tensors = operands(case)
    call = partial(CONV[len(case.stride)], *tensors, *numbers(case), recipe=recipe)
    assert_composed(call, tensors, composed(case, tensors, recipe), backends)


@pytest.mark.parametrize("order", ["sequential", "native"])
def test_results_have_row_major_strides_where_a_size_is_one(backend: str, order: str) -> None:
    """The strides decide which kernel torch's batch norm picks, and so its last bits."""
    acc = lp.Accumulator(order=order, chunk=4, outer="e6m9")
    recipe = lp.Recipe(fprop=acc, dgrad=acc, wgrad=acc)
    x, w = leaves((2, 3, 1, 1), (4, 3, 1, 1))
    y = lp.functional.conv2d(x, w, recipe=recipe, backend=backend)
    strides = [t.stride() for t in (y, *torch.autograd.grad(y.sum(), (x, w)))]
    assert strides == [(4, 1, 1, 1), (3, 1, 1, 1), (3, 1, 1, 1)]


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
    "2d empty batch": Transposed((0, 4, 3, 4), (4, 2, 3, 3), (1, 1), (0, 0), (0, 0), 2, (1, 1)),
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


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("case", TRANSPOSED_CASES.values(), ids=TRANSPOSED_CASES)
def test_conv_transpose_is_its_steps_by_the_reference(recipe, case, backends):
    tensors = transposed_operands(case)
    call = partial(TRANSPOSED[len(case.stride)], *tensors, *case.numbers, recipe=recipe)
    assert_composed(call, tensors, composed_transposed(case, tensors, recipe), backends)
