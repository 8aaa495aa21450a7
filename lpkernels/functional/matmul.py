"""Matrix products whose every sum is rounded, of tensors and of scaled operands: how the scales of
blocks, rows and tensors enter the sum."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import NATIVE, Accumulator, Quantizer, Recipe, as_accumulator
from lpkernels.arithmetic.groups import Side, check_operands
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.formats.integers import takes_scales
from lpkernels.functional import _checks
from lpkernels.functional.dtypes import widened, widened_all
from lpkernels.functional.operands import Operand
from lpkernels.functional.products import one_sum, product, result_shape
from lpkernels.functional.quantize import lowered_quantizer, straight_through
from lpkernels.functional.recording import apply, first_order
from lpkernels.functional.scaled import Scaled, parts_of, products
from lpkernels.functional.seeds import seed_for
from lpkernels.functional.torch_calls import native_sum, own
from lpkernels.recipes import as_recipe
from lpkernels.rng import SITE_OUTPUT, Role


def matmul(
    a: Tensor | Scaled,
    b: Tensor | Scaled,
    acc: Accumulator | str | None = None,
    *,
    initial: Tensor | None = None,
    output: Quantizer | str | None = None,
    out: Tensor | None = None,
    recipe: Recipe | str | None = None,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """`torch.matmul` (https://docs.pytorch.org/docs/stable/generated/torch.matmul.html)
    with the accumulator of your choice.

    Every product, partial sum and result is rounded as acc says, k ascending from 0 to K - 1; K = 0
    gives +0. docs/contract.md, "Sums" and "The order of k", has the rules. Both gradients are
    computed in acc too, each as one sum, also over the leading dimensions in which an operand was
    broadcast. A rounded output passes its gradient unchanged. The gradients have gradients, in acc
    too; those have none.

    An `lpkernels.Scaled` operand brings codes and scales (docs/contract.md, "Products of scaled
    operands"); torch's own sums take the values as `Scaled.dequantize` gives them. Such a product
    has no gradients.

    Args:
        a, b: shapes as torch.matmul takes and broadcasts them, any strides, one device; float32, or
            float16 and bfloat16, which are widened exactly, also under autocast.
            A Scaled operand has two dimensions or more, and blocks along the summed one: axis=-1 of
            a, axis=-2 of b, or tiles.
        acc: an Accumulator or its name; None or lp.NATIVE: the sums are torch.matmul's own, and
            without `output` so is everything else (any dtype, autocast).
        initial: the value from which the outermost sum starts, instead of +0, rounded first to that
            sum's format by its rounding: the C of a tensor core, D = A B + C. It has any shape that
            broadcasts to the result's, is float32, float16 or bfloat16, and K = 0 gives it back.
            Its gradient is the result's, summed in float32 over the dimensions in which it was
            broadcast. It is refused with order "native", and with a tree without chunks.
        output: the Quantizer of the result, or its text.
        out: the tensor to write, of the result's shape (or empty) and float32. Gradients are not
            recorded.
        recipe: a Recipe or its name, in place of acc and output: the product of two activations, as
            in ``lpkernels.functional.bmm``, with leading dimensions broadcast and the gradients'
            sums as above. With b a matrix it equals ``linear(a, b.t())``, to the bit.
        generator: the seed of stochastic rounding, as in `lpkernels.quantize`.
        backend: "auto" or a name of ``lpkernels.backends.status()``.

    Returns: float32, with torch.matmul's shape.

    Raises:
        TypeError: float64 (round it first: ``lp.quantize(a, fmt).float()``), integer or complex
            operands.
        ValueError: shapes that do not fit, tensors on different devices, unknown names, an out that
            does not fit, an initial where acc has no running sum to start from it, chunk="scale"
            without a Scaled operand, groups without two that their unit takes, blocks that do not
            run along the sum, float32 scales of blocks under another acc, a gradient that is
            required of a product with a Scaled operand.
        NotImplementedError: the backend asked for has no such sums.

    >>> a, b = torch.ones(1, 4096), torch.ones(4096, 1)
    >>> lp.matmul(a, b, "e5m10")
    tensor([[2048.]])
    >>> lp.matmul(a, b, "e6m9_chunk64")
    tensor([[4096.]])
    """
    left = a.values if isinstance(a, Scaled) else a
    right = b.values if isinstance(b, Scaled) else b
    scaled = left is not a or right is not b
    if recipe is not None:
        if scaled:
            raise ValueError("matmul: a recipe quantizes operands itself; pass tensors, or acc=")
        options = {"acc": acc, "initial": initial, "output": output, "out": out}
        names = [name for name, option in options.items() if option is not None]
        if names:
            raise ValueError(
                "matmul: a recipe brings its own accumulators and output quantizer, and has no "
                f"out= or initial=; got {', '.join(names)} as well"
            )
        recipe = as_recipe(recipe)
        if recipe.is_torch:
            return own(torch.matmul, left, right)
        _checks.operands("matmul", a=left, b=right)
        shape = result_shape(left, right)
        left, right, _ = widened_all(*_as_matrices(left, right), None)
        y = product("matmul", left, right, None, 1.0, recipe, generator, backend)
        return y if y.shape == shape else y.reshape(shape)
    sums = _lowered(NATIVE if acc is None else acc)
    quantizer, stochastic = (None, False) if output is None else lowered_quantizer(output)
    if backend != "auto" or generator is not None:
        _checks.call("matmul", backend, generator)
    if initial is not None and not sums.starts:
        raise ValueError(
            "matmul: initial= needs a running sum that could start there, which order 'native' and "
            "a tree without chunks have not; use another accumulator, or for torch's own sums "
            "torch.addmm or torch.baddbmm"
        )
    if sums.is_native and quantizer is None and not scaled:
        return own(torch.matmul, left, right, out=out)
    direct = ops.is_direct(left, right, dtype=torch.float32)
    if not direct:
        _checks.operands("matmul", a=left, b=right)
    shape = result_shape(left, right)
    if sums.takes_scales and not scaled:
        raise ValueError(
            f"matmul: acc={acc} takes operands with scales, and neither operand has scales; pass "
            "lp.scaled(a, fmt), or an accumulator without chunk='scale' and group"
        )
    if initial is not None:
        _checks.operands("matmul", initial=initial, a=left)
        _checks.broadcasts("matmul", "initial", initial, shape)
    if quantizer is not None:
        _checks.axis("matmul", "the result", shape, quantizer[InQuantizer.FORMAT])
    if out is not None:
        _checks.out("matmul", out, shape, (torch.float32,), a=left, b=right)
    seed = seed_for(True, generator) if stochastic or sums.is_stochastic else None
    direct = direct and not scaled and (seed is None or ops.is_direct(seed))
    if direct and initial is None and output is None and left.dim() > 1 and right.dim() > 1:
        # As below, with less to ask, because the calls of a small product take most of its time.
        if not ops.needs_gradient(left, right):
            matrices = ops.Product("matmul", left, right, shape)
            how = sums.how if seed is None else sums.how._replace(seed=seed)
            result = ops.DIRECT.multiply(matrices, how, backend)
            return result if out is None else out.copy_(result)
    fused = ops.NOT_FUSED
    own_pass = scaled or sums.is_native or stochastic
    if quantizer is not None and not (own_pass or takes_scales(quantizer)):
        fused, quantizer = ops.Fused(result=quantizer), None
    start = None if initial is None else initial.float().expand(shape)
    if scaled:
        _check_scaled(a, b)
    if scaled and not sums.is_native:
        result = _scaled_matmul(a, b, as_accumulator(acc), start, seed, backend)
    else:
        left = a.dequantize(backend=backend) if isinstance(a, Scaled) else a
        right = b.dequantize(backend=backend) if isinstance(b, Scaled) else b
        result = _product(left, right, start, sums, seed, backend, fused)
    if result.shape != shape:
        result = result.reshape(shape)
    if quantizer is not None:
        result = straight_through(result, quantizer, seed, Role.OUTPUT, SITE_OUTPUT, backend)
    return result if out is None else out.copy_(result)


def _as_matrices(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The operands of a product, a vector as a matrix of one row or of one column."""
    return a.unsqueeze(0) if a.dim() == 1 else a, b.unsqueeze(1) if b.dim() == 1 else b


class _Sums(NamedTuple):
    """An Accumulator as torch.compile can hold it."""

    # Without a seed.
    how: ops.How
    is_native: bool
    is_stochastic: bool
    # Whether the outermost sum has a running total, which could start anywhere.
    starts: bool
    # Whether the scales of the operands enter the sum.
    takes_scales: bool


def _lower(acc: Accumulator | str) -> _Sums:
    acc = as_accumulator(acc)
    starts = acc.order != "native" and (acc.order != "pairwise" or acc.chunk is not None)
    how = ops.How(acc.to_ints())
    return _Sums(how, acc.is_native, acc.is_stochastic, starts, acc.takes_scales)


_sums_of_name = lru_cache(maxsize=1024)(_lower)


def _lowered(acc: Accumulator | str) -> _Sums:
    if not isinstance(acc, str):
        return _lower(acc)
    if torch.compiler.is_compiling():
        sums: _Sums = _checks.constant(_lower, acc)
        return sums
    return _sums_of_name(acc)


def _product(
    a: Tensor,
    b: Tensor,
    start: Tensor | None,
    sums: _Sums,
    seed: Tensor | None,
    backend: str,
    fused: ops.Fused,
) -> Tensor:
    left, right = _as_matrices(a, b)
    if sums.is_native:
        with native_sum(a, Role.DIRECT):
            return own(torch.matmul, left.float(), right.float())
    # The operator's result has a dimension of size 1 for a vector.
    if start is not None and b.dim() == 1:
        start = start.unsqueeze(-1)
    if start is not None and a.dim() == 1:
        start = start.unsqueeze(-2)
    y: Tensor = apply(_Matmul, left, right, start, sums.how.acc, seed, backend, fused)
    return y


class _Matmul(torch.autograd.Function):
    """Products of operands of at least two dimensions. The operands are saved as they came, so that
    narrow dtypes stay narrow."""

    differentiable, layer = "second_order.of_matmul", "matmul"

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        start: Tensor | None,
        acc: tuple[int, ...],
        seed: Tensor | None,
        backend: str,
        fused: ops.Fused,
    ) -> Tensor:
        needs_a, needs_b, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None, seed)
        ctx.shapes, ctx.dtypes = (a.shape, b.shape), (a.dtype, b.dtype)
        ctx.acc, ctx.backend, ctx.draws = acc, backend, seed is not None
        left, right, _ = widened_all(a, b, None)
        product = ops.matmul_of(left, right, initial=start)
        return ops.multiply(product, ops.How(acc, seed, Role.DIRECT, fused), backend)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b, seed = ctx.saved_tensors
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = gradient_of_left(grad, b, ctx.shapes[0], ctx.acc, seed, ctx.backend)
            grad_a = grad_a.to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            grad_b = gradient_of_right(grad, a, ctx.shapes[1], ctx.acc, seed, ctx.backend)
            grad_b = grad_b.to(ctx.dtypes[1])
        grad_start = grad if ctx.needs_input_grad[2] else None
        return grad_a, grad_b, grad_start, None, None, None, None


