"""Sums of codes, and where the scales of blocks, rows and tensors enter them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic.integers import NATIVE, SEQUENTIAL, InAccumulator, sums_by_scale
from lpkernels.formats.integers import (
    FP32_SCALE,
    ROW,
    TENSOR,
    InBlock,
    InFloat,
    Ints,
    has_tensor_scale,
    has_totals_of_lines,
    scale_format,
)
from lpkernels.functional.operands import Operand, Pair
from lpkernels.ops import DISPATCHED, How, Operators, Product
from lpkernels.rng import SITE_QUANTIZE

# A sum has at most 24 bits; the product of it and two scales must fit in float64.
_BITS = 53 - 24
# The least exponent of an e8m0 scale.
_E8M0_LEAST = -127
# Longer than any sum.
_WHOLE = 2**62


def operand(parts: ops.Parts, fmt: Ints, along: int) -> Operand:
    """The operand of codes and scales of a tensor, whose sum runs along this axis, -1 or -2."""
    values, scale, tensor_scale = parts
    lines, size = fmt[InBlock.LINES], fmt[InBlock.SIZE]
    if not values.numel():
        return Operand(values)
    if lines == TENSOR:
        return Operand(values, total=scale.reshape(1))
    by_row = scale if along == -1 else scale.mT
    if lines == ROW:
        return Operand(values, total=by_row.squeeze(-1))
    if lines > 0:
        tall, size = (lines, size) if along == -1 else (size, lines)
        rows = values.shape[-3 - along]
        by_row = by_row.repeat_interleave(tall, dim=-2)[..., :rows, :]
    total = None
    if has_totals_of_lines(fmt):
        total = (tensor_scale if along == -1 else tensor_scale.mT).squeeze(-1)
    elif has_tensor_scale(fmt):
        total = tensor_scale.view(1)
    return Operand(values, (), by_row.contiguous(), size, total, fmt)


def without_scales(
    parts: ops.Parts, fmt: Ints, along: int, backend: str, run: Operators = DISPATCHED
) -> Operand:
    """The operand for sums that know no scales: the exact products of codes and scales of blocks,
    which float32 holds, and what multiplies the result."""
    scaled_operand = operand(parts, fmt, along)
    if scaled_operand.scale is None:
        return scaled_operand
    values, scale, tensor_scale = parts
    one = torch.ones_like(tensor_scale)
    return Operand(run.dequantize(values, scale, one, fmt, backend), total=scaled_operand.total)


def check_bits(*formats: Ints) -> None:
    """Raises: ValueError: sums of codes times these scales of blocks do not fit in float64."""
    scales = [scale for fmt in formats if fmt and (scale := scale_format(fmt)) is not None]
    bits = sum(1 + scale[InFloat.MAN_BITS] for scale in scales)
    is_float32 = any(fmt and fmt[InBlock.SCALE] == FP32_SCALE for fmt in formats)
    if bits > _BITS and not is_float32:
        raise ValueError(
            f"matmul: the scales of both operands have {bits} bits together, and chunk='scale' "
            f"multiplies a sum by at most {_BITS} exactly; use scale='fp32'"
        )


def multiply(
    product: Product, pair: Pair, how: How, backend: str, run: Operators = DISPATCHED
) -> Tensor:
    """The product of the values of a pair, laid out as the product takes them, and their scales.

    With chunk="scale" or groups the scales of blocks multiply sums of their codes. Totals multiply
    the outer sum; a bias and the rounding of the result come after.
    """
    left, right = pair
    by_scale = sums_by_scale(how.acc)
    after = left.total is not None or right.total is not None
    if not by_scale and not after:
        return run.multiply(product, how, backend)
    alone = product._replace(bias=None, totals=(left.total, right.total) if after else None)
    sums = How(how.acc, how.seed, how.role)
    if not by_scale:
        y = run.multiply(alone, sums, backend)
    elif product.conv is None:
        scales = _scales(pair, product, sums.acc[InAccumulator.GROUP])
        y = run.multiply(alone, sums, backend, scales)
    else:
        y = run.multiply(alone, sums._replace(acc=one_chunk(sums.acc)), backend)
    if product.bias is not None:
        channels = -1 if product.conv is None else 1
        acc = one_chunk(sums.acc) if by_scale else sums.acc
        y = run.add_bias(y, product.bias, channels, acc, sums.seed, sums.role, backend)
    result = how.fused.result
    return run.quantize(y, result, None, how.role, SITE_QUANTIZE, backend) if result else y


def one_chunk(acc: Ints) -> Ints:
    """An accumulator that takes scales, for a sum in which no scale changes."""
    return _one_chunk(acc) if torch.compiler.is_compiling() else _cached_chunk(acc)


def _one_chunk(acc: Ints) -> Ints:
    at, ints = InAccumulator, list(acc)
    ints[at.CHUNK] = 0 if acc[at.GROUP] else _WHOLE
    ints[at.SCALE_ORDER] = ints[at.GROUP] = 0
    if ints[at.ORDER] == NATIVE:
        # Exact in any order, so also in that of k.
        ints[at.ORDER] = SEQUENTIAL
    return tuple(ints)


_cached_chunk = lru_cache(maxsize=1024)(_one_chunk)


def _scales(pair: Pair, product: Product, group: int) -> ops.Scales:
    """The scales of blocks; the units with groups ignore their signs."""
    left, right = pair
    float32 = any([fmt and fmt[InBlock.SCALE] == FP32_SCALE for fmt in (left.fmt, right.fmt)])
    scales = []
    for x, rows in ((left, product.left.shape[-2]), (right, product.right.shape[-1])):
        scales.append(x.values.new_ones((rows, 1)) if x.scale is None else x.scale)
    if not group:
        return ops.Scales(scales[0], scales[1], left.size, right.size, float32)
    if product.left.shape[-1] and not (left.fmt and right.fmt):
        raise ValueError(
            f"lpkernels: group={group} sums codes with scales on both sides, and an operand has "
            "none; give it a format of the unit"
        )
    scale_type = scale_format(left.fmt) if left.fmt else None
    least = _E8M0_LEAST if scale_type is None else 1 - scale_type[InFloat.BIAS]
    both = (scales[0].abs(), scales[1].abs())
    return ops.Scales(*both, left.size, right.size, float32, least)
