"""The operators that sum products, matmul and the three passes of a convolution, and the bias of
those that take none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import Accumulator
from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.arithmetic.products import output_size
from lpkernels.backends import NOT_FUSED, Fused, native
from lpkernels.ops import _checks
from lpkernels.ops._operator import as_ints, define, without_grad
from lpkernels.ops._outside import look_once
from lpkernels.ops._quantize import rounded
from lpkernels.ops._rows import Ints
from lpkernels.rng import SITE_BIAS, SITE_QUANTIZE, Role


def _apart(
    product: Callable[..., Tensor], operands: Sequence[Any], fused: Fused, backend: str
) -> Tensor:
    """product with the quantizers of fused as passes of their own, for backends without them."""
    call = (None, Role.DIRECT, SITE_QUANTIZE, backend)
    pairs = zip(operands, fused[:2], strict=False)
    pair = [rounded(x, ints, *call) if ints else x for x, ints in pairs]
    result = product(*pair, *operands[2:])
    return rounded(result, fused.result, *call) if fused.result else result


def _define_sum(
    op: str,
    operands: str,
    check: Callable[..., None],
    shape: Callable[..., Sequence[int]],
    *,
    starts: bool = False,
) -> Any:
    """An operator on two tensors and more that ends in (acc, seed, role, backend, *Fused); check
    refuses operands, shape gives that of the result. starts: the third tensor is the backend's
    `initial`."""

    def fake(*args: Any) -> Tensor:
        return args[0].new_empty(shape(*args))

    def guard(*args: Any) -> None:
        first, second, *more, acc, seed, role, _, left, right, result = args
        _checks.product(op, first, second, acc, seed, role)
        check(op, first, second, *more)
        _checks.fused(op, left, right, result)

    def impl(*args: Any) -> Tensor:
        first, second, *more, acc, seed, role, backend, left, right, result = args
        made = _checks.sums(acc)
        operands = list(map(without_grad, (first, second, *more)))
        start = {"initial": operands[2]} if starts else {}
        if starts:
            operands[2] = None
        call = (made.acc, seed, role)
        native_order = made.native
        # torch sums native chunks, unless the backend does; the additions that the contract covers
        # are always the backend's.
        needed = "accumulate" if native_order else op + made.suffix
        chosen = backends.select(backend, needed, first.device)
        native_order = native_order and not chosen.sums_native
        if len(made.acc) > InAccumulator.PLAIN:
            look_once(op, made.acc, operands[:2], (tuple(left), tuple(right)))
        fused = NOT_FUSED
        if left or right or result:
            fused = Fused(tuple(left), tuple(right), tuple(result))
        if chosen.fuses and not native_order:
            return getattr(chosen, op)(*operands, *call, fused, **start)
        sizes = shape(*operands)
        if 0 in sizes:
            return first.new_empty(sizes)

        def product(*operands: Any) -> Tensor:
            if native_order:
                geometry = operands[3:]
                conv = (native.Convolution(*geometry),) if geometry else ()
                return getattr(native, op)(native.Adder(chosen, *call), *operands[:3], *conv)
            return getattr(chosen, op)(*operands, *call, **start)

        return _apart(product, operands, fused, backend)

    tail = "int[] acc, Tensor? seed, int role, str backend, int[] left, int[] right, int[] result"
    name = f"_{op}_initial" if starts else f"_{op}"
    return define(f"{name}({operands}, {tail}) -> Tensor", fake, impl, guard)


def _matmul_shape(a: Tensor, b: Tensor, *_: Any) -> Sequence[int]:
    if a.dim() == b.dim() == 2:
        return (a.shape[0], b.shape[1])
    return (*backends.broadcast_batch(a, b), a.shape[-2], b.shape[-1])


def _conv_shape(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *_: Any,
) -> Sequence[int]:
    spatial = output_size(x.shape[2:], w.shape[2:], stride, padding, dilation)
    return (x.shape[0], w.shape[0], *spatial)


def _given_shape(first: Tensor, second: Tensor, shape: Sequence[int], *_: Any) -> Sequence[int]:
    return shape


_GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups"
_matmul = _define_sum("matmul", "Tensor a, Tensor b, Tensor? bias", _checks.matmul, _matmul_shape)
_matmul_initial = _define_sum(
    "matmul",
    "Tensor a, Tensor b, Tensor initial",
    _checks.matmul_initial,
    _matmul_shape,
    starts=True,
)
_conv_fprop = _define_sum(
    "conv_fprop",
    f"Tensor x, Tensor w, Tensor? bias, {_GEOMETRY}",
    _checks.conv_fprop,
    _conv_shape,
)
_conv_dgrad = _define_sum(
    "conv_dgrad",
    f"Tensor grad_output, Tensor w, SymInt[] input_shape, {_GEOMETRY}",
    _checks.conv_dgrad,
    _given_shape,
)
_conv_wgrad = _define_sum(
    "conv_wgrad",
    f"Tensor x, Tensor grad_output, SymInt[] weight_shape, {_GEOMETRY}",
    _checks.conv_wgrad,
    _given_shape,
)


def _like_total(total: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(total, memory_format=torch.contiguous_format)


def _add_bias_impl(
    total: Tensor,
    bias: Tensor,
    channels: int,
    acc: Ints,
    seed: Tensor | None,
    role: int,
    backend: str,
    result: Ints,
) -> Tensor:
    made = _checks.sums(acc)
    chosen = backends.select(backend, "accumulate", total.device)
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
    plain = made.acc[: InAccumulator.PLAIN]
    chosen.accumulate(rows, addend, (0, 0), plain, seed, role, SITE_BIAS, 0)
    out.copy_(sums.movedim(-1, channels))
    return rounded(out, tuple(result), None, role, SITE_QUANTIZE, backend) if result else out


_add_bias = define(
    "_add_bias(Tensor total, Tensor bias, int channels, int[] acc, Tensor? seed, int role,"
    " str backend, int[] result) -> Tensor",
    _like_total,
    _add_bias_impl,
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
    their row: those of a bias that a product adds itself.
    """
    return _add_bias(total, bias, channels, as_ints(acc), seed, int(role), backend, result)


