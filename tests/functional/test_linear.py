"""linear: each step is one of the reference's, and all else is as in torch.

test_every_layer.py tests the promises that linear shares with the convolutions.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES, STOCHASTIC
from tests.support.autograd import (
    Steps,
    assert_composed,
    close,
    gradients,
    leaves,
    output_gradients,
)

linear = lp.functional.linear

#: The shape of x and the number of output features: matrices, batches, a vector, empty ones.
SHAPES = [((7, 5), 3), ((2, 3, 5), 4), ((5,), 3), ((0, 5), 3), ((3, 0), 2), ((1, 1, 1), 1)]


def operands(shape: tuple[int, ...] = (4, 5), out_features: int = 3) -> list[torch.Tensor]:
    """x, weight and bias that require gradients."""
    return leaves(shape, (out_features, shape[-1]), (out_features,))


def composed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, recipe: lp.Recipe) -> list[Any]:
    """y and the gradients of x, w and b: every rounding and every product is the reference's."""
    step = Steps(recipe)
    rows = x.detach().reshape(x.shape[:-1].numel(), x.shape[-1]).numpy()
    y = step.product(rows, w.detach().numpy(), b.detach().numpy())
    (g,) = output_gradients((*x.shape[:-1], len(w)))
    dx, dw, db = step.gradients(g.reshape(y.shape).numpy())
    return [y.reshape(g.shape), dx.reshape(x.shape), dw, db]


@pytest.mark.parametrize("recipe", RECIPES.values())
@pytest.mark.parametrize("shape, out_features", SHAPES)
def test_linear_is_its_steps_by_the_reference(shape, out_features, recipe, backends):
    tensors = operands(shape, out_features)
    call = partial(linear, *tensors, recipe=recipe)
    assert_composed(call, tensors, composed(*tensors, recipe), backends)


def test_quantizers_alone_leave_the_products_to_torch() -> None:
    recipe = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2", output="bf16")
    x, w, b = operands()
    got = gradients(linear(x, w, b, recipe=recipe), [x, w, b])
    xq, wq, g = lp.quantize(x, "e4m3"), lp.quantize(w, "e5m2"), output_gradients((4, 3))[0]
    y, gq = lp.quantize(F.linear(xq, wq, b), "bf16"), lp.quantize(g, "e5m2")
    close(got, [y, gq @ wq, gq.t() @ xq, gq.sum(0)])


def test_a_call_draws_one_seed() -> None:
    tensors = operands()
    generator, other = (torch.Generator().manual_seed(5) for _ in range(2))
    y = linear(*tensors, recipe=STOCHASTIC, generator=generator)
    y.sum().backward()
    seed = torch.empty((), dtype=torch.int64).random_(generator=other)
    assert torch.equal(generator.get_state(), other.get_state())
    assert_bit_equal(y, linear(*tensors, recipe=STOCHASTIC, generator=seed))


def test_nothing_is_drawn_where_nothing_is_stochastic() -> None:
    tensors = operands()
    before = torch.get_rng_state()
    linear(*tensors, recipe=DETERMINISTIC).sum().backward()
    assert torch.equal(before, torch.get_rng_state())


def test_only_the_operands_that_backward_reads_are_kept() -> None:
    for of_x, of_w in ((False, True), (True, False), (True, True)):
        x, w, b = operands()
        y = linear(x.requires_grad_(of_x), w.requires_grad_(of_w), b, recipe=DETERMINISTIC)
        kept_x, kept_w, _ = y.grad_fn.saved_tensors
        assert (kept_x is not None, kept_w is not None) == (of_w, of_x)
