"""The operator of products by scale: sums of codes that meet their scales in the outer sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic.integers import NATIVE, SEQUENTIAL, InAccumulator
from lpkernels.backends import How, Product, Scales, matmul_of
from lpkernels.ops import _checks
from lpkernels.ops._operator import define, without_grad
from lpkernels.ops._rows import Ints
from lpkernels.rounding import STOCHASTIC


def _records(
    left: Tensor,
    right: Tensor,
    left_scale: Tensor,
    right_scale: Tensor,
    sizes: Sequence[int],
    float32: bool,
    initial: Tensor | None,
    acc: Ints,
    seed: Tensor | None,
    role: int,
    backend: str,
    table: None = None,
) -> tuple[Product, Scales, How, str]:
    """The records of the operator's arguments."""
    product = matmul_of(left, right, initial=initial)
    scales = Scales(left_scale, right_scale, sizes[0], sizes[1], float32)
    return product, scales, How(acc, seed, role), backend


def _impl(*args: Any) -> Tensor:
    product, scales, how, backend = _records(*map(without_grad, args))
    acc, order = tuple(how.acc), InAccumulator.ORDER
    rounds = (acc[InAccumulator.ROUNDING], acc[InAccumulator.PRODUCT_ROUNDING])
    op = "matmul_scaled_drawn" if STOCHASTIC in rounds else "matmul_scaled"
    chosen = backends.select(backend, op, product.left.device)
    if acc[order] == NATIVE:
        # In any order: also in that of k.
        acc = (*acc[:order], SEQUENTIAL, *acc[order + 1 :])
    return chosen.multiply_scaled(product, scales, how._replace(acc=acc))


def _guard(left: Tensor, right: Tensor, *args: Any) -> None:
    sizes = args[2]
    _checks.require(len(sizes) == 2, "matmul_scaled", "two sizes of segments", sizes)
    fitting = min(left.dim(), right.dim()) >= 2
    got = f"{tuple(left.shape)} and {tuple(right.shape)}"
    _checks.require(fitting, "matmul_scaled", "matrices of codes", got)
    _checks.multiply_scaled(*_records(left, right, *args)[:3])


_matmul_scaled = define(
    "_matmul_scaled(Tensor left, Tensor right, Tensor left_scale, Tensor right_scale, int[] sizes,"
    " bool float32, Tensor? initial, int[] acc, Tensor? seed, int role, str backend) -> Tensor",
    lambda left, right, *rest: left.new_empty(tuple(matmul_of(left, right).shape)),
    _impl,
    _guard,
)


def multiply_scaled(product: Product, scales: Scales, how: How, backend: str = "auto") -> Tensor:
    """The result of a matmul of codes in an accumulator with chunk="scale", float32."""
    sizes = [scales.left_size, scales.right_size]
    tensors = (product.left, product.right, scales.left, scales.right)
    last = (how.acc, how.seed, int(how.role), backend)
    return _matmul_scaled(*tensors, sizes, scales.float32, product.initial, *last)