def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    acc: Accumulator | Ints,
    seed: Tensor | None,
    role: int,
    backend: str = "auto",
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """(..., M, K) times (..., K, N), float32, leading dimensions broadcast, summed by acc."""
    return _matmul(a, b, bias, as_ints(acc), seed, int(role), backend, *fused)


def matmul_initial(
    a: Tensor,
    b: Tensor,
    initial: Tensor,
    acc: Accumulator | Ints,
    seed: Tensor | None,
    role: int,
    backend: str = "auto",
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """`matmul` whose outermost sums start at initial, float32 of the result's shape, rounded once.

    acc: any order but "native", nor a tree without chunks.
    """
    return _matmul_initial(a, b, initial, as_ints(acc), seed, int(role), backend, *fused)


def conv_fprop(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    acc: Accumulator | Ints,
    seed: Tensor | None,
    role: int,
    backend: str = "auto",
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """x (N, C, *spatial) with w (C_out, C / groups, *kernel), float32, 1 to 3 dimensions."""
    geometry = (stride, padding, dilation, groups)
    return _conv_fprop(x, w, bias, *geometry, as_ints(acc), seed, int(role), backend, *fused)


def conv_dgrad(
    grad_output: Tensor,
    w: Tensor,
    input_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    acc: Accumulator | Ints,
    seed: Tensor | None,
    role: int,
    backend: str = "auto",
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """The gradient of `conv_fprop` with respect to x, of shape input_shape."""
    geometry = (stride, padding, dilation, groups)
    spec = as_ints(acc)
    return _conv_dgrad(
        grad_output, w, input_shape, *geometry, spec, seed, int(role), backend, *fused
    )


def conv_wgrad(
    x: Tensor,
    grad_output: Tensor,
    weight_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    acc: Accumulator | Ints,
    seed: Tensor | None,
    role: int,
    backend: str = "auto",
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """The gradient of `conv_fprop` with respect to w, of shape weight_shape."""
    geometry = (stride, padding, dilation, groups)
    spec = as_ints(acc)
    return _conv_wgrad(
        x, grad_output, weight_shape, *geometry, spec, seed, int(role), backend, *fused
    )
