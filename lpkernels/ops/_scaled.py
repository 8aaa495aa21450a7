"""The operators between values and tensors of codes and scales, and of products by scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic.integers import (
    NATIVE,
    SEQUENTIAL,
    InAccumulator,
    group_of,
    has_running_sum,
)
from lpkernels.backends import How, Parts, Product, Rounding, Scales, matmul_of, new_parts
from lpkernels.formats import table_of_handle
from lpkernels.formats.integers import InTable, element, for_table
from lpkernels.ops import _checks
from lpkernels.ops._operator import define, without_grad
from lpkernels.ops._rows import Ints
from lpkernels.rounding import STOCHASTIC


def _scaled_fake(x: Tensor, quantizer: Sequence[int], *call: object) -> Parts:
    return new_parts(x, tuple(quantizer))


def scaled_directly(
    x: Tensor,
    quantizer: Ints,
    amax: Tensor | None,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str,
) -> Parts:
    """The work of the operator."""
    known = _checks.rounds(quantizer)
    op = "scaled_table" if known.op.endswith("_table") else "scaled"
    chosen = backends.select(backend, op, x.device)
    if x.numel() == 0:
        return new_parts(x, known.ints)
    if x.requires_grad:
        x = x.detach()
    # A scalar is a vector of one element, which has an axis.
    vector = x if x.dim() else x.view(1)
    parts = new_parts(vector, known.ints)
    chosen.quantize(Rounding(vector, known.ints, seed, role, site, None, None, amax, parts))
    values, scale, tensor_scale = parts
    if known.codes is not None and known.codes.without_zero:
        # The codes of a block that is NaN are 0, or the least value where 0 is none.
        values.clamp_(min=table_of_handle(element(known.ints)[InTable.HANDLE]).min)
    if x.dim():
        return values, scale, tensor_scale
    return values.view(()), scale.view(()), tensor_scale


def _guard_scaled(
    x: Tensor, quantizer: Ints, amax: Tensor | None, seed: Tensor | None, role: int, site: int,
    backend: str,
) -> None:  # fmt: skip
    _checks.quantizer("scaled", quantizer, x, seed, role, site)
    _checks.scaled_to(quantizer, x, amax)


def multiplied(
    values: Tensor, scale: Tensor, tensor_scale: Tensor, fmt: Sequence[int], backend: str = "auto"
) -> Tensor:
    """The work of the operator: a new tensor."""
    chosen = backends.select(backend, "dequantize", values.device)
    if values.numel() == 0:
        return torch.empty_like(values, memory_format=torch.contiguous_format)
    shape = values.shape
    if not len(shape):
        values, scale = values.view(1), scale.view(1)
    parts = (values, scale, tensor_scale)
    return chosen.unpack(parts, tuple(fmt), values.shape).view(shape)


_scaled = define(
    "_scaled(Tensor x, int[] quantizer, Tensor? amax, Tensor? seed, int role, int site,"
    " str backend) -> (Tensor, Tensor, Tensor)",
    _scaled_fake,
    scaled_directly,
    _guard_scaled,
)
_dequantize = define(
    "_dequantize(Tensor values, Tensor scale, Tensor tensor_scale, int[] format, str backend)"
    " -> Tensor",
    lambda values, *rest: values.new_empty(values.shape),
    multiplied,
    lambda *call: _checks.parts(*call[:4]),
)


def scaled(
    x: Tensor,
    quantizer: Ints,
    amax: Tensor | None,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str = "auto",
) -> Parts:
    """x in a block format: codes of x's shape, the scales of its blocks on their grid, and the
    scale of the tensor, all float32.

    amax: one float64 element on x's device, in place of the tensor's largest finite magnitude.
    """
    return _scaled(without_grad(x), quantizer, amax, seed, int(role), site, backend)


def dequantize(
    values: Tensor, scale: Tensor, tensor_scale: Tensor, fmt: Ints, backend: str = "auto"
) -> Tensor:
    """The product of the three parts of `scaled`, rounded once to float32."""
    parts = map(without_grad, (values, scale, tensor_scale))
    return _dequantize(*parts, fmt, backend)


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
    scales = Scales(left_scale, right_scale, sizes[0], sizes[1], float32, sizes[2])
    return product, scales, How(acc, seed, role), backend


def multiply_scaled_directly(product: Product, scales: Scales, how: How, backend: str) -> Tensor:
    """The work of the operator, on tensors without gradients."""
    acc, order = tuple(how.acc), InAccumulator.ORDER
    if group_of(acc):
        chosen = backends.select(backend, "matmul_grouped", product.left.device)
        return chosen.multiply(product, how._replace(acc=acc), scales)
    rounds = (acc[InAccumulator.ROUNDING], acc[InAccumulator.PRODUCT_ROUNDING])
    op = "matmul_scaled_drawn" if STOCHASTIC in rounds else "matmul_scaled"
    op += "" if has_running_sum(acc) else "_ordered"
    at = InAccumulator
    op = for_table(op, acc[at.FORMAT], acc[at.PRODUCT], acc[at.OUTER])
    chosen = backends.select(backend, op, product.left.device)
    if acc[order] == NATIVE:
        # In any order: also in that of k.
        acc = (*acc[:order], SEQUENTIAL, *acc[order + 1 :])
    return chosen.multiply(product, how._replace(acc=acc), scales)


def _guard_matmul(left: Tensor, right: Tensor, *args: Any) -> None:
    sizes = args[2]
    right_sizes = len(sizes) == 3 and -300 <= sizes[2] <= 300
    _checks.require(right_sizes, "matmul_scaled", "two sizes of segments, an exponent", sizes)
    fitting = min(left.dim(), right.dim()) >= 2
    got = f"{tuple(left.shape)} and {tuple(right.shape)}"
    _checks.require(fitting, "matmul_scaled", "matrices of codes", got)
    _checks.multiply_scaled(*_records(left, right, *args)[:3])


_matmul_scaled = define(
    "_matmul_scaled(Tensor left, Tensor right, Tensor left_scale, Tensor right_scale, int[] sizes,"
    " bool float32, Tensor? initial, int[] acc, Tensor? seed, int role, str backend) -> Tensor",
    lambda left, right, *rest: left.new_empty(tuple(matmul_of(left, right).shape)),
    lambda *args: multiply_scaled_directly(*_records(*map(without_grad, args))),
    _guard_matmul,
)


def multiply_scaled(product: Product, scales: Scales, how: How, backend: str = "auto") -> Tensor:
    """The result of a matmul of codes in an accumulator that `takes_scales`, float32."""
    sizes = [scales.left_size, scales.right_size, scales.least]
    tensors = (product.left, product.right, scales.left, scales.right)
    last = (how.acc, how.seed, int(how.role), backend)
    return _matmul_scaled(*tensors, sizes, scales.float32, product.initial, *last)
