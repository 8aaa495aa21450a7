"""The operator that multiplies, and the one that adds a bias to products which take none.

Products of operands with formats of their own are searched for values that these formats lack: no
tensor core could hold such values, and no hardware makes these sums. The search takes place in
tensors on the CPU, in the first product of every kind, pair of formats and pair of shapes, until
`MOST_SEARCHES` products were searched. Tensors on a GPU are not searched, because they would have
to be waited for.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator, Quantizer, accumulator_from_ints
from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.backends import NOT_FUSED, Convolution, DrawKey, Fused, How, Product, Scales, native
from lpkernels.formats import FloatFormat, parse_format
from lpkernels.formats.integers import Ints, has_table
from lpkernels.ops import _checks
from lpkernels.ops._descriptions import crossed, require, select, sums
from lpkernels.ops._operator import (
    as_ints,
    assume_constant_result,
    define,
    is_direct,
    without_grad,
)
from lpkernels.ops._packing import dequantize
from lpkernels.ops._quantize import quantize_directly
from lpkernels.rng import SITE_BIAS

# The sizes of no scales: products that share a scale in both operands, whether a scale is float32,
# and the least exponent (`backends.Scales`).
_NO_SIZES = (0, 0, 0, 0)
# A matmul is a convolution without spatial dimensions, and of one group.
_NO_CONVOLUTION = (1,)
# How many arguments the operator has.
_ARGUMENTS = 17
# Bounds the set of shapes, and the time that a program with ever new shapes spends on searches.
MOST_SEARCHES = 256
_SIDES = ("left", "right")

# The shapes that were searched, and the formats that a warning has named.
_searched: set[tuple[object, ...]] = set()
_warned: set[FloatFormat] = set()


def multiply_directly(
    product: Product, how: How, backend: str, scales: Scales | None = None
) -> Tensor:
    """The work of the operator, on tensors of which no gradient is recorded: the result by the
    backend that makes such sums. Quantizers that it does not apply get passes of their own."""
    description = sums(how.acc)
    op = description.products[product.kind] if scales is None else description.scaled
    chosen = select(backend, op, product.left.device)
    if product.totals is not None and (description.native or not chosen.joins_passes):
        y = multiply_directly(product._replace(totals=None), how, backend, scales)
        return multiply_totals(y, *product.totals, backend)
    if scales is not None:
        return chosen.multiply(product, how._replace(acc=description.by_scale), scales)
    if description.has_operands:
        _search_once(product, how)
    # torch sums native chunks, unless the backend does; the additions that the contract covers
    # are always the backend's.
    native_order = description.native and not chosen.sums_native
    fuses = chosen.fuses and (chosen.fuses_tables or not has_table(*how.fused))
    if fuses and not native_order:
        return chosen.multiply(product, how)
    if 0 in product.shape:
        return product.left.new_empty(*product.shape)
    left, right, result = (partial(_rounded, quantizer=x, backend=backend) for x in how.fused)
    alone = product._replace(left=left(product.left), right=right(product.right))
    how = how._replace(fused=NOT_FUSED)
    y = native.multiply(chosen, alone, how) if native_order else chosen.multiply(alone, how)
    return result(y)


def _search_once(product: Product, how: How) -> None:
    """Warns if the operands, once rounded, hold a value that the operand formats of how.acc
    lack."""
    op, first, second = product.kind, product.left, product.right
    key = (op, how.acc[InAccumulator.PLAIN :], first.shape, second.shape)
    if key in _searched or len(_searched) >= MOST_SEARCHES or not first.is_cpu:
        return
    _searched.add(key)
    formats = accumulator_from_ints(tuple(how.acc)).operands
    assert formats is not None
    sides = list(zip(_SIDES, formats, strict=True))
    operands, roundings = (first, second), how.fused[:2]
    for (side, fmt), x, ints in zip(
        sides[::-1] if op == "conv_wgrad" else sides, operands, roundings, strict=True
    ):
        if fmt in _warned:
            continue
        value = _lacking(quantize_directly(x, ints) if ints else x, fmt)
        if value is not None:
            _warned.add(fmt)
            _warn(op, side, fmt, value)


def _lacking(x: Tensor, fmt: FloatFormat) -> float | None:
    """A value of x that fmt lacks; no format lacks NaN here."""
    values = quantize_directly(x, Quantizer(fmt, "toward_zero").to_ints())
    lacking = (values != x) & (x == x)
    return x[lacking][0].item() if bool(lacking.any()) else None


def _warn(op: str, side: str, fmt: FloatFormat, value: float) -> None:
    warnings.warn(
        f"{op}: the {side} operand holds {value!r}, which {fmt} lacks, the format that the "
        "accumulator aligns it by (operands): no tensor core could hold it, and these sums are "
        f"those of none. Round it first, by the recipe's quantizers or lp.quantize(x, '{fmt}'). "
        "Said once for this format; not looked for on a GPU",
        UserWarning,
        stacklevel=2,
    )


def _rounded(x: Tensor, quantizer: Ints, backend: str) -> Tensor:
    return quantize_directly(x, quantizer, backend=backend) if quantizer else x


def _convolution(numbers: Sequence[int]) -> Convolution | None:
    """The convolution of 3 d + 1 numbers; None where d is 0."""
    *parts, groups = numbers
    dims = len(parts) // 3
    if not dims:
        return None
    stride, padding, dilation = (tuple(parts[i * dims : (i + 1) * dims]) for i in range(3))
    return Convolution(stride, padding, dilation, groups)


def crossing(
    product: Product, how: How, backend: str, scales: Scales | None = None
) -> tuple[Any, ...]:
    """The arguments of the operator."""
    kind, left, right, shape, conv, bias, initial, _ = product
    acc, seed, role, fused = how
    numbers: tuple[int, ...] = _NO_CONVOLUTION
    if conv is not None:
        numbers = (*conv.stride, *conv.padding, *conv.dilation, conv.groups)
    left_scale, right_scale, sizes = None, None, _NO_SIZES
    if scales is not None:
        left_scale, right_scale = scales.left, scales.right
        sizes = (scales.left_size, scales.right_size, int(scales.float32), scales.least)
    return (
        kind, left, right, bias, initial, shape, numbers, acc, seed, int(role), backend,
        *fused, left_scale, right_scale, sizes,
    )  # fmt: skip


def records(*arguments: Any) -> tuple[Product, How, str, Scales | None]:
    """The records of the operator's arguments, as the operator or a mode of torch gets them: with a
    table behind them, or without."""
    (
        kind, left, right, bias, initial, shape, numbers, acc, seed, role, backend, left_quantizer,
        right_quantizer, result_quantizer, left_scale, right_scale, sizes,
    ) = arguments[:_ARGUMENTS]  # fmt: skip
    product = Product(kind, left, right, shape, _convolution(numbers), bias, initial)
    fused = Fused(*map(crossed, (left_quantizer, right_quantizer, result_quantizer)))
    how = How(tuple(acc), seed, role, fused)
    if left_scale is None or right_scale is None:
        return product, how, backend, None
    left_size, right_size, float32, least = sizes
    scales = Scales(left_scale, right_scale, left_size, right_size, bool(float32), least)
    return product, how, backend, scales


def _guard(a: Any) -> None:
    product, how, _, scales = records(*a)
    _checks.product(product, how, scales)


_multiply = define(
    "_multiply(kind, left, right, Tensor? bias, initial, shape, numbers, acc, seed, role, backend,"
    " left_quantizer, right_quantizer, result_quantizer, Tensor? left_scale, Tensor? right_scale,"
    " sizes) -> Tensor",
    lambda a: a.left.new_empty(a.shape),
    lambda a: multiply_directly(*records(*map(without_grad, a))),
    _guard,
)


def multiply(
    product: Product, how: How, backend: str = "auto", scales: Scales | None = None
) -> Tensor:
    """The result of product, float32, contiguous, summed and rounded as how says.

    An `initial` goes with any order but "native", and with no tree without chunks. scales: of a
    matmul of codes in an accumulator that `takes_scales`.
    """
    if product.totals is not None:
        y = multiply(product._replace(totals=None), how, backend, scales)
        return multiply_totals(y, *product.totals, backend)
    if scales is None and is_direct(
        product.left, product.right, product.bias, product.initial, how.seed
    ):
        return multiply_directly(Product(*map(without_grad, product)), how, backend)
    return _multiply(*crossing(product, how, backend, scales))


def multiply_totals(y: Tensor, left: Tensor | None, right: Tensor | None, backend: str) -> Tensor:
    """y (..., M, N), contiguous, times the rounded product of both totals, rounded to float32: the
    same bits whether or not the process flushes denormals.

    left: (..., M) or (1,); right: (..., N) or (1,); float32; None for ones, but not for both.
    """
    of_rows = None if left is None else left.unsqueeze(-1)
    of_cols = None if right is None else right.unsqueeze(-2)
    if of_rows is None or of_cols is None:
        totals = of_cols if of_rows is None else of_rows
        assert totals is not None
    else:
        by_row, by_col = torch.broadcast_tensors(of_rows, of_cols)
        totals = _by_blocks(by_row, by_col, "block1", backend)
    # One total for all of y, one for each row or column, or one for each value.
    rows, cols = y.shape[-2:]
    if totals.numel() == 1:
        return _by_blocks(y, totals.view((1,) * y.dim()), "tensor", backend)
    if totals.shape[-1] == 1:
        return _by_blocks(y, totals.expand(*y.shape[:-2], rows, 1), "row", backend)
    if totals.shape[-2] == 1:
        return _by_blocks(y, totals.expand(*y.shape[:-2], 1, cols), "row_axis-2", backend)
    return _by_blocks(y, totals.expand(y.shape), "block1", backend)


def _by_blocks(x: Tensor, scales: Tensor, blocks: str, backend: str) -> Tensor:
    """x times a float32 scale of every block."""
    fmt = _format(f"{blocks}_e8m23ieee_sfp32")
    return dequantize(x.contiguous(), scales.contiguous(), x.new_ones(()), fmt, backend)


@assume_constant_result
def _format(name: str) -> Ints:
    return _parsed(name)


@lru_cache
def _parsed(name: str) -> Ints:
    return parse_format(name).to_ints()


def _like(total: Tensor) -> Tensor:
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
    description = sums(acc)
    chosen = select(backend, description.accumulate, total.device)
    if total.numel() == 0:
        return _like(total)
    moved = without_grad(total)
    is_last = channels in (-1, total.dim() - 1)
    if not is_last:
        moved = moved.movedim(channels, -1)
    totals = moved.clone(memory_format=torch.contiguous_format)
    rows = totals.view(-1, moved.shape[-1])
    addend = without_grad(bias)
    if addend.dim() != 1 or addend.shape != moved.shape[-1:]:
        addend = addend.expand(moved.shape).reshape(rows.shape)
    # This addition has no operands, and every backend makes it.
    how = How(description.acc[: InAccumulator.PLAIN], seed, role)
    chosen.accumulate(rows, addend, how, DrawKey(0, 0, SITE_BIAS, 0))
    if not is_last:
        totals = totals.movedim(-1, channels).clone(memory_format=torch.contiguous_format)
    return _rounded(totals, tuple(result), backend)


def _guard_bias(a: Any) -> None:
    op, total, channels = "add_bias", a.total, a.channels
    _checks.operands(op, total, a.bias)
    require(-total.dim() <= channels < total.dim(), op, "channels of a dimension", channels)
    moved = total.movedim(channels, -1).shape
    sizes = zip(a.bias.shape[::-1], moved[::-1], strict=False)
    valid = a.bias.dim() <= len(moved) and all(one in (1, size) for one, size in sizes)
    got = f"{tuple(a.bias.shape)} for {tuple(total.shape)}, channels={channels}"
    require(valid, op, "a bias that broadcasts to the total", got)


_add_bias = define(
    "_add_bias(Tensor total, Tensor bias, int channels, acc, seed, role, backend, result_quantizer)"
    " -> Tensor",
    lambda a: _like(a.total),
    lambda a: add_bias_directly(*a),
    _guard_bias,
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
