"""embedding: the rounded table, its gradients, and torch's options."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.reference import twin
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role, derive_seed
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import ACCUMULATORS_ONLY, RECIPES

SEED = 987654321
INDICES = torch.tensor([[0, 2, 2], [5, 0, 1]])


def table() -> torch.Tensor:
    return torch.randn(6, 4, requires_grad=True)


def rounded(x: torch.Tensor, recipe: lp.Recipe, field: str, site: int = SITE_QUANTIZE) -> Any:
    quantizer = getattr(recipe, field)
    if quantizer is None:
        return x
    seed = derive_seed(SEED, Role[field.upper()])
    return torch.from_numpy(twin.quantize(x.detach().numpy(), quantizer, seed=seed, site=site))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_embedding_equals_the_composition_of_the_reference(recipe: lp.Recipe, backend: str) -> None:
    w, g = table(), torch.randn(2, 3, 4)
    call: dict[str, Any] = {"generator": torch.tensor(SEED), "backend": backend}
    y = lp.functional.embedding(INDICES, w, recipe=recipe, **call)
    rows = F.embedding(INDICES, rounded(w, recipe, "weight"))
    assert_bit_equal(y, rounded(rows, recipe, "output", SITE_OUTPUT))
    plain = table()
    gq = rounded(g, recipe, "grad_output")
    (dw,) = torch.autograd.grad(F.embedding(INDICES, plain), plain, gq)
    (got,) = torch.autograd.grad(y, w, g)
    assert_bit_equal(got, rounded(dw, recipe, "grad_weight"))


@pytest.mark.parametrize("recipe", ["fp32", ACCUMULATORS_ONLY], ids=["fp32", "sums"])
def test_embedding_without_quantizers_is_torchs_own(recipe: Any) -> None:
    w = table().double()
    assert_bit_equal(lp.functional.embedding(INDICES, w, recipe=recipe), F.embedding(INDICES, w))


@pytest.mark.parametrize("options", [{"padding_idx": 2}, {"scale_grad_by_freq": True}], ids=str)
def test_embedding_options_are_torchs(options: dict[str, Any]) -> None:
    w = table()
    got = lp.functional.embedding(INDICES, w, **options, recipe=lp.Recipe(weight="fp32"))
    want = F.embedding(INDICES, w, **options)
    assert_bit_equal(got, want)
    g = torch.randn(want.shape)
    assert_bit_equal(*(torch.autograd.grad(y, w, g)[0] for y in (got, want)))


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


@pytest.mark.parametrize(
    "call, error, match",
    [
        (lambda: {"weight": torch.ones(3, 2).double()}, TypeError, "embedding: weight is float64"),
        (lambda: {"sparse": True}, NotImplementedError, "sparse=True with a recipe that rounds"),
        (lambda: {"backend": "gpu"}, ValueError, "unknown backend 'gpu'"),
        (lambda: {"generator": 3}, TypeError, "generator must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_embedding_refuses_wrong_arguments(call: Any, error: type[Exception], match: str) -> None:
    arguments = {"weight": torch.ones(6, 4), **call()}
    with pytest.raises(error, match=match):
        lp.functional.embedding(INDICES, **arguments, recipe=lp.Recipe(grad_weight="e4m3"))
