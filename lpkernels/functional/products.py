"""Products of two activations under a Recipe: bmm, baddbmm, addmm, einsum, and bilinear."""

from __future__ import annotations

import math
import string
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import TORCH, Ranks, Recipe
from lpkernels.functional import _checks, seeds
from lpkernels.functional._families import member
from lpkernels.functional.call import Sum
from lpkernels.functional.dtypes import narrowed, result_dtype, widened
from lpkernels.functional.layer import emulated_layer
from lpkernels.functional.linear import LinearGeometry
from lpkernels.functional.torch_calls import in_shape, own
from lpkernels.ops import broadcast_batch, matmul_of
from lpkernels.recipes import as_recipe


def one_sum(left: Tensor, right: Tensor, target: torch.Size) -> tuple[Tensor, Tensor]:
    """Two factors. Their product, reshaped to target, is left @ right, summed over the dimensions
    in which target was broadcast.

    These dimensions move, in order, in front of the summed axis and become one with it. Views where
    the strides allow it.
    """
    batch = broadcast_batch(left, right)
    dims = len(batch)
    padded = (1,) * (dims + 2 - len(target)) + tuple(target)
    summed = [i for i in range(dims) if padded[i] != batch[i]]
    if not summed:
        return left, right
    other = [i for i in range(dims) if i not in summed]
    left = left.reshape((1,) * (dims + 2 - left.dim()) + left.shape)
    right = right.reshape((1,) * (dims + 2 - right.dim()) + right.shape)
    left = left.permute(*other, dims, *summed, dims + 1).flatten(len(other) + 1)
    right = right.permute(*other, *summed, dims, dims + 1).flatten(len(other), -2)
    return left, right


def result_shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    """The shape of torch.matmul(a, b).

    Raises: ValueError: there is none.
    """
    left, right = a.shape, b.shape
    if len(left) == len(right) == 2 and left[1] == right[0]:
        return (left[0], right[1])
    if a.dim() == 0 or b.dim() == 0:
        raise ValueError(
            f"matmul: a has shape {tuple(a.shape)} and b {tuple(b.shape)}; both need at least one "
            "dimension; for a product with a scalar use *"
        )
    inner = b.shape[-2] if b.dim() > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError(
            f"matmul: a has K={a.shape[-1]} but b has K={inner} (shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}); a must be (..., M, K) and b (..., K, N)"
        )
    try:
        batch = broadcast_batch(a, b)
    except ValueError:
        raise ValueError(
            f"matmul: the leading dimensions {tuple(a.shape[:-2])} of a and {tuple(b.shape[:-2])} "
            "of b do not broadcast; each pair must be equal or one of them 1"
        ) from None
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.dim() > 1 else ()))


