"""The multiply-adds of operators, read off their arguments and results.

An operator is counted (`SIZES`), or makes no product, or runs as other operators, or has an unknown
number of multiply-adds. An operator counts as unknown if its name looks like a product's and none
of the other cases applies (tests/nn/test_product_sizes.py lists torch's).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpkernels.arithmetic.products import Lengths, conv_lengths, matmul_lengths
from lpkernels.functional.unchecked import records


class Sizes(NamedTuple):
    """The sizes of one call: the kind of product, its multiply-adds (None: unknown), and the terms
    in a sum of fprop, dgrad and wgrad.

    The left operand counts as the input of a layer and the right operand as its weight. Lengths are
    None where one operator is several products.
    """

    product: str
    macs: int | None
    lengths: Lengths | None = None


def sizes_of(name: str, values: Sequence[Any], result: Any) -> Sizes | None:
    """The sizes of a call of the operator of this name; None where it makes no product.

    values: the arguments in the order of the schema, with the defaults.
    """
    counting = SIZES.get(name)
    if counting is None:
        bare = name.partition("::")[2] or name
        unknown = _LOOKS_LIKE.search(bare) and bare not in NO_PRODUCT
        return Sizes(name, None) if unknown and not name.startswith("lpkernels::") else None
    if any(isinstance(value, Tensor) and value.is_nested for value in values):
        return Sizes(name, None)
    return counting(result, *values)


def _stored(x: Tensor) -> int:
    """The elements that a tensor stores, fewer than it has where it is sparse."""
    if x.layout is torch.strided:
        return x.numel()
    return (x._values() if x.layout is torch.sparse_coo else x.values()).numel()


def _matmul(y: Tensor, a: Tensor, b: Tensor, *_: Any) -> Sizes:
    shape = (*a.shape[:-1], b.shape[-1])
    sparse = [x.layout is not torch.strided for x in (a, b)]
    if all(sparse):
        return Sizes("matmul", None)
    macs = _stored(b) * a.shape[-2] if sparse[1] else _stored(a) * b.shape[-1]
    return Sizes("matmul", macs, None if any(sparse) else matmul_lengths(a.shape, b.shape, shape))


def _linear(y: Tensor, x: Tensor, w: Tensor, *_: Any) -> Sizes:
    lengths = (x.shape[-1], y.shape[-1], x.shape[:-1].numel())
    return Sizes("matmul", x.numel() * y.shape[-1], lengths)


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


def _convolution(y: Tensor, *values: Any) -> Sizes:
    x, w, _, stride, _, dilation, transposed, _, groups, *_ = values
    return _conv_sizes((x if transposed else y).shape, w, stride, dilation, groups, transposed)


def _convolution_backward(y: Any, g: Tensor, *values: Any) -> Sizes:
    *forward, mask = values
    kind, macs, _ = _convolution(g, *forward)
    return Sizes(kind, sum(mask[:2]) * (macs or 0))


def _multiply(y: Tensor, *values: Any) -> Sizes:
    """Our own product; a dgrad that runs forward is a transposed convolution."""
    product = records(*values)[0]
    if product.conv is None:
        a, b = product.left, product.right
        return Sizes("matmul", y.numel() * a.shape[-1], matmul_lengths(a.shape, b.shape, y.shape))
    stride, _, dilation, groups = product.conv
    _, w, small = product.images()
    weight = product.left.new_empty(1).expand(*w)
    transposed = product.kind == "conv_dgrad"
    return _conv_sizes(small, weight, stride, dilation, groups, transposed)


def _trilinear(y: Tensor, *values: Any) -> int:
    """First i1 * i2 is summed over the dimensions that i3 lacks; the sums are multiplied by i3."""
    tensors, expanded, sumdim = values[:3], values[3:6], values[6]
    shapes = []
    for x, dims in zip(tensors, expanded, strict=True):
        shape = list(x.shape)
        for dim in sorted(dims):
            shape.insert(dim, 1)
        shapes.append(shape)
    full = [max(sizes) for sizes in zip(*shapes, strict=True)]
    left = [n for dim, n in enumerate(full) if dim not in sumdim or dim not in expanded[2]]
    return math.prod(full) + math.prod(left)


def _grouped(y: Any, a: Tensor, b: Tensor, *_: Any) -> int:
    # Rows behind the last group count. Where both have three dimensions, each group has its own.
    groups = a.shape[0] if a.dim() == b.dim() == 3 else 1
    return groups * math.prod(a.shape[-2:]) * b.shape[-1]


def _attention(*, backward: bool = False, flash: bool = False) -> Callable[..., int | None]:
    """The multiply-adds of attention, whose backward pass computes the scores again."""

    def macs(y: Any, *values: Any) -> int | None:
        q, k, v, *options = values[1:] if backward else values
        if flash:
            scores = _flash_scores(q, k, options[2:4] if backward else options[:3])
        else:
            scores = q.shape[:-1].numel() * k.shape[-2]
        forward = q.shape[-1] + v.shape[-1]
        return scores and scores * (2 * forward + q.shape[-1] if backward else forward)

    return macs


def _flash_scores(q: Tensor, k: Tensor, options: Sequence[Any]) -> int | None:
    """The scores of q and k (N, L, heads, E); among the options may be the ends of sequences that
    lie one behind the other, q's and k's. None where nobody knows these."""
    ends = [x for x in options if isinstance(x, Tensor) and x.dim() == 1]
    if not ends:
        return q.shape[:-1].numel() * k.shape[1]
    if ends[0].is_meta:
        return None
    of_q, of_k = (x.diff() for x in ends)
    return int((of_q * of_k).sum()) * q.shape[-2]


def _multi_head(y: Any, q: Tensor, k: Tensor, v: Tensor, width: int, *_: Any) -> int:
    n, t, s = q.shape[0], q.shape[1], k.shape[1]
    return n * width * (width * (2 * t + 2 * s) + 2 * t * s)


def _encoder_layer(y: Any, x: Tensor, width: int, heads: int, *values: Any) -> int:
    # The two hidden layers stand behind the projections, biases and options of attention and the
    # norms.
    weights = [w for w in values if isinstance(w, Tensor) and w.dim() == 2]
    projections = x.shape[:-1].numel() * sum(w.numel() for w in weights[:4])
    return projections + 2 * x.shape[0] * x.shape[1] ** 2 * width


def _recurrent(y: Any, x: Tensor, *weights: Any) -> int:
    tensors = weights[0] if isinstance(weights[0], list) else weights[:2]
    return x.shape[:-1].numel() * sum(w.numel() for w in tensors if w.dim() == 2)


_WITH_LENGTHS: dict[str, Callable[..., Sizes]] = {
    "mm bmm _int_mm _scaled_mm _scaled_mm_v2 hspmm _sparse_mm_reduce_impl _sparse_sparse_matmul": (
        _matmul
    ),
    "addmm addmm_ baddbmm baddbmm_ addbmm addbmm_ _addmm_activation _sparse_addmm sspaddmm": (
        lambda y, addend, *operands: _matmul(y, *operands)
    ),
    "mv": lambda y, a, x: _matmul(y, a, x.unsqueeze(1)),
    "addmv addmv_": lambda y, addend, a, x, *_: _matmul(y, a, x.unsqueeze(1)),
    "dot vdot": lambda y, a, b: _matmul(y, a.unsqueeze(0), b.unsqueeze(1)),
    "linear mkldnn_linear": _linear,
    "convolution _convolution convolution_overrideable": _convolution,
    "convolution_backward convolution_backward_overrideable": _convolution_backward,
}
# The kind of product, and a function of the result and all arguments to the multiply-adds.
_WITHOUT_LENGTHS: dict[str, tuple[str, Callable[..., int | None]]] = {
    "sparse_sampled_addmm": ("matmul", lambda y, at, a, *_: _stored(at) * a.shape[-1]),
    "matmul_backward": ("matmul", lambda y, g, a, b, mask: sum(mask) * g.numel() * a.shape[-1]),
    "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2": ("matmul", _grouped),
    "cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu mkldnn_convolution "
    "_nnpack_spatial_convolution _conv_depthwise2d conv_depthwise3d _slow_conv2d_forward "
    "slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d": (
        "conv", lambda y, x, w, *_: y.numel() // y.shape[1] * w.numel(),
    ),
    "conv_tbc": ("conv", lambda y, x, w, *_: y.shape[:2].numel() * w.numel()),
    "_trilinear": ("bilinear", _trilinear),
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable": ("attention", _attention()),
    "_scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
    "_scaled_dot_product_fused_attention_overrideable_backward": (
        "attention", _attention(backward=True),
    ),
    "_flash_attention_forward _flash_attention_forward_no_dropout_inplace "
    "_efficient_attention_forward": ("attention", _attention(flash=True)),
    "_flash_attention_backward _efficient_attention_backward": (
        "attention", _attention(backward=True, flash=True),
    ),
    "_native_multi_head_attention": ("attention", _multi_head),
    "_transformer_encoder_layer_fwd": ("attention", _encoder_layer),
    "mkldnn_rnn_layer _cudnn_rnn": ("recurrent", _recurrent),
    "mkldnn_rnn_layer_backward _cudnn_rnn_backward": (
        "recurrent", lambda *values: 2 * _recurrent(*values),
    ),
    "_cdist_forward _euclidean_dist": ("distances", lambda y, a, *_: y.numel() * a.shape[-1]),
    "_cdist_backward": ("distances", lambda y, g, a, *_: g.numel() * a.shape[-1]),
    # The gradient that backward reads is as wide as the table.
    "_embedding_bag _embedding_bag_forward_only _embedding_bag_backward "
    "_embedding_bag_dense_backward": ("bag", lambda y, w, at, *_: at.numel() * w.shape[-1]),
    "_embedding_bag_per_sample_weights_backward": (
        "bag", lambda y, g, w, at, *_: at.numel() * w.shape[-1],
    ),
}  # fmt: skip


def _counting(product: str, macs: Callable[..., int | None]) -> Callable[..., Sizes]:
    return lambda *values: Sizes(product, macs(*values))


_COUNTED = _WITH_LENGTHS | {names: _counting(*how) for names, how in _WITHOUT_LENGTHS.items()}
SIZES: dict[str, Callable[..., Sizes]] = {
    "lpkernels::_multiply": _multiply,
    **{f"aten::{name}": sizes for names, sizes in _COUNTED.items() for name in names.split()},
}
"""By the name of the operator's schema: its sizes from its result and all its arguments."""

_LOOKS_LIKE = re.compile(
    r"mm(?=_|\d|$)|mv(?=_|$)|dot(?=_|$)|gemm|matmul|conv(?!ert)|linear|attention|attn|lstm|gru(?=_|$)"
    r"|rnn|dist(?=_|$)|solve|cholesky|svd|eig(?!ht)|(?<![a-z])p?inv(?=_|$)|det(?=_|$)|(?<![a-z])lu(?=_|$)"
    r"|qr(?=_|$)|lstsq|matrix|einsum|encoder|embedding_bag|householder|geqrf|ldl|multi_head|mlp"
)
NO_PRODUCT = frozenset(
    """
    _cslt_sparse_mm_search _cudnn_rnn_flatten_weight _pdist_backward _pdist_forward
    _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell
    _thnn_fused_lstm_cell_backward_impl _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
    dist lu_unpack mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight upsample_bilinear2d
    upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_trilinear3d
    upsample_trilinear3d_backward
    """.split()
)
"""Operators of torch whose names look like a product's, and that multiply no matrices."""
