"""embedding: the rounded table, its gradients, and torch's options."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import ACCUMULATORS_ONLY, RECIPES
from tests.support.autograd import Steps, assert_composed, output_gradients

INDICES = torch.tensor([[0, 2, 2], [5, 0, 1]])


def table() -> torch.Tensor:
    return torch.randn(6, 4, requires_grad=True)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}], ids=str)
def test_embedding_is_its_steps_by_the_reference(options, recipe, backends):
    w, step = table(), Steps(recipe)
    rounded = torch.from_numpy(step.rounded(w.detach().numpy(), "weight"))
    y = step.rounded(F.embedding(INDICES, rounded).numpy(), "output")
    gq = torch.from_numpy(step.rounded(output_gradients(y.shape)[0].numpy(), "grad_output"))
    (dw,) = torch.autograd.grad(F.embedding(INDICES, w, **options), w, gq)
    want = [y, step.rounded(dw.numpy(), "grad_weight")]
    call = partial(lp.functional.embedding, INDICES, w, **options, recipe=recipe)
    assert_composed(call, w, want, backends)


def test_embedding_without_quantizers_is_torchs_own() -> None:
    w = table().double()
    got = lp.functional.embedding(INDICES, w, recipe=ACCUMULATORS_ONLY)
    assert_bit_equal(got, F.embedding(INDICES, w))


def test_embedding_scales_the_rows_before_it_rounds_them() -> None:
    w = table().detach() * 3
    plain = w.clone()
    got = lp.functional.embedding(INDICES, w, max_norm=1.0, recipe=lp.Recipe(weight="e4m3"))
    want = F.embedding(INDICES, plain, max_norm=1.0)
    assert_bit_equal(w, plain)
    assert_bit_equal(got, lp.quantize(want, "e4m3"))


def test_embedding_keeps_sparse_gradients() -> None:
    w = table()
    recipe = lp.Recipe(weight="e4m3", grad_output="e5m2")
    y = lp.functional.embedding(INDICES, w, sparse=True, recipe=recipe)
    (grad,) = torch.autograd.grad(y.sum(), w)
    assert grad.is_sparse
