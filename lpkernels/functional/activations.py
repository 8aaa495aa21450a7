"""Softmax and GELU under a Recipe."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import NO_PRODUCT, TORCH, Ranks, Recipe, check_axes
from lpkernels.functional import _checks, seeds
from lpkernels.functional._sums import dots, sums
from lpkernels.functional.layer import Call, RoundedBothWays, widened
from lpkernels.functional.recording import apply, first_order
from lpkernels.functional.storing import seeing
from lpkernels.functional.torch_calls import own
from lpkernels.ops import operators_for
from lpkernels.recipes import as_recipe


def _rows(x: Tensor) -> Tensor:
    """x, which is not empty, with a row for each sum, the last dimension."""
    return x.reshape(-1, x.shape[-1])


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dim: int, recipe: Recipe, seed: Tensor | None, backend: str
    ) -> Tensor:
        call = Call(recipe, seed, backend, operators_for(x, seed), seeing())
        xq = call.rounded(x, "input")
        moved = xq.movedim(dim, -1)
        e = torch.exp(moved - moved.amax(-1, keepdim=True))
        total = sums(call.sum("fprop"), _rows(e))
        y = e / total.reshape(*e.shape[:-1], 1)
        ctx.save_for_backward(y, seed)
        ctx.dim, ctx.recipe, ctx.backend, ctx.sees = dim, recipe, backend, seeing()
        result = y.movedim(-1, dim)
        return result.clone() if recipe.output is None else call.rounded(result, "output")

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        y, seed = ctx.saved_tensors
        call = Call(ctx.recipe, seed, ctx.backend, operators_for(dy, y, seed), seeing())
        g = call.rounded(dy, "grad_output").movedim(ctx.dim, -1)
        along = dots(call.sum("dgrad"), _rows(g), _rows(y))
        dx = (y * (g - along.reshape(*y.shape[:-1], 1))).movedim(-1, ctx.dim)
        return call.rounded(dx, "grad_input"), None, None, None, None


def softmax(
    input: Tensor,
    dim: int,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.nn.functional.softmax`` with its tensors and its sums rounded as a recipe says.

        e = exp(x - max(x));   y = e / sum(e);   dx = y (dy - sum(dy y))

    The first sum is in the recipe's fprop, the second, of products, in dgrad; `input`, `output`,
    `grad_output` and `grad_input` round what they name, and the gradient reads y before `output`.
    Everything else is float32's.

    Args:
        input: any shape; dtypes as in ``linear``.
        dim: the axis of the sums, as there,
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html.
        recipe, generator, backend: as in ``linear``. One seed is drawn per call.

    Returns: the shape of input, float32.
    Raises: as ``linear``; IndexError: a dim that input does not have.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch or not input.numel():
        return own(F.softmax, input, dim)
    _checks.operands("softmax", input=input)
    _checks.no_matmul("softmax", recipe, "fprop", "dgrad")
    if not -max(input.dim(), 1) <= dim < max(input.dim(), 1):
        raise IndexError(f"softmax: dim={dim}, but input has shape {tuple(input.shape)}")
    ranks = Ranks("softmax", input.dim(), output=input.dim(), no_k=NO_PRODUCT)
    seed = seeds.seed_of_call("softmax", recipe, generator, backend, ranks)
    x = widened(input) if input.dim() else widened(input).reshape(1)
    return apply(_Softmax, (x,), dim, recipe, seed, backend).reshape(input.shape)


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
    arithmetic = (recipe, seed, backend)
    x = apply(RoundedBothWays, (widened(input),), "input", "grad_input", *arithmetic)
    y = own(F.gelu, x, approximate=approximate)
    return apply(RoundedBothWays, (y,), "output", "grad_output", *arithmetic)
