"""The linear layer under a Recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import TORCH, Ranks, Recipe, check_axes
from lpkernels.functional import _checks, seeds
from lpkernels.functional.call import Sum
from lpkernels.functional.layer import emulated_layer
from lpkernels.functional.running import Scales
from lpkernels.functional.torch_calls import in_shape, own
from lpkernels.ops import Product, is_direct
from lpkernels.recipes import as_recipe


@dataclass(frozen=True)
class LinearGeometry:
    """y (..., O) = x (..., I) @ w (O, I).T + b; sums over I (fprop), O (dgrad), rows (wgrad).

    Tensors keep their shape, so that a format with an axis means the axis of the tensor given.
    """

    final: bool = True
    two_activations: ClassVar[bool] = False
    matmuls: ClassVar[bool] = True
    rounds: ClassVar[bool] = True
    name: ClassVar[str] = "a linear layer"

    def factors(
        self, product: str, left: Tensor, right: Tensor, shape: torch.Size
    ) -> tuple[Tensor, Tensor]:
        if left.dim() != 2:
            left = left.flatten(0, -2)
        if right.dim() != 2:
            right = right.flatten(0, -2)
        return left, right

    def fprop(
        self, x: Tensor, w: Tensor, b: Tensor | None, shape: torch.Size | None, how: Sum
    ) -> Tensor:
        if not how.is_native:
            y = how.of(Product("matmul", x, w.t(), (x.size(0), w.size(0)), None, b))
        elif how.run.direct and not torch.is_autocast_enabled("cpu"):
            y = F.linear(x, w, b)
        else:
            with how.by_torch(x):
                y = own(F.linear, x, w, b)
        return y if shape is None else in_shape(y, shape, how.run.direct)

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        dx = how.of(Product("matmul", g, w, (g.size(0), w.size(1))))
        return dx if len(shape) == 2 else dx.view(shape)

    def wgrad(self, g: Tensor, x: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        return how.of(Product("matmul", g.t(), x, shape))

    def rows(self, g: Tensor, shape: torch.Size) -> Tensor:
        return g if g.dim() == 2 else g.flatten(0, -2)


_GEOMETRY = LinearGeometry()


def _check_linear(x: Tensor, weight: Tensor, bias: Tensor | None, direct: bool) -> None:
    if not direct:
        _checks.operands("linear", x=x, weight=weight, bias=bias)
    if weight.dim() != 2:
        raise ValueError(
            f"linear: weight has shape {tuple(weight.shape)}; expected (out_features, in_features)"
        )
    if x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"linear: x has shape {tuple(x.shape)} but weight in_features={weight.shape[1]}; "
            f"x must be (..., {weight.shape[1]})"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"linear: bias has shape {tuple(bias.shape)}, weight out_features={weight.shape[0]}; "
            f"bias must be ({weight.shape[0]},)"
        )


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
    scales: Scales | None = None,
) -> Tensor:
    """``torch.nn.functional.linear`` with every operand and every sum rounded as the recipe says.

    The sums run in the order of k: over in_features forward, over out_features for the input's
    gradient, over the leading dimensions of x in row-major order for the gradients of weight and
    bias. docs/contract.md has the rules of sums and gradients for all functions with a recipe.

    Args:
        x: (..., in_features), float32, float16 or bfloat16 (widened exactly), any strides.
        weight: (out_features, in_features), same dtypes and device.
        bias: (out_features,) or None; one more addition in the outermost accumulator.
        recipe: a Recipe or its name. One without quantizers and with native products is torch's own
            function (https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.linear.html):
            any dtype, autocast's own result. Under any other recipe autocast has no effect.
        generator: a CPU torch.Generator or a 0-d int64 tensor, the seed of stochastic rounding;
            None is torch's default CPU generator. One seed is drawn per call, and only when the
            recipe rounds stochastically.
        backend: "auto" or a name in ``lpkernels.backends.status()``.
        scales: the delayed scales of a recipe with `scaling`, which layers of lpkernels.nn keep.

    Returns: (..., out_features), in the dtype of x, weight and bias where all have one of 16 bits
        (the float32 result, after the recipe's `output`, rounded to nearest even), else float32.
        Without in_features these are zeros (+0, plus bias); without rows the tensor is empty.

    Raises:
        TypeError: float64 or integer operands, an argument of the wrong type.
        ValueError: shapes that do not fit, operands on different devices, an unknown recipe or
            backend, a format along an axis that its tensor lacks.
        NotImplementedError: the backend asked for cannot do this.

    >>> x, w = torch.full((1, 3), 1.1), torch.ones(2, 3)
    >>> lp.functional.linear(x, w, recipe=lp.Recipe(input="e4m3fn", fprop="e5m10"))
    tensor([[3.3750, 3.3750]])
    """
    if type(recipe) is not Recipe:
        recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(F.linear, x, weight, bias)
    direct = is_direct(x, weight, bias, dtype=torch.float32)
    _check_linear(x, weight, bias, direct)
    if backend != "auto" or generator is not None:
        _checks.call("linear", backend, generator)
    if recipe.axes:
        rank = max(x.dim(), 2)
        check_axes(recipe, Ranks("linear", rank, 2, None if bias is None else 1, rank))
    seed = seeds.seed_for(True, generator) if recipe.is_stochastic else None
    rows = x if x.dim() > 1 else x.unsqueeze(0)
    direct = direct and (seed is None or is_direct(seed))
    y = emulated_layer(rows, weight, bias, recipe, _GEOMETRY, seed, backend, scales, direct)
    return y if rows is x else y.squeeze(0)
