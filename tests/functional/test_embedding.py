"""embedding: the rounded table, its gradients, and torch's options."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import ACCUMULATORS_ONLY, RECIPES
from tests.support.autograd import Steps, assert_composed, gradients, output_gradients, same

INDICES = torch.tensor([[0, 2, 2], [5, 0, 1]])


def table() -> torch.Tensor:
    return torch.randn(6, 4, requires_grad=True)


@pytest.mark.parametrize("recipe", RECIPES.values())
def test_embedding_is_its_steps_by_the_reference(recipe: lp.Recipe, backends: list[str]) -> None:
    w, step = table(), Steps(recipe)
    rounded = torch.from_numpy(step.rounded(w.detach().numpy(), "weight"))
    y = step.rounded(F.embedding(INDICES, rounded).numpy(), "output")
    gq = torch.from_numpy(step.rounded(output_gradients(y.shape)[0].numpy(), "grad_output"))
    (dw,) = torch.autograd.grad(F.embedding(INDICES, w), w, gq)
    want = [y, step.rounded(dw.numpy(), "grad_weight")]
    call = partial(lp.functional.embedding, INDICES, w, recipe=recipe)
    assert_composed(call, w, want, backends)


@pytest.mark.parametrize("recipe", ["fp32", ACCUMULATORS_ONLY])
def test_embedding_without_quantizers_is_torchs_own(recipe: Any) -> None:
    w = table().double()
    assert_bit_equal(lp.functional.embedding(INDICES, w, recipe=recipe), F.embedding(INDICES, w))


@pytest.mark.parametrize("options", [{"padding_idx": 2}, {"scale_grad_by_freq": True}])
def test_embedding_options_are_torchs(options: dict[str, Any]) -> None:
    w = table()
    got = lp.functional.embedding(INDICES, w, **options, recipe=lp.Recipe(weight="fp32"))
    same(gradients(got, w), gradients(F.embedding(INDICES, w, **options), w))


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


def test_embedding_widens_a_narrow_table_exactly() -> None:
    w = table().detach().bfloat16()
    y = lp.functional.embedding(INDICES, w, recipe=lp.Recipe(weight="e4m3"))
    assert_bit_equal(y, lp.quantize(F.embedding(INDICES, w.float()), "e4m3"))
