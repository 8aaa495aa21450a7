"""Functions of torch without products, between quantizers of a Recipe: GELU, and the look-up in a
table of weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import NO_PRODUCT, TORCH, Ranks, Recipe, check_axes
from lpkernels.functional import _checks, seeds
from lpkernels.functional.call import Call
from lpkernels.functional.layer import widened
from lpkernels.functional.recording import apply, first_order
from lpkernels.functional.torch_calls import own
from lpkernels.recipes import as_recipe


class RoundedBothWays(torch.autograd.Function):
    """x by the quantizer of one field of a recipe, its gradient by that of another."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        field: str,
        gradient_field: str,
        recipe: Recipe,
        seed: Tensor | None,
        backend: str,
    ) -> Tensor:
        ctx.save_for_backward(seed)
        call = Call.of(recipe, seed, backend, x)
        ctx.hook, ctx.field = call.hook, gradient_field
        ctx.recipe, ctx.backend = recipe, backend
        y = call.rounded(x, field)
        return x.clone() if y is x else y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (seed,) = ctx.saved_tensors
        call = Call.of(ctx.recipe, seed, ctx.backend, grad)
        return call.rounded(grad, ctx.field), None, None, None, None, None


def _rounded(
    x: Tensor, field: str, gradient_field: str, recipe: Recipe, seed: Tensor | None, backend: str
) -> Tensor:
    """x by the quantizer of one field, its gradient by that of another; x itself without both."""
    if getattr(recipe, field) is None and getattr(recipe, gradient_field) is None:
        return x
    return apply(RoundedBothWays, (x,), field, gradient_field, recipe, seed, backend)


def gelu(
    input: Tensor,
    *,
    approximate: str = "none",
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.nn.functional.gelu`` between the recipe's quantizers.

    GELU has no sums: `input` and `output` round the tensors, and `grad_output` and `grad_input`
    their gradients. The function of the rounded input, and its derivative, are float32's. A recipe
    with none of these four quantizers is torch's own function.

    Args:
        input: any shape; dtypes as in ``linear``.
        approximate: as there, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.gelu.html.
        recipe, generator, backend: as in ``linear``. One seed is drawn per call.

    Returns: the shape of input, float32.
    Raises: as ``linear``.
    """
    recipe = as_recipe(recipe)
    used = (recipe.input, recipe.output, recipe.grad_output, recipe.grad_input)
    if all(quantizer is None for quantizer in used):
        return own(F.gelu, input, approximate=approximate)
    _checks.operands("gelu", input=input)
    _checks.call("gelu", backend, generator)
    _checks.no_matmul("gelu", recipe)
    if recipe.axes:
        check_axes(recipe, Ranks("gelu", input.dim(), output=input.dim(), no_k=NO_PRODUCT))
    seed = seeds.seed_for(any(q is not None and q.is_stochastic for q in used), generator)
    x = _rounded(widened(input), "input", "grad_input", recipe, seed, backend)
    y = own(F.gelu, x, approximate=approximate)
    return _rounded(y, "output", "grad_output", recipe, seed, backend)


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
    table = _rounded(widened(weight), "weight", "grad_weight", recipe, seed, backend)
    y = F.embedding(input, table, padding_idx, None, norm_type, scale_grad_by_freq, sparse)
    return _rounded(y, "output", "grad_output", recipe, seed, backend)