def gradient_of_left(
    grad: Tensor, b: Tensor, shape: torch.Size, acc: ops.Ints, seed: Tensor | None, backend: str
) -> Tensor:
    """grad @ b^T as the gradient of a left operand of this shape, float32."""
    left, right = one_sum(grad, b.float().mT, shape)
    how = ops.How(acc, seed, Role.DGRAD)
    return ops.multiply(ops.matmul_of(left, right), how, backend).reshape(shape)


def gradient_of_right(
    grad: Tensor, a: Tensor, shape: torch.Size, acc: ops.Ints, seed: Tensor | None, backend: str
) -> Tensor:
    """a^T @ grad as the gradient of a right operand of this shape, float32."""
    # A right operand is laid out as a linear layer's weight (N, K), which keys its draws.
    left, right = one_sum(grad.mT, a.float(), shape)
    how = ops.How(acc, seed, Role.WGRAD)
    return ops.multiply(ops.matmul_of(left, right), how, backend).mT.reshape(shape)


def _scaled_matmul(
    a: Tensor | Scaled,
    b: Tensor | Scaled,
    acc: Accumulator,
    start: Tensor | None,
    seed: Tensor | None,
    backend: str,
) -> Tensor:
    """a (..., M, K) @ b (..., K, N), at least one of them scaled, as `lpkernels.matmul` says."""
    by_scale = acc.takes_scales
    pair = (_operand(a, -1, by_scale, backend), _operand(b, -2, by_scale, backend))
    if acc.group is not None:
        sides = {n: Side(getattr(x, "fmt", None), k) for n, x, k in (("a", a, -1), ("b", b, -2))}
        check_operands("matmul", acc, sides)
    elif by_scale:
        products.check_bits(*(x.fmt for x in pair))
    if start is not None and any(operand.total is not None for operand in pair):
        raise ValueError(
            "matmul: initial= starts the sum before the scales of rows and tensors multiply it; "
            "add it to the result, or use formats without such scales"
        )
    how = ops.How(acc.to_ints(), seed, Role.DIRECT)
    product = ops.matmul_of(pair[0].values, pair[1].values, initial=start)
    return products.multiply(product, pair, how, backend)


def _check_scaled(a: Tensor | Scaled, b: Tensor | Scaled) -> None:
    for name, x in (("a", a), ("b", b)):
        values = x.values if isinstance(x, Scaled) else x
        if values.dim() < 2:
            raise ValueError(
                f"matmul: {name} has shape {tuple(x.shape)}; a product of scaled operands takes "
                "(..., M, K) and (..., K, N)"
            )
        if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
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
    has_axis = not isinstance(fmt.block_size, tuple) and fmt.block_size != "tensor"
    if has_axis and fmt.axis % x.values.dim() != x.values.dim() + along:
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
