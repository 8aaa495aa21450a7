"""Look-up in a table of weights under a Recipe."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import NO_PRODUCT, TORCH, Ranks, Recipe
from lpkernels.functional import _checks, seeds
from lpkernels.functional.layer import RoundedBothWays, widened
from lpkernels.functional.recording import apply
from lpkernels.recipes import as_recipe


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.nn.functional.embedding`` of a rounded table.

    There are no products. The recipe's `weight` rounds the table, `output` rounds the rows that
    were looked up, `grad_output` rounds their gradient, and `grad_weight` rounds the table's
    gradient, which is summed in float32 in torch's order. A recipe with none of these four is
    torch's own function.

    Args:
        input: indices, any shape, int32 or int64.
        weight: (rows, features); dtypes as in ``linear``.
        padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse: as there,
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html.
            max_norm scales the rows of weight itself, in place, before they are rounded.
        recipe, generator, backend: as in ``linear``.

    Returns: (*input.shape, features), float32.
    Raises: as ``linear``; NotImplementedError: sparse with a recipe that rounds grad_weight.
    """
    recipe = as_recipe(recipe)
    used = (recipe.weight, recipe.output, recipe.grad_output, recipe.grad_weight)
    if all(quantizer is None for quantizer in used):
        lookup = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        return F.embedding(input, weight, *lookup)
    _checks.operands("embedding", weight=weight)
    _checks.no_matmul("embedding", recipe)
    if sparse and recipe.grad_weight is not None:
        raise NotImplementedError(
            "embedding: sparse=True with a recipe that rounds grad_weight; leave one of them away: "
            "only dense gradients are rounded"
        )
    ranks = Ranks("embedding", weight=2, output=input.dim() + 1, no_k=NO_PRODUCT)
    seed = seeds.seed_of_call("embedding", recipe, generator, backend, ranks)
    if max_norm is not None:
        with torch.no_grad():
            torch.embedding_renorm_(weight, input.contiguous(), max_norm, norm_type)
    arithmetic = (recipe, seed, backend)
    table = widened(weight)
    if not (recipe.weight is None and recipe.grad_weight is None):
        table = apply(RoundedBothWays, (table,), "weight", "grad_weight", *arithmetic)
    y = F.embedding(input, table, padding_idx, None, norm_type, scale_grad_by_freq, sparse)
    if recipe.output is None and recipe.grad_output is None:
        return y
    return apply(RoundedBothWays, (y,), "output", "grad_output", *arithmetic)
