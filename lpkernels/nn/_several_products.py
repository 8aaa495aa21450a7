"""Functions of torch that are several matrix products, one after the other under a Recipe."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lpkernels import functional
from lpkernels.arithmetic import Recipe


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: None = None,
    out_dtype: None = None,
    *,
    recipe: Recipe,
) -> Tensor:
    """torch.nn.functional.grouped_mm: one product for each group, in their order.

    offs[g] is the end of group g along the dimension that is cut: the rows of a 2-D mat_a, the
    columns of a 2-D mat_b, the summed dimension of two 2-D operands. What lies beyond the last
    group gives zeros, where torch leaves memory as it was. On the meta device, where offs has no
    values, the first group has everything.

    Raises: ValueError: shapes or offsets that do not fit.
    """
    dims = (mat_a.dim(), mat_b.dim())
    if dims not in ((2, 2), (2, 3), (3, 2), (3, 3)) or (offs is None) != (dims == (3, 3)):
        raise ValueError(
            f"grouped_mm: expected operands of 2 or 3 dimensions, and offs unless both have 3, got "
            f"shapes {tuple(mat_a.shape)} and {tuple(mat_b.shape)}, offs={offs}"
        )
    groups = [len(x) for x in (mat_a, mat_b) if x.dim() == 3]
    groups += [] if offs is None else [len(offs)]
    if len(set(groups)) > 1:
        raise ValueError(
            f"grouped_mm: expected one number of groups, got {groups} of shapes "
            f"{tuple(mat_a.shape)} and {tuple(mat_b.shape)} and of offs={offs}"
        )
    # The dimension of each 2-D operand that is cut into groups.
    cut_a, cut_b = (1, 0) if dims == (2, 2) else (0, 1)
    lefts, beyond_a = _parts(mat_a, offs, cut_a)
    rights, beyond_b = _parts(mat_b, offs, cut_b)
    products = [functional.matmul(a, b, recipe=recipe) for a, b in zip(lefts, rights, strict=True)]
    if dims in ((2, 2), (3, 3)):
        return torch.stack(products)
    if dims == (2, 3):
        return torch.cat([*products, products[0].new_zeros(beyond_a, mat_b.shape[2])])
    return torch.cat([*products, products[0].new_zeros(mat_a.shape[1], beyond_b)], 1)


def _parts(x: Tensor, offs: Tensor | None, cut: int) -> tuple[Sequence[Tensor], int]:
    """The groups of one operand, and the length beyond the last group."""
    if x.dim() == 3 or offs is None:
        return x.unbind(), 0
    length = x.shape[cut]
    if offs.is_meta:
        ends = [length] * len(offs)
    else:
        ends = offs.tolist()
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    if any(size < 0 for size in sizes) or sum(sizes) > length:
        raise ValueError(
            f"grouped_mm: offs={ends}; expected the ends of the groups along a dimension of "
            f"{length}, none before the one in front of it"
        )
    beyond = length - sum(sizes)
    return x.split([*sizes, beyond], cut)[:-1], beyond


def multi_dot(tensors: Sequence[Tensor], *, recipe: Recipe) -> Tensor:
    """torch.linalg.multi_dot: products of neighbours, in the order that torch takes.

    Raises: ValueError: shapes that do not fit.
    """
    matrices = list(tensors)
    if any(x.dim() != 2 for x in matrices[1:-1]) or any(
        x.dim() not in (1, 2) for x in matrices[:: max(1, len(matrices) - 1)]
    ):
        raise ValueError(
            "multi_dot: expected matrices, of which the first and the last may be vectors, got "
            f"shapes {[tuple(x.shape) for x in matrices]}"
        )
    if len(matrices) == 1:
        return matrices[0]
    shape = (*matrices[0].shape[:-1], *matrices[-1].shape[1:])
    if matrices[0].dim() == 1:
        matrices[0] = matrices[0].unsqueeze(0)
    if matrices[-1].dim() == 1:
        matrices[-1] = matrices[-1].unsqueeze(1)
    order = _cheapest([len(matrices[0]), *(x.shape[1] for x in matrices)])

    def multiplied(first: int, last: int) -> Tensor:
        if first == last:
            return matrices[first]
        split = order[first, last]
        left, right = multiplied(first, split), multiplied(split + 1, last)
        return functional.matmul(left, right, recipe=recipe)

    return multiplied(0, len(matrices) - 1).reshape(shape)


def _cheapest(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where a chain of matrices (sizes[i], sizes[i + 1]) from first to last is split, as (first,
    last): last of the left part.

    Of several splits of the least cost it is the first, but of three matrices the last, as in
    torch.
    """
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    splits: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            costs = {
                split: cost[first, split]
                + cost[split + 1, last]
                + sizes[first] * sizes[split + 1] * sizes[last + 1]
                for split in range(first, last)
            }
            least = min(costs.values())
            ties = [split for split, value in costs.items() if value == least]
            cost[first, last], splits[first, last] = least, ties[-1 if count == 3 else 0]
    return splits
