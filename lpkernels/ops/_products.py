"""The operator that multiplies, and the one that adds a bias to products which take none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import Accumulator
from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.backends import NOT_FUSED, Convolution, DrawKey, Fused, How, Product, native
from lpkernels.formats.integers import has_table
from lpkernels.ops import _checks
from lpkernels.ops._operator import as_ints, define, is_direct, without_grad
from lpkernels.ops._outside import look_once
from lpkernels.ops._quantize import quantize_directly
from lpkernels.ops._rows import Ints, described
from lpkernels.rng import SITE_BIAS, SITE_QUANTIZE, Role

# A matmul is a convolution without spatial dimensions, and of one group.
_NO_CONVOLUTION = (1,)


def multiply_directly(product: Product, how: How, backend: str) -> Tensor:
    """The work of the operator, on tensors of which no gradient is recorded: the result by the
    backend that makes such sums. Quantizers that it does not apply get passes of their own."""
    known = _checks.sums(how.acc)
    # torch sums native chunks, unless the backend does; the additions that the contract covers
    # are always the backend's.
    needed = known.accumulate if known.native else product.kind + known.suffix
    chosen = backends.select(backend, needed, product.left.device)
    if len(how.acc) > InAccumulator.PLAIN:
        look_once(product, how)
    native_order = known.native and not chosen.sums_native
    fuses = chosen.fuses and (chosen.fuses_tables or not has_table(*how.fused))
    if fuses and not native_order:
        return chosen.multiply(product, how)
    if 0 in product.shape:
        return product.left.new_empty(tuple(product.shape))
    call = (None, Role.DIRECT, SITE_QUANTIZE, backend)
    left, right, result = how.fused
    alone = product._replace(
        left=quantize_directly(product.left, left, *call) if left else product.left,
        right=quantize_directly(product.right, right, *call) if right else product.right,
    )
    how = how._replace(fused=NOT_FUSED)
    y = native.multiply(chosen, alone, how) if native_order else chosen.multiply(alone, how)
    return quantize_directly(y, result, *call) if result else y


def _convolution(numbers: Sequence[int]) -> Convolution | None:
    """The convolution of 3 d + 1 numbers; None where d is 0."""
    *parts, groups = numbers
    dims = len(parts) // 3
    if not dims:
        return None
    stride, padding, dilation = (tuple(parts[i * dims : (i + 1) * dims]) for i in range(3))
    return Convolution(stride, padding, dilation, groups)


def crossing(product: Product, how: How, backend: str) -> tuple[Any, ...]:
    """The arguments of the operator."""
    kind, left, right, shape, conv, bias, initial = product
    numbers: tuple[int, ...] = _NO_CONVOLUTION
    if conv is not None:
        numbers = (*conv.stride, *conv.padding, *conv.dilation, conv.groups)
    acc, seed, role, fused = how
    tensors = (left, right, bias, initial)
    return (kind, *tensors, shape, numbers, acc, seed, int(role), backend, *fused)


def records(
    kind: str,
    left: Tensor,
    right: Tensor,
    bias: Tensor | None,
    initial: Tensor | None,
    shape: Sequence[int],
    numbers: Sequence[int],
    acc: Ints,
    seed: Tensor | None,
    role: int,
    backend: str,
    left_quantizer: Ints,
    right_quantizer: Ints,
    result_quantizer: Ints,
    table: None = None,
) -> tuple[Product, How, str]:
    """The records of the operator's arguments, as the operator or a mode of torch gets them."""
    product = Product(kind, left, right, shape, _convolution(numbers), bias, initial)
    fused = Fused(*map(described, (left_quantizer, right_quantizer, result_quantizer)))
    return product, How(tuple(acc), seed, role, fused), backend


def _guard(kind: str, *args: Any) -> None:
    _checks.numbers(kind, args[5])
    _checks.multiply(*records(kind, *args)[:2])


_multiply = define(
    "_multiply(str kind, Tensor left, Tensor right, Tensor? bias, Tensor? initial, SymInt[] shape,"
    " int[] numbers, int[] acc, Tensor? seed, int role, str backend, int[] left_quantizer,"
    " int[] right_quantizer, int[] result_quantizer) -> Tensor",
    lambda kind, left, right, bias, initial, shape, *rest: left.new_empty(shape),
    lambda *args: multiply_directly(*records(*map(without_grad, args))),
    _guard,
)


def multiply(product: Product, how: How, backend: str = "auto") -> Tensor:
    """The result of product, float32, contiguous, summed and rounded as how says.

    An `initial` goes with any order but "native", and with no tree without chunks.
    """
    if is_direct(product.left, product.right, product.bias, product.initial, how.seed):
        return multiply_directly(Product(*map(without_grad, product)), how, backend)
    return _multiply(*crossing(product, how, backend))


def _like_total(total: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(total, memory_format=torch.contiguous_format)


def add_bias_directly(
    total: Tensor,
    bias: Tensor,
    channels: int,
    acc: Ints,
    seed: Tensor | None,
    role: int,
    backend: str,
    result: Ints = (),
) -> Tensor:
    """The work of the operator."""
    made = _checks.sums(acc)
    chosen = backends.select(backend, made.accumulate, total.device)
    out = _like_total(total)
    if total.numel() == 0:
        return out
    moved = without_grad(total).movedim(channels, -1)
    sums = moved.clone(memory_format=torch.contiguous_format)
    rows = sums.view(-1, moved.shape[-1])
    addend = without_grad(bias)
    if addend.dim() != 1 or addend.shape != moved.shape[-1:]:
        addend = addend.expand(moved.shape).reshape(rows.shape)
    # This addition has no operands, and every backend makes it.
    how = How(made.acc[: InAccumulator.PLAIN], seed, role)
    chosen.accumulate(rows, addend, how, DrawKey(0, 0, SITE_BIAS, 0))
    out.copy_(sums.movedim(-1, channels))
    call = (None, role, SITE_QUANTIZE, backend)
    return quantize_directly(out, tuple(result), *call) if result else out


_add_bias = define(
    "_add_bias(Tensor total, Tensor bias, int channels, int[] acc, Tensor? seed, int role,"
    " str backend, int[] result_quantizer) -> Tensor",
    _like_total,
    add_bias_directly,
    _checks.add_bias,
)


def add_bias(
    total: Tensor,
    bias: Tensor,
    channels: int,
    acc: Accumulator | Ints,
    seed: Tensor | None,
    role: int,
    backend: str = "auto",
    result: Ints = (),
) -> Tensor:
    """total + bias, one more addition in the outermost accumulator, then rounded to result.

    bias broadcasts to total with the axis ``channels`` moved to the end. The draws of an element
    have its position along that axis as their column, its row-major position in the other axes as
    their row: the same draws as for a bias that a product adds itself.
    """
    return _add_bias(total, bias, channels, as_ints(acc), seed, int(role), backend, result)
