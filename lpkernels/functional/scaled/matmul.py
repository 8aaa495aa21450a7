"""Products of scaled operands: how the scales of blocks, rows and tensors enter the sum."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Accumulator
from lpkernels.formats import BlockFormat, FloatFormat, parse_format
from lpkernels.functional import _checks
from lpkernels.functional._batches import result_shape
from lpkernels.functional.layer import widened
from lpkernels.functional.scaled import Scaled
from lpkernels.functional.scaled.groups import least_of_scales
from lpkernels.functional.torch_calls import no_autocast, own
from lpkernels.rng import Role

# A sum has at most 24 bits; the product of it and two scales must fit in float64.
_BITS = 53 - 24
# A float32 scale for every value: `ops.dequantize` multiplies two tensors in it.
_BY_VALUE = "block1_e8m23ieee_sfp32"


class _Operand(NamedTuple):
    """One side of a product: codes, and the scales of its rows, which on the right are columns.

    scale: (..., rows, segments), of `size` products each (0: all); None without scales of blocks.
    total: (..., rows) or (..., 1), the scales that multiply the outer sum; None without any.
    fmt: None for a plain tensor.
    """

    codes: Tensor
    scale: Tensor | None
    size: int
    total: Tensor | None
    fmt: BlockFormat | None


def scaled_matmul(
    a: Tensor | Scaled,
    b: Tensor | Scaled,
    acc: Accumulator,
    initial: Tensor | None,
    seed: Tensor | None,
    backend: str,
) -> Tensor:
    """a (..., M, K) @ b (..., K, N), at least one of them scaled, as `lpkernels.matmul` says."""
    plain = {name: x for name, x in (("a", a), ("b", b)) if isinstance(x, Tensor)}
    _check(plain, a, b)
    if acc.is_native:
        values = [x.dequantize(backend=backend) if isinstance(x, Scaled) else x for x in (a, b)]
        with no_autocast(values[0]):
            return own(torch.matmul, *(x.float() for x in values))
    left, right = _operand(a, left=True), _operand(b, left=False)
    totals = [each.total for each in (left, right) if each.total is not None]
    if initial is not None and totals:
        raise ValueError(
            "matmul: initial= starts the sum before the scales of rows and tensors multiply it; "
            "add it to the result, or use formats without such scales"
        )
    start = None
    if initial is not None:
        start = initial.float().expand(result_shape(left.codes, right.codes))
    how = ops.How(acc.to_ints(), seed, Role.DIRECT)
    if acc.takes_scales:
        scales = _scales(left, right) if acc.group is None else _of_groups(left, right, acc)
        product = ops.matmul_of(left.codes, right.codes, initial=start)
        y = ops.multiply_scaled(product, scales, how, backend)
    else:
        values = [_multiplied(x, backend) for x in (a, b)]
        y = ops.multiply(ops.matmul_of(values[0], values[1], initial=start), how, backend)
    return _times(y, left.total, right.total, backend) if totals else y


def _check(plain: dict[str, Tensor], a: Tensor | Scaled, b: Tensor | Scaled) -> None:
    _checks.operands("matmul", **plain)
    parts = {"a": a, "b": b}
    tensors = {n: x.values if isinstance(x, Scaled) else x for n, x in parts.items()}
    _checks.same_device("matmul", **tensors)
    for name, x in tensors.items():
        if x.dim() < 2:
            raise ValueError(
                f"matmul: {name} has shape {tuple(x.shape)}; a product of scaled operands takes "
                "(..., M, K) and (..., K, N)"
            )
    result_shape(*tensors.values())
    for name, x in plain.items():
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"matmul: {name} requires a gradient, which a product with a Scaled operand has "
                "not: its codes are fixed; detach it, or quantize both in a recipe"
            )


def _operand(x: Tensor | Scaled, *, left: bool) -> _Operand:
    if isinstance(x, Tensor):
        return _Operand(widened(x), None, 0, None, None)
    fmt, scale, size = x.fmt, x.scale, x.fmt.block_size
    along = -1 if left else -2
    total = x.tensor_scale.view(1) if fmt.tensor_scale else None
    if size == "tensor":
        return _Operand(x.values, None, 0, scale.reshape(1), fmt)
    runs = isinstance(size, tuple) or fmt.axis % x.values.dim() == x.values.dim() + along
    if not runs:
        name, place = ("a", "its last dimension") if left else ("b", "its last but one")
        raise ValueError(
            f"matmul: {name} in {fmt} has blocks along axis {fmt.axis}, but the sum runs along "
            f"{place}; make the blocks along it, with axis={along}"
        )
    by_row = scale if left else scale.mT
    if size == "row":
        return _Operand(x.values, None, 0, by_row.squeeze(-1), fmt)
    if isinstance(size, tuple):
        tall, size = size if left else size[::-1]
        rows = x.values.shape[-2 if left else -1]
        by_row = by_row.repeat_interleave(tall, dim=-2)[..., :rows, :]
    assert isinstance(size, int)
    return _Operand(x.values, by_row.contiguous(), size, total, fmt)


def _scales(left: _Operand, right: _Operand) -> ops.Scales:
    formats = [x.fmt.scale for x in (left, right) if x.fmt is not None and x.scale is not None]
    bits = sum(1 + each.man_bits for each in formats if isinstance(each, FloatFormat))
    float32 = "fp32" in formats
    if bits > _BITS and not float32:
        raise ValueError(
            f"matmul: scales of {' and '.join(map(str, formats))} have {bits} bits together, and "
            f"chunk='scale' multiplies a sum by at most {_BITS} exactly; use scale='fp32'"
        )
    found = []
    for x, dim in ((left, -2), (right, -1)):
        ones = x.codes.new_ones((x.codes.shape[dim], 1))
        found.append(ones if x.scale is None else x.scale)
    return ops.Scales(found[0], found[1], left.size, right.size, float32)


def _of_groups(left: _Operand, right: _Operand, acc: Accumulator) -> ops.Scales:
    """The scales of operands that the accumulator's unit takes; the unit ignores their signs."""
    least = least_of_scales(acc, left.fmt, right.fmt, (left.size, right.size))
    found = _scales(left, right)
    return found._replace(left=found.left.abs(), right=found.right.abs(), least=least)


def _multiplied(x: Tensor | Scaled, backend: str) -> Tensor:
    """The products of codes and scales of blocks, for sums that know no scales."""
    if isinstance(x, Tensor):
        return widened(x)
    fmt = x.fmt
    if isinstance(fmt.block_size, str):
        return x.values
    if fmt.scale == "fp32":
        raise ValueError(
            f"matmul: codes of {fmt} times their float32 scales do not fit in float32; use an "
            "accumulator with chunk='scale', such as 'fp32_chunkscale', which adds sums of codes"
        )
    one = x.tensor_scale.new_ones(())
    return ops.dequantize(x.values, x.scale, one, fmt.to_ints(), backend)


def _times(y: Tensor, left: Tensor | None, right: Tensor | None, backend: str) -> Tensor:
    """y (..., M, N) times the rounded product of both totals, rounded to float32."""
    one = y.new_ones(1)
    of_rows = (one if left is None else left).unsqueeze(-1).expand(y.shape)
    of_cols = (one if right is None else right).unsqueeze(-2).expand(y.shape)
    return _product(y, _product(of_rows, of_cols, backend), backend)


def _product(x: Tensor, y: Tensor, backend: str) -> Tensor:
    """x * y in float32, the same bits whether or not the process flushes denormals."""
    parts = (x.contiguous(), y.contiguous(), x.new_ones(()))
    return ops.dequantize(*parts, parse_format(_BY_VALUE).to_ints(), backend)
