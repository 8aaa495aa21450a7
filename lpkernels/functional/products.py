"""Products of two activations under a Recipe: bmm, baddbmm, addmm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lpkernels.arithmetic import TORCH, Ranks, Recipe, check_axes
from lpkernels.functional import _checks, seeds
from lpkernels.functional._batches import one_sum
from lpkernels.functional.layer import Sum, emulated_layer, widened
from lpkernels.functional.torch_calls import own
from lpkernels.ops import matmul_of
from lpkernels.recipes import as_recipe


@dataclass(frozen=True)
class ProductGeometry:
    """y (..., M, N) = alpha * x (..., M, K) @ w (..., N, K)^T + b, leading dimensions broadcast.

    The right operand is laid out as a linear layer's weight, so that the sum runs along the last
    axis of both operands. The sums run over K forward, over (leading dimensions in which x was
    broadcast, n) for the left gradient, and over (leading dimensions in which w was broadcast, m)
    for the right gradient. alpha multiplies each sum in float32. b is any tensor that broadcasts to
    y, one more addition in the outermost accumulator; its gradient sums over the dimensions in
    which it was broadcast.
    """

    alpha: float = 1.0
    final: bool = True
    two_activations: ClassVar[bool] = True
    matmuls: ClassVar[bool] = True

    @property
    def rounds(self) -> bool:
        return self.alpha == 1

    def _scaled(self, sums: Tensor) -> Tensor:
        return sums if self.alpha == 1 else sums * self.alpha

    def fprop(self, x: Tensor, w: Tensor, b: Tensor | None, how: Sum) -> Tensor:
        if how.acc.is_native:
            with how.by_torch(x):
                y = self._scaled(own(torch.matmul, x, w.mT))
                return y if b is None else y + b
        if b is None:
            return self._scaled(how.of(matmul_of(x, w.mT)))
        y = self._scaled(how.rounding(()).of(matmul_of(x, w.mT)))
        return how.add_bias(y, b, -1)

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        dx = how.of(matmul_of(*one_sum(g, w, shape)))
        return self._scaled(dx).reshape(shape)

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        # The product's first operand is g.
        dw = how.swapped().of(matmul_of(*one_sum(g.mT, x, shape)))
        return self._scaled(dw).reshape(shape)

    def factors(
        self, product: str, left: Tensor, right: Tensor, shape: torch.Size
    ) -> tuple[Tensor, Tensor]:
        if product == "wgrad":
            left, right = one_sum(left.mT, right, shape)
            return left.mT, right
        if right.dim() == 2:
            # As in a linear layer.
            return left.flatten(0, -2), right
        return (left, right) if product == "fprop" else one_sum(left, right, shape)

    def shaped(self, y: Tensor, shape: torch.Size) -> Tensor:
        return self._scaled(y).reshape(shape)

    def rows(self, g: Tensor, shape: torch.Size) -> Tensor:
        padded = (1,) * (g.dim() - len(shape)) + tuple(shape)
        summed = [i for i, n in enumerate(padded) if n == 1]
        kept = [i for i, n in enumerate(padded) if n != 1]
        terms = torch.Size(g.shape[i] for i in summed).numel()
        return g.permute(*summed, *kept).reshape(terms, torch.Size(shape).numel())


def product(
    function: str,
    left: Tensor,
    right: Tensor,
    addend: Tensor | None,
    alpha: float,
    recipe: Recipe,
    generator: torch.Generator | Tensor | None,
    backend: str,
) -> Tensor:
    """alpha * left (..., M, K) @ right (..., K, N) + addend, checked operands, under a recipe."""
    _checks.call(function, backend, generator)
    if recipe.axes:
        bias = None if addend is None else addend.dim()
        rank = max(left.dim(), right.dim())
        check_axes(recipe, Ranks(function, left.dim(), right.dim(), bias, rank))
    seed = seeds.seed_for(recipe.is_stochastic, generator)
    b = None if addend is None else widened(addend)
    operands = (widened(left), widened(right).mT)
    return emulated_layer(*operands, b, recipe, ProductGeometry(alpha), seed, backend)


def _check_batches(function: str, a: Tensor, b: Tensor) -> None:
    _checks.operands(function, a=a, b=b)
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ValueError(
            f"{function}: a has shape {tuple(a.shape)} and b {tuple(b.shape)}; expected (B, M, K) "
            "and (B, K, N); matmul broadcasts"
        )


def bmm(
    a: Tensor,
    b: Tensor,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.bmm`` under a recipe: the products of B pairs of matrices.

    This is a product of two activations: the recipe's `input` rounds a, `weight` rounds b and
    `output` rounds the result. fprop sums the product, dgrad sums the gradient of a, and wgrad sums
    the gradient of b; `grad_input` and `grad_weight` round these gradients. The sums run over k
    forward, over n for a's gradient, over m for b's. A format with an axis sees b transposed, (B,
    N, K), like the weight of a linear layer: the sum runs along axis -1 of both operands.

    Args:
        a: (B, M, K), b: (B, K, N), float32, float16 or bfloat16 (widened exactly), any strides.
        recipe, generator, backend: as in ``linear``; torch's own function is
            https://docs.pytorch.org/docs/stable/generated/torch.bmm.html.

    Returns:
        (B, M, N), float32. K = 0 gives +0.

    Raises:
        TypeError: float64 or integer operands, an argument of the wrong type.
        ValueError: shapes that do not fit, operands on different devices.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(torch.bmm, a, b)
    _check_batches("bmm", a, b)
    return product("bmm", a, b, None, 1.0, recipe, generator, backend)


def baddbmm(
    input: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.baddbmm`` under a recipe: beta * input + alpha * (a @ b), B pairs of matrices.

    The product is computed as in ``bmm``. alpha multiplies each of its sums, and the sums of both
    its gradients, in float32. beta * input, in float32 and rounded by the recipe's `bias`, is the
    last addition in the outermost accumulator of fprop, as a layer's bias is; its gradient sums, in
    wgrad's accumulator, over the dimensions in which it was broadcast, row-major.

    Args:
        input: any shape that broadcasts to (B, M, N); not read where beta is 0.
        beta, alpha: numbers.
        a: (B, M, K), b: (B, K, N), float32, float16 or bfloat16 (widened exactly), any strides.
        recipe, generator, backend: as in ``linear``; torch's own function is
            https://docs.pytorch.org/docs/stable/generated/torch.baddbmm.html.

    Returns:
        (B, M, N), float32.

    Raises:
        TypeError: float64 or integer operands, an argument of the wrong type.
        ValueError: shapes that do not fit, operands on different devices.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(torch.baddbmm, input, a, b, beta=beta, alpha=alpha)
    _check_batches("baddbmm", a, b)
    _checks.operands("baddbmm", input=input, a=a)
    shape = (a.shape[0], a.shape[1], b.shape[2])
    addend = scaled_addend("baddbmm", input, shape, beta)
    return product("baddbmm", a, b, addend, float(alpha), recipe, generator, backend)


def addmm(
    input: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.addmm`` under a recipe: beta * input + alpha * (a @ b), of one pair of matrices.

    It is computed as in ``baddbmm``. With input (N,), no factors and an accumulator in the recipe
    it equals ``linear(a, b.t(), input)``, to the bit; torch's own products may round a bias
    otherwise.

    Args:
        input: any shape that broadcasts to (M, N); not read where beta is 0.
        a, b: (M, K) and (K, N); dtypes as in ``linear``.
        beta, alpha: numbers.
        recipe, generator, backend: as in ``linear``; torch's own function is
            https://docs.pytorch.org/docs/stable/generated/torch.addmm.html.

    Returns:
        (M, N), float32.

    Raises: as ``baddbmm``.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(torch.addmm, input, a, b, beta=beta, alpha=alpha)
    _checks.operands("addmm", input=input, a=a, b=b)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"addmm: a has shape {tuple(a.shape)} and b {tuple(b.shape)}; expected (M, K) and "
            "(K, N)"
        )
    addend = scaled_addend("addmm", input, (a.shape[0], b.shape[1]), beta)
    return product("addmm", a, b, addend, float(alpha), recipe, generator, backend)


def scaled_addend(
    function: str, input: Tensor, shape: tuple[int, ...], beta: float
) -> Tensor | None:
    """beta * input, which must broadcast to shape; None where beta is 0."""
    padded = (1,) * (len(shape) - input.dim()) + tuple(input.shape)
    if len(padded) > len(shape) or any(
        n not in (1, size) for n, size in zip(padded, shape, strict=True)
    ):
        raise ValueError(
            f"{function}: input has shape {tuple(input.shape)}, which does not broadcast to the "
            f"result's {shape}"
        )
    if beta == 0:
        return None
    return input if beta == 1 else widened(input) * beta
