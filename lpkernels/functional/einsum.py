"""Sums in Einstein's notation of two operands under a Recipe."""

from __future__ import annotations

import math
import string

import torch
from torch import Tensor

from lpkernels.arithmetic import TORCH, Recipe
from lpkernels.functional import _checks
from lpkernels.functional.products import product
from lpkernels.functional.torch_calls import own
from lpkernels.recipes import as_recipe


def einsum(
    equation: str,
    *operands: Tensor,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.einsum`` of two operands under a recipe.

    The result is one product of two activations, as in ``bmm``. Labels of both operands and of the
    output are its batch, labels of the output and the first operand are its rows, and labels of the
    output and the second operand its columns. All other labels are summed, in the order in which
    they appear in the equation (the dimensions of an ellipsis stand where the ellipsis stands). A
    label that only one operand has, and not the output, is summed with the other operand repeated.
    Where an operand is repeated, for such a label or for a size of 1, the parts of its gradient are
    added in float32.

    Args:
        equation: letters, "..." and "->" as torch.einsum takes them; a label repeated in one
            operand is its diagonal.
        operands: two tensors; dtypes as in ``linear``.
        recipe, generator, backend: as in ``linear``; torch's own function is
            https://docs.pytorch.org/docs/stable/generated/torch.einsum.html.

    Returns: float32, with torch.einsum's shape.
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
    a, left = _diagonal(a, left)
    b, right = _diagonal(b, right)
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


def _diagonal(x: Tensor, labels: str) -> tuple[Tensor, str]:
    """x without repeated labels, each pair of equal ones replaced by its diagonal, at the end."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i, j = labels.index(label), labels.rindex(label)
            if x.shape[i] != x.shape[j]:
                raise ValueError(
                    f"einsum: label {label!r} is repeated over sizes {x.shape[i]} and {x.shape[j]}"
                    "; a diagonal needs them equal"
                )
            x = x.diagonal(dim1=i, dim2=j)
            labels = "".join(c for k, c in enumerate(labels) if k not in (i, j)) + label
    return x, labels


def _sizes(equation: str, *operands: tuple[Tensor, str]) -> dict[str, int]:
    """The size of every label; one of size 1 repeats."""
    sizes: dict[str, int] = {}
    for x, labels in operands:
        for label, n in zip(labels, x.shape, strict=True):
            size = sizes.get(label, 1)
            if 1 not in (size, n) and size != n:
                raise ValueError(
                    f"einsum: label {label!r} of {equation!r} has size {size} in one operand and "
                    f"{n} in the other"
                )
            sizes[label] = n if size == 1 else size
    return sizes


def _arranged(x: Tensor, labels: str, groups: tuple[str, ...], sizes: dict[str, int]) -> Tensor:
    """x with one dimension for each group of labels, in their order; labels it lacks repeat."""
    order = "".join(groups)
    x = x.permute([labels.index(c) for c in order if c in labels])
    for place, label in enumerate(order):
        if label not in labels:
            x = x.unsqueeze(place)
    x = x.expand([sizes[label] for label in order])
    return x.reshape([math.prod([sizes[label] for label in group]) for group in groups])
