"""Sums in an accumulator: of terms, as products with 1, and of the products of two tensors."""

from __future__ import annotations

from torch import Tensor

from lpkernels.functional.layer import Sum
from lpkernels.functional.torch_calls import no_product
from lpkernels.ops import matmul_of


def sums(how: Sum, x: Tensor) -> Tensor:
    """(R, K) to (R,): the terms x * 1 of each row, in order."""
    if how.acc.is_native:
        return x.sum(1)
    ones = x.new_ones(x.shape[1], 1)
    with no_product():
        return how.of(matmul_of(x, ones)).reshape(-1)


def dots(how: Sum, a: Tensor, b: Tensor) -> Tensor:
    """(R, K) and (R, K) to (R,): the products a * b of each row, exact or rounded as the sum says,
    in order."""
    if how.acc.is_native:
        return (a * b).sum(1)
    left, right = a.unsqueeze(1), b.unsqueeze(2)
    with no_product():
        return how.of(matmul_of(left, right)).reshape(-1)
