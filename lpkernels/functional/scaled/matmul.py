"""Products of scaled operands: how the scales of blocks, rows and tensors enter the sum."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Accumulator
from lpkernels.arithmetic.groups import Side, check_operands
from lpkernels.functional import _checks
from lpkernels.functional.layer import widened
from lpkernels.functional.operands import Operand
from lpkernels.functional.products import result_shape
from lpkernels.functional.scaled import Scaled, parts_of, products
from lpkernels.functional.torch_calls import native_sum, own
from lpkernels.rng import Role


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
        with native_sum(values[0], Role.DIRECT):
            return own(torch.matmul, *(x.float() for x in values))
    by_scale = acc.takes_scales
    pair = (_operand(a, -1, by_scale, backend), _operand(b, -2, by_scale, backend))
    if acc.group is not None:
        sides = {n: Side(getattr(x, "fmt", None), k) for n, x, k in (("a", a, -1), ("b", b, -2))}
        check_operands("matmul", acc, sides)
    elif by_scale:
        products.check_bits(*(x.fmt for x in pair))
    start = None
    if initial is not None:
        if any(operand.total is not None for operand in pair):
            raise ValueError(
                "matmul: initial= starts the sum before the scales of rows and tensors multiply "
                "it; add it to the result, or use formats without such scales"
            )
        start = initial.float().expand(result_shape(*(x.values for x in pair)))
    how = ops.How(acc.to_ints(), seed, Role.DIRECT)
    product = ops.matmul_of(pair[0].values, pair[1].values, initial=start)
    return products.multiply(product, pair, how, backend)


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


def _operand(x: Tensor | Scaled, along: int, by_scale: bool, backend: str) -> Operand:
    """The operand whose sum runs along this axis, -1 of a or -2 of b."""
    if isinstance(x, Tensor):
        return Operand(widened(x))
    fmt, (ints, parts) = x.fmt, parts_of(x)
    if fmt.without_zero:
        raise ValueError(
            f"matmul: {fmt} has no zero and no negative values, and is for optimizers' states; use "
            "another format for operands, such as 'block128_nf4_sfp32', or x.dequantize()"
        )
    lies = isinstance(fmt.block_size, tuple) or fmt.block_size == "tensor"
    if not lies and fmt.axis % x.values.dim() != x.values.dim() + along:
        name, place = ("a", "its last dimension") if along == -1 else ("b", "its last but one")
        raise ValueError(
            f"matmul: {name} in {fmt} has blocks along axis {fmt.axis}, but the sum runs along "
            f"{place}; make the blocks along it, with axis={along}"
        )
    if by_scale:
        return products.operand(parts, ints, along)
    if fmt.scale == "fp32" and not isinstance(fmt.block_size, str):
        raise ValueError(
            f"matmul: codes of {fmt} times their float32 scales do not fit in float32; use an "
            "accumulator with chunk='scale', such as 'fp32_chunkscale', which adds sums of codes"
        )
    return products.without_scales(parts, ints, along, backend)
