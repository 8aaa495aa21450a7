"""The sizes of products, read off the arguments of operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpkernels.arithmetic.products import Lengths, conv_lengths, matmul_lengths, output_size
from lpkernels.functional.unchecked import records


class Sizes(NamedTuple):
    """The sizes of one call: the kind of product, its multiply-adds, and the terms in a sum of
    fprop, dgrad and wgrad.

    The left operand counts as the input of a layer and the right operand as its weight. Lengths are
    None where one operator is several products.
    """

    product: str
    macs: int
    lengths: Lengths | None


def _matmul(a: Tensor, b: Tensor, *_: Any, **__: Any) -> Sizes:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    y = (*batch, a.shape[-2], b.shape[-1])
    return Sizes("matmul", math.prod(y) * a.shape[-1], matmul_lengths(a.shape, b.shape, y))


def _addmm(input: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> Sizes:
    return _matmul(a, b)


def _mv(a: Tensor, x: Tensor, *_: Any, **__: Any) -> Sizes:
    return Sizes("matmul", a.numel(), (a.shape[1], 1, a.shape[0]))


def _addmv(input: Tensor, a: Tensor, x: Tensor, *_: Any, **__: Any) -> Sizes:
    return _mv(a, x)


def _dot(a: Tensor, b: Tensor) -> Sizes:
    return Sizes("matmul", a.numel(), (a.numel(), 1, 1))


def _conv_sizes(
    small: Sequence[int],
    w: Tensor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
) -> Sizes:
    """small: the shape of the tensor that has a position for each place of the kernel."""
    to_small, to_large, places = conv_lengths(w.shape, small, stride, dilation, groups)
    forward, backward = (to_large, to_small) if transposed else (to_small, to_large)
    kind = "conv_transpose" if transposed else "conv"
    return Sizes(kind, places * w.numel(), (forward, backward, places))


def _convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Sizes:
    small = x.shape if transposed else _positions(x, w, stride, padding, dilation)
    return _conv_sizes(small, w, stride, dilation, groups, transposed)


def _multiply(*arguments: Any) -> Sizes:
    """The sizes of a product that a forward pass makes; a dgrad is a transposed convolution."""
    product, *_ = records(*arguments)
    if product.conv is None:
        return _matmul(product.left, product.right)
    stride, _, dilation, groups = product.conv
    transposed = product.kind == "conv_dgrad"
    return _conv_sizes(product.images()[2], product.right, stride, dilation, groups, transposed)


def _positions(
    x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    spatial = output_size(x.shape[2:], w.shape[2:], stride, padding, dilation)
    return [x.shape[0], w.shape[0], *spatial]


def _trilinear(x1: Tensor, w: Tensor, x2: Tensor, *_: Any, **__: Any) -> Sizes:
    rows = x1.numel() // x1.shape[-1]
    return Sizes("bilinear", rows * (w.numel() + w.shape[-3] * w.shape[-1]), None)


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Sizes:
    scores = q.shape[:-1].numel() * k.shape[-2]
    return Sizes("attention", scores * (q.shape[-1] + v.shape[-1]), None)


def _multi_head(q: Tensor, k: Tensor, v: Tensor, width: int, *_: Any, **__: Any) -> Sizes:
    n, t, s = q.shape[0], q.shape[1], k.shape[1]
    projections = n * width * width * (2 * t + 2 * s)
    return Sizes("attention", projections + 2 * n * t * s * width, None)


def _encoder_layer(x: Tensor, width: int, heads: int, *rest: Any, **__: Any) -> Sizes:
    # The two hidden layers stand behind the projections, biases and options of attention and the
    # norms.
    weights = [w for w in rest if isinstance(w, Tensor) and w.dim() == 2]
    projections = x.shape[:-1].numel() * sum(w.numel() for w in weights[:4])
    return Sizes("attention", projections + 2 * x.shape[0] * x.shape[1] ** 2 * width, None)


def _recurrent(x: Tensor, w_input: Tensor, w_hidden: Tensor, *_: Any, **__: Any) -> Sizes:
    steps = x.shape[:-1].numel()
    return Sizes("recurrent", steps * (w_input.numel() + w_hidden.numel()), None)


_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
SIZES: dict[str, Callable[..., Sizes]] = {
    "lpkernels::_multiply": _multiply,
    "lpkernels::_matmul_scaled": _matmul,
    "aten::mm": _matmul,
    "aten::bmm": _matmul,
    "aten::addmm": _addmm,
    "aten::baddbmm": _addmm,
    "aten::addbmm": _addmm,
    "aten::mv": _mv,
    "aten::addmv": _addmv,
    "aten::dot": _dot,
    "aten::vdot": _dot,
    "aten::convolution": _convolution,
    "aten::_trilinear": _trilinear,
    **{f"aten::{name}": _attention for name in _ATTENTION},
    "aten::_native_multi_head_attention": _multi_head,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
    "aten::mkldnn_rnn_layer": _recurrent,
}
"""By the name of the operator's schema: its sizes from its arguments."""