@dataclass(frozen=True)
class ProductGeometry:
    """y (..., M, N) = alpha * x (..., M, K) @ w (..., N, K)^T + b, leading dimensions broadcast.

    The right operand is laid out as a linear layer's weight, so that the sum runs along the last
    axis of both operands; docs/contract.md, "The order of k". alpha multiplies each sum in float32.
    b is any tensor that broadcasts to y, one more addition in the outermost accumulator; its
    gradient sums over the dimensions in which it was broadcast.
    """

    alpha: float = 1.0
    final: bool = True
    two_activations: ClassVar[bool] = True
    matmuls: ClassVar[bool] = True
    name: ClassVar[str] = "a product of two activations"

    @property
    def rounds(self) -> bool:
        return self.alpha == 1

    def _scaled(self, sums: Tensor) -> Tensor:
        return sums if self.alpha == 1 else sums * self.alpha

    def factors(
        self, product: str, left: Tensor, right: Tensor, shape: torch.Size
    ) -> tuple[Tensor, Tensor]:
        if product == "wgrad":
            left, right = one_sum(left.mT, right, shape)
            return left.mT, right
        if right.dim() == 2:
            # As in a linear layer.
            return left if left.dim() == 2 else left.flatten(0, -2), right
        return (left, right) if product == "fprop" else one_sum(left, right, shape)

    def fprop(
        self, x: Tensor, w: Tensor, b: Tensor | None, shape: torch.Size | None, how: Sum
    ) -> Tensor:
        if how.is_native:
            with how.by_torch(x):
                y = self._scaled(own(torch.matmul, x, w.mT))
        else:
            sums = how if b is None else how.rounding(())
            y = self._scaled(sums.of(matmul_of(x, w.mT)))
        if shape is not None:
            # As in LinearGeometry, no view.
            y = in_shape(y, shape, how.run.direct)
        if b is None:
            return y
        return y + b if how.is_native else how.add_bias(y, b, -1)

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        return self._scaled(how.of(matmul_of(g, w))).reshape(shape)

    def wgrad(self, g: Tensor, x: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        return self._scaled(how.of(matmul_of(g.mT, x))).reshape(shape)

    def rows(self, g: Tensor, shape: torch.Size) -> Tensor:
        padded = (1,) * (g.dim() - len(shape)) + tuple(shape)
        summed = [i for i, n in enumerate(padded) if n == 1]
        other = [i for i, n in enumerate(padded) if n != 1]
        terms = torch.Size(g.shape[i] for i in summed).numel()
        return g.permute(*summed, *other).reshape(terms, torch.Size(shape).numel())


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
    bias, rank = None if addend is None else addend.dim(), max(left.dim(), right.dim())
    ranks = Ranks(function, left.dim(), right.dim(), bias, rank)
    seed = seeds.seed_of_call(function, recipe, generator, backend, ranks)
    geometry = ProductGeometry(alpha)
    return emulated_layer(left, right.mT, addend, recipe, geometry, seed, backend)


def _check_matrices(function: str, dims: int, a: Tensor, b: Tensor) -> None:
    """a and b have so many dimensions, and can be multiplied without broadcasting."""
    fits = a.dim() == b.dim() == dims and a.shape[-1] == b.shape[-2]
    if not fits or a.shape[:-2] != b.shape[:-2]:
        expected = "(M, K) and (K, N)" if dims == 2 else "(B, M, K) and (B, K, N)"
        raise ValueError(
            f"{function}: a has shape {tuple(a.shape)} and b {tuple(b.shape)}; expected "
            f"{expected}; matmul broadcasts"
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
    `output` rounds the result. fprop sums the product over k, dgrad the gradient of a over n, and
    wgrad the gradient of b over m; `grad_input` and `grad_weight` round these gradients. A format
    with an axis sees b transposed, (B, N, K), like the weight of a linear layer.

    Args:
        a: (B, M, K), b: (B, K, N); dtypes as in ``linear``.
        recipe, generator, backend: as in ``linear``; torch's own function is
            https://docs.pytorch.org/docs/stable/generated/torch.bmm.html.

    Returns: (B, M, N), with the dtype of a and b as in ``linear``. K = 0 gives +0.
    Raises: as ``linear``.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(torch.bmm, a, b)
    _checks.operands("bmm", a=a, b=b)
    _check_matrices("bmm", 3, a, b)
    return product("bmm", a, b, None, 1.0, recipe, generator, backend)


def _add_product(
    dims: int,
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
    """``torch.NAME`` under a recipe: beta * input + alpha * (a @ b).

    The product is computed as in ``bmm``. alpha multiplies each of its sums, and the sums of both
    its gradients, in float32. beta * input, in float32 and rounded by the recipe's `bias`, is the
    last addition in the outermost accumulator of fprop, as a layer's bias is; its gradient sums, in
    wgrad's accumulator, over the dimensions in which it was broadcast, row-major. With input (N,),
    no factors and an accumulator in the recipe ``addmm`` equals ``linear(a, b.t(), input)``, to the
    bit; torch's own products may round a bias otherwise.

    Args:
        input: any shape that broadcasts to the result's; not read where beta is 0.
        beta, alpha: numbers.
        a, b: (B, M, K) and (B, K, N) of ``baddbmm``, (M, K) and (K, N) of ``addmm``; dtypes as in
            ``linear``.
        recipe, generator, backend: as in ``linear``; torch's own function is
            https://docs.pytorch.org/docs/stable/generated/torch.NAME.html.

    Returns: (B, M, N) or (M, N), with the dtype of input, a and b as in ``linear``.
    Raises: as ``linear``.
    """
    name = "addmm" if dims == 2 else "baddbmm"
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(getattr(torch, name), input, a, b, beta=beta, alpha=alpha)
    _checks.operands(name, input=input, a=a, b=b)
    _check_matrices(name, dims, a, b)
    _checks.broadcasts(name, "input", input, (*a.shape[:-1], b.shape[-1]))
    addend = None if beta == 0 else widened(input) if beta == 1 else widened(input) * beta
    left, right = widened(a), widened(b)
    y = product(name, left, right, addend, float(alpha), recipe, generator, backend)
    return narrowed(y, result_dtype(input, a, b))


baddbmm = member("baddbmm", _add_product, 3)
addmm = member("addmm", _add_product, 2)


def einsum(
    equation: str,
    *operands: Tensor,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.einsum`` of two operands under a recipe, as one product of two activations (``bmm``).

    Labels of both operands and of the output are its batch, labels of the output and the first
    operand its rows, and labels of the output and the second operand its columns. All others are
    summed, in the order in which they appear in the equation; the dimensions of an ellipsis stand
    where it stands. An operand is repeated along a label that it lacks, and along a size of 1; the
    parts of its gradient are then added in float32.

    Args:
        equation: letters, "..." and "->" as torch.einsum takes them; a label repeated in one
            operand is its diagonal.
        operands: two tensors; dtypes as in ``linear``.
        recipe, generator, backend: as in ``linear``; torch's own function is
            https://docs.pytorch.org/docs/stable/generated/torch.einsum.html.

    Returns: torch.einsum's shape, with the dtype of both operands as in ``linear``.
    Raises: as ``linear``; ValueError: not two operands, an equation that does not fit their shapes.

    >>> q, k = torch.ones(2, 3, 4), torch.ones(2, 5, 4)
    >>> lp.functional.einsum("nqe,nke->nqk", q, k, recipe="fp16_mixed").shape
    torch.Size([2, 3, 5])
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(torch.einsum, equation, *operands)
    if len(operands) != 2:
        raise ValueError(
            f"einsum: expected two operands, got {len(operands)}; contract two at a time"
        )
    a, b = operands
    _checks.operands("einsum", a=a, b=b)
    left, right, result = _labels(equation, a, b)
    sizes = _sizes(equation, (a, left), (b, right))
    batch = "".join(c for c in result if c in left and c in right)
    rows = "".join(c for c in result if c in left and c not in right)
    columns = "".join(c for c in result if c not in left)
    summed = "".join(c for c in dict.fromkeys(left + right) if c not in result)
    x = _arranged(a, left, (batch, rows, summed), sizes)
    w = _arranged(b, right, (batch, summed, columns), sizes)
    y = product("einsum", x, w, None, 1.0, recipe, generator, backend)
    order = batch + rows + columns
    y = y.reshape([sizes[label] for label in order])
    return y.permute([order.index(label) for label in result])


def _labels(equation: str, a: Tensor, b: Tensor) -> tuple[str, str, str]:
    """One label for each dimension of a, of b and of the result."""
    if not isinstance(equation, str):
        raise TypeError(
            f"einsum: equation must be a str such as 'ij,jk->ik', got {type(equation).__name__}"
        )
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    allowed = set(string.ascii_letters)
    if len(parts) != 2 or not set((inputs + output).replace("...", "").replace(",", "")) <= allowed:
        raise ValueError(
            f"einsum: equation {equation!r}; expected two operands of letters and at most one "
            "'...' each, as in '...ij,jk->...ik'"
        )
    counts = [_ellipsis(equation, part, x) for part, x in zip(parts, (a, b), strict=True)]
    # Labels that no equation can hold stand for the dimensions of the ellipsis, aligned at its end.
    dots = "".join(chr(0x100 + i) for i in range(max(counts)))
    left, right = (
        part.replace("...", dots[len(dots) - n :]) for part, n in zip(parts, counts, strict=True)
    )
    if not arrow:
        letters = left + right
        free = sorted(c for c in set(letters) - set(dots) if letters.count(c) == 1)
        return left, right, dots + "".join(free)
    result = output.replace("...", dots)
    if len(set(result)) != len(result) or not set(result) <= set(left + right):
        raise ValueError(
            f"einsum: the output of {equation!r} must name labels of the operands, each once"
        )
    return left, right, result


def _ellipsis(equation: str, part: str, x: Tensor) -> int:
    """How many dimensions of x the ellipsis of its part of the equation stands for."""
    named = len(part.replace("...", ""))
    if part.count("...") > 1 or named > x.dim() or ("..." not in part and named < x.dim()):
        raise ValueError(
            f"einsum: {part!r} of {equation!r} names {named} dimensions, but the operand has shape "
            f"{tuple(x.shape)}"
        )
    return x.dim() - named


def _sizes(equation: str, *operands: tuple[Tensor, str]) -> dict[str, int]:
    """The size of every label; one of size 1 repeats."""
    sizes: dict[str, int] = {}
    for x, labels in operands:
        for label, n in zip(labels, x.shape, strict=True):
            size = sizes.get(label, 1)
            if 1 not in (size, n) and size != n:
                raise ValueError(
                    f"einsum: label {label!r} of {equation!r} has the sizes {size} and {n}; "
                    "expected equal ones, or 1"
                )
            sizes[label] = n if size == 1 else size
    return sizes


def _arranged(x: Tensor, labels: str, groups: tuple[str, ...], sizes: dict[str, int]) -> Tensor:
    """x with one dimension for each group of labels, in their order. A label that x lacks repeats
    it, and a label that x has twice is its diagonal."""
    order, numbers = "".join(groups), {label: i for i, label in enumerate(sizes)}
    dims = [numbers[c] for c in labels], [numbers[c] for c in order if c in labels]
    x = own(torch.einsum, x, dims[0], dims[1])
    for place, label in enumerate(order):
        if label not in labels:
            x = x.unsqueeze(place)
    x = x.expand([sizes[label] for label in order])
    return x.reshape([math.prod([sizes[label] for label in group]) for group in groups])


_FIRST = LinearGeometry(final=False)


class _OuterGeometry(ProductGeometry):
    """y (n, O) = t (n, O, J) @ x2 (n, 1, J)^T + b (O,): a product with a single column."""

    name: ClassVar[str] = "bilinear"

    def factors(
        self, product: str, left: Tensor, right: Tensor, shape: torch.Size
    ) -> tuple[Tensor, Tensor]:
        left = left if product == "fprop" else left.unsqueeze(-1)
        return super().factors(product, left, right, shape)

    def fprop(
        self, x: Tensor, w: Tensor, b: Tensor | None, shape: torch.Size | None, how: Sum
    ) -> Tensor:
        y = super().fprop(x, w, None if b is None else b.unsqueeze(-1), shape, how)
        return in_shape(y, y.shape[:-1], how.run.direct)

    def rows(self, g: Tensor, shape: torch.Size) -> Tensor:
        return g


def _check_bilinear(x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    _checks.operands("bilinear", x1=x1, x2=x2, weight=weight, bias=bias)
    leading, features = x1.shape[:-1], weight.shape[1:]
    fits = weight.dim() == 3 and x1.dim() == x2.dim() > 0
    fits = fits and (x1.shape, x2.shape) == tuple((*leading, n) for n in features)
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = [None if x is None else tuple(x.shape) for x in (x1, x2, weight, bias)]
        raise ValueError(
            f"bilinear: x1, x2, weight and bias have the shapes {shapes}; expected (..., I), "
            "(..., J) with the same leading dimensions, (O, I, J) and (O,)"
        )


def bilinear_ranks(bias: object) -> tuple[Ranks, Ranks]:
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

    Returns: (..., out_features), with the dtype of all operands as in ``linear``; the first product
        is not rounded to it.
    Raises: as ``linear``.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(F.bilinear, x1, x2, weight, bias)
    _check_bilinear(x1, x2, weight, bias)
    seed = seeds.seed_of_call("bilinear", recipe, generator, backend, *bilinear_ranks(bias))
    outs, ins1, ins2 = weight.shape
    left = widened(x1.reshape(-1, ins1))
    right = widened(x2.reshape(-1, 1, ins2))
    matrix = widened(weight).transpose(1, 2).reshape(outs * ins2, ins1)
    t = emulated_layer(left, matrix, None, recipe, _FIRST, seed, backend)
    t = t.reshape(-1, outs, ins2)
    b = None if bias is None else widened(bias)
    second = seeds.seed_of_product(seed, 1)
    y = emulated_layer(t, right, b, recipe, _OuterGeometry(), second, backend)
    y = narrowed(y, result_dtype(x1, x2, weight, bias))
    return y.reshape(*x1.shape[:-1], outs)
