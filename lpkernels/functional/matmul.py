"""Matrix products whose every sum is rounded."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lpkernels import ops
from lpkernels.arithmetic import NATIVE, Accumulator, Quantizer, as_accumulator
from lpkernels.functional import _checks
from lpkernels.functional._layer import widened
from lpkernels.functional.quantize import lowered_quantizer, straight_through
from lpkernels.functional.seeds import seed_for
from lpkernels.rng import SITE_OUTPUT, Role

__all__ = ["matmul"]


def matmul(
    a: Tensor,
    b: Tensor,
    acc: Accumulator | str | None = None,
    *,
    output: Quantizer | str | None = None,
    out: Tensor | None = None,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """`torch.matmul` with the accumulator of your choice.

    Every product, partial sum and result is rounded as acc says, k ascending from 0 to K - 1; K = 0
    gives +0. Both
    gradients are computed in acc too, each as one sum: that of a over the leading dimensions in
    which a was broadcast, row-major, then n; that of b over those of b, then m. A rounded output
    passes its gradient unchanged. The gradients are not differentiable again.

    Args:
        a, b: shapes as torch.matmul takes and broadcasts them, any strides, one device; float32, or
            float16 and bfloat16, which are widened exactly, also under autocast.
        acc: an Accumulator or its name; None or lp.NATIVE: the sums are torch.matmul's own, and
            without `output` so is everything else (any dtype, autocast).
        output: the Quantizer of the result, or its text.
        out: the tensor to write, of the result's shape (or empty) and float32. Gradients are not
            recorded.
        generator: the seed of stochastic rounding, as in `lpkernels.quantize`.
        backend: "auto" or a name of ``lpkernels.backends.status()``.

    Returns:
        float32, with torch.matmul's shape.

    Raises:
        TypeError: float64 (round it first: ``lp.quantize(a, fmt).float()``), integer or complex
            operands.
        ValueError: shapes that do not fit, tensors on different devices, unknown names, an out that
            does not fit.
    """
    sums = _lowered(NATIVE if acc is None else acc)
    quantizer, stochastic = (None, False) if output is None else lowered_quantizer(output)
    _checks.backend("matmul", backend)
    _checks.generator("matmul", generator)
    if sums.is_native and quantizer is None:
        return torch.matmul(a, b, out=out)
    _checks.operands("matmul", a=a, b=b)
    shape = _result_shape(a, b)
    if out is not None:
        _checks.out("matmul", out, shape, (torch.float32,), a=a, b=b)
    seed = seed_for(stochastic or sums.is_stochastic, generator)
    fused = ops.NOT_FUSED
    if quantizer is not None and not sums.is_native and ops.fuses(quantizer):
        fused, quantizer = ops.Fused(result=quantizer), None
    result = _product(a, b, sums, seed, backend, fused)
    if result.shape != shape:
        result = result.reshape(shape)
    if quantizer is not None:
        result = straight_through(result, quantizer, seed, Role.OUTPUT, SITE_OUTPUT, backend)
    return result if out is None else out.copy_(result)


class _Sums(NamedTuple):
    """An Accumulator as torch.compile can hold it."""

    ints: tuple[int, ...]
    is_native: bool
    is_stochastic: bool


def _lowered(acc: Accumulator | str) -> _Sums:
    return _checks.constant(_lower, acc) if isinstance(acc, str) else _lower(acc)


def _lower(acc: Accumulator | str) -> _Sums:
    acc = as_accumulator(acc)
    return _Sums(acc.to_ints(), acc.is_native, acc.is_stochastic)


def _product(
    a: Tensor, b: Tensor, sums: _Sums, seed: Tensor | None, backend: str, fused: ops.Fused
) -> Tensor:
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    if sums.is_native:
        with torch.autocast(a.device.type, enabled=False):
            return torch.matmul(left.float(), right.float())
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return _Matmul.apply(left, right, sums.ints, seed, backend, fused)
    call = (None, sums.ints, seed, Role.DIRECT, backend, fused)
    return ops.matmul(widened(left), widened(right), *call)


class _Matmul(torch.autograd.Function):
    """Operands of at least two dimensions. They are saved as they came, narrow ones stay narrow."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        acc: tuple[int, ...],
        seed: Tensor | None,
        backend: str,
        fused: ops.Fused,
    ) -> Tensor:
        needs_a, needs_b, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None, seed)
        ctx.shapes, ctx.dtypes = (a.shape, b.shape), (a.dtype, b.dtype)
        ctx.acc, ctx.backend = acc, backend
        return ops.matmul(widened(a), widened(b), None, acc, seed, Role.DIRECT, backend, fused)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b, seed = ctx.saved_tensors
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            left, right = one_sum(grad, b.float().mT, ctx.shapes[0])
            grad_a = ops.matmul(left, right, None, ctx.acc, seed, Role.DGRAD, ctx.backend)
            grad_a = grad_a.reshape(ctx.shapes[0]).to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            left, right = one_sum(a.float().mT, grad, ctx.shapes[1])
            grad_b = ops.matmul(left, right, None, ctx.acc, seed, Role.WGRAD, ctx.backend)
            grad_b = grad_b.reshape(ctx.shapes[1]).to(ctx.dtypes[1])
        return grad_a, grad_b, None, None, None, None


def one_sum(left: Tensor, right: Tensor, target: torch.Size) -> tuple[Tensor, Tensor]:
    """Factors whose product, reshaped to target, is left @ right summed over target's broadcast
    dimensions.

    Those leading dimensions move, in order, in front of the summed axis and become one with it.
    Views where the strides allow it.
    """
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    dims = len(batch)
    padded = (1,) * (dims + 2 - len(target)) + tuple(target)
    summed = [i for i in range(dims) if padded[i] != batch[i]]
    if not summed:
        return left, right
    kept = [i for i in range(dims) if i not in summed]
    left = left.reshape((1,) * (dims + 2 - left.dim()) + left.shape)
    right = right.reshape((1,) * (dims + 2 - right.dim()) + right.shape)
    left = left.permute(*kept, dims, *summed, dims + 1).flatten(len(kept) + 1)
    right = right.permute(*kept, *summed, dims, dims + 1).flatten(len(kept), -2)
    return left, right


def _result_shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    if a.dim() == 0 or b.dim() == 0:
        raise ValueError(
            f"matmul: a has shape {tuple(a.shape)} and b {tuple(b.shape)}; both need at least one "
            "dimension; "
            "for a product with a scalar use *"
        )
    left, right = a.shape, b.shape
    if len(left) == len(right) == 2 and left[1] == right[0]:
        return (left[0], right[1])
    inner = b.shape[-2] if b.dim() > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError(
            f"matmul: a has K={a.shape[-1]} but b has K={inner} (shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}); "
            "a must be (..., M, K) and b (..., K, N)"
        )
    try:
        batch = ops.broadcast_batch(a, b)
    except RuntimeError:
        raise ValueError(
            f"matmul: the leading dimensions {tuple(a.shape[:-2])} of a and {tuple(b.shape[:-2])} "
            "of b do not "
            "broadcast; each pair must be equal or one of them 1"
        ) from None
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.dim() > 1 else ()))
