"""linear: each step is one of the reference's, and all else is as in torch.

test_every_function.py tests the promises that linear shares with other functions.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.reference import exact
from lpkernels.rounding import round_scalar
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES
from tests.support.autograd import Steps, assert_composed, leaves, output_gradients

linear = lp.functional.linear

#: The shape of x and the number of output features: matrices, batches, a vector, empty ones.
SHAPES = [((7, 5), 3), ((2, 3, 5), 4), ((5,), 3), ((0, 5), 3), ((3, 0), 2), ((1, 1, 1), 1)]


def composed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, recipe: lp.Recipe) -> list[Any]:
    """y and the gradients of x, w and b: every rounding and every product is the reference's."""
    step = Steps(recipe)
    rows = x.detach().reshape(x.shape[:-1].numel(), x.shape[-1]).numpy()
    y = step.product(rows, w.detach().numpy(), b.detach().numpy())
    (g,) = output_gradients((*x.shape[:-1], len(w)))
    dx, dw, db = step.gradients(g.reshape(y.shape).numpy())
    return [y.reshape(g.shape), dx.reshape(x.shape), dw, db]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("shape, out_features", SHAPES)
def test_linear_is_its_steps_by_the_reference(shape, out_features, recipe, backends):
    tensors = leaves(shape, (out_features, shape[-1]), (out_features,))
    call = partial(linear, *tensors, recipe=recipe)
    assert_composed(call, tensors, composed(*tensors, recipe), backends)


@pytest.mark.parametrize("fmt, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_16_bit_result_is_the_exact_sum_rounded_in_fp32_and_once_more(fmt, dtype):
    recipe = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
    # Large and small terms: a sum rounds at most steps, and some results overflow fp16.
    scales = torch.tensor([1.0, 2.0**9, 2.0**-11, 2.0**7, 3.0, 2.0**-5, 1.0])
    x, w, b = (leaf.detach() for leaf in leaves((9, 7), (11, 7), (11,)))
    tensors = [(t * s).to(dtype).requires_grad_() for t, s in ((x, scales), (w, scales), (b, 99))]
    x, w, b = (t.detach().float().numpy() for t in tensors)
    y = linear(*tensors, recipe=recipe)
    (g,) = (t.to(dtype) for t in output_gradients(y.shape))
    got = [y, *torch.autograd.grad(y, tensors, g)]
    g, ones, acc = g.float().numpy(), np.ones((9, 1), np.float32), lp.Accumulator("fp32")
    sums = [exact.matmul(x, w.T, b, acc), exact.matmul(g, w, None, acc)]
    sums += [exact.matmul(g.T, x, None, acc), exact.matmul(g.T, ones, None, acc)[:, 0]]
    for tensor, want in zip(got, sums, strict=True):
        rounded = [round_scalar(float(s), lp.parse_format(fmt), "nearest_even") for s in want.flat]
        assert_bit_equal(tensor, torch.tensor(rounded).reshape(want.shape).to(dtype))
    assert y.isinf().any() == (dtype is torch.float16)


def test_only_the_operands_that_backward_reads_are_kept() -> None:
    for of_x, of_w in ((False, True), (True, False), (True, True)):
        x, w, b = leaves((4, 5), (3, 5), (3,))
        y = linear(x.requires_grad_(of_x), w.requires_grad_(of_w), b, recipe=DETERMINISTIC)
        kept_x, kept_w, _ = y.grad_fn.saved_tensors
        assert (kept_x is not None, kept_w is not None) == (of_w, of_x)
