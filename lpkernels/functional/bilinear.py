"""The bilinear layer under a Recipe."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import TORCH, Ranks, Recipe
from lpkernels.functional import _checks, seeds
from lpkernels.functional.layer import Sum, emulated_layer, widened
from lpkernels.functional.linear import LinearGeometry
from lpkernels.functional.products import ProductGeometry
from lpkernels.functional.torch_calls import own
from lpkernels.recipes import as_recipe

_INNER = LinearGeometry(final=False)


class _OuterGeometry(ProductGeometry):
    """y (n, O) = t (n, O, J) @ x2 (n, 1, J)^T + b (O,): a product with a single column."""

    def fprop(self, x: Tensor, w: Tensor, b: Tensor | None, how: Sum) -> Tensor:
        y = super().fprop(x, w, None if b is None else b.unsqueeze(-1), how)
        # As in LinearGeometry, no view.
        return torch.ops.aten._unsafe_view(y, y.shape[:-1])

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        return super().dgrad(g.unsqueeze(-1), w, shape, how)

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        return super().wgrad(x, g.unsqueeze(-1), shape, how)

    def rows(self, g: Tensor, shape: torch.Size) -> Tensor:
        return g

    def factors(
        self, product: str, left: Tensor, right: Tensor, shape: torch.Size
    ) -> tuple[Tensor, Tensor]:
        left = left if product == "fprop" else left.unsqueeze(-1)
        return super().factors(product, left, right, shape)


def _check_bilinear(x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    _checks.operands("bilinear", x1=x1, x2=x2, weight=weight, bias=bias)
    if weight.dim() != 3:
        raise ValueError(
            f"bilinear: weight has shape {tuple(weight.shape)}; expected (out_features, "
            "in1_features, in2_features)"
        )
    features = [x.shape[-1] if x.dim() else None for x in (x1, x2)]
    if features != list(weight.shape[1:]) or x1.shape[:-1] != x2.shape[:-1]:
        raise ValueError(
            f"bilinear: x1 has shape {tuple(x1.shape)} and x2 {tuple(x2.shape)}; expected (..., "
            f"{weight.shape[1]}) and (..., {weight.shape[2]}) with the same leading dimensions"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"bilinear: bias has shape {tuple(bias.shape)}, weight out_features={weight.shape[0]}; "
            f"bias must be ({weight.shape[0]},)"
        )


def ranks(bias: object) -> tuple[Ranks, Ranks]:
    """The ranks of the tensors of the two products."""
    inner = Ranks("bilinear", 2, 2, None if bias is None else 1, 2)
    return inner, Ranks("bilinear", 3, 3, output=2)


def bilinear(
    x1: Tensor,
    x2: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.nn.functional.bilinear`` under a recipe, as two products: x1 W, then x2.

        t[n, o, j] = sum over i of x1[n, i] * weight[o, i, j]
        y[n, o] = sum over j of t[n, o, j] * x2[n, j], + bias[o]

    The first is a linear layer with the weight (out * in2, in1) and without `output`; its output
    gradient is the gradient of t. The second is a product of two activations, as in ``bmm``: the
    recipe's `input` rounds t and its `weight` rounds x2. n runs over the leading dimensions in
    row-major order. A format with an axis sees x1 as (n, in1), x2 as (n, 1, in2) and y as (n, out).

    Args:
        x1: (..., in1_features), x2: (..., in2_features); dtypes as in ``linear``.
        weight: (out_features, in1_features, in2_features), bias: (out_features,) or None; the bias
            is one more addition in the outermost accumulator of the second product.
        recipe, generator, backend: as in ``linear``. One seed is drawn for both products. torch's
            own function is https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.bilinear.html.

    Returns: (..., out_features), float32.
    Raises: as ``linear``.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(F.bilinear, x1, x2, weight, bias)
    _check_bilinear(x1, x2, weight, bias)
    seed = seeds.seed_of_call("bilinear", recipe, generator, backend, *ranks(bias))
    outs, ins1, ins2 = weight.shape
    left = widened(x1.reshape(-1, ins1))
    right = widened(x2.reshape(-1, 1, ins2))
    matrix = widened(weight).transpose(1, 2).reshape(outs * ins2, ins1)
    t = emulated_layer(left, matrix, None, recipe, _INNER, seed, backend)
    t = t.reshape(-1, outs, ins2)
    b = None if bias is None else widened(bias)
    second = seeds.seed_of_product(seed, 1)
    y = emulated_layer(t, right, b, recipe, _OuterGeometry(), second, backend)
    return y.reshape(*x1.shape[:-1], outs)
