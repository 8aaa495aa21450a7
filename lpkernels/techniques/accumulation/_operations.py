"""The functions of torch that a trace looks into, and how."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.functional.conv import ConvGeometry
from lpkernels.techniques.accumulation._attention import (
    dot_product_attention,
    multi_head_attention,
)
from lpkernels.techniques.accumulation._geometry import Conv, ConvTranspose, Matmul, sizes
from lpkernels.techniques.accumulation._recurrent import CELLS, recurrent
from lpkernels.techniques.accumulation._trace import Handler, Tracer, name_of, rows

# Products that are not looked into: what a model that calls one is told.
OPAQUE = (
    "einsum", "tensordot", "bilinear", "conv_tbc", "convolution", "_convolution", "chain_matmul",
    "multi_dot", "addbmm", "addmv", "dot", "vdot", "inner", "vecdot", "matrix_power",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd", "_scaled_mm", "scaled_mm", "_grouped_mm", "grouped_mm",
    "sparse_mm", "smm", "sspaddmm", "hspmm",
)  # fmt: skip


def _arguments(
    names: str, args: Sequence[Any], kwargs: dict[str, Any], defaults: dict[str, Any]
) -> dict[str, Any]:
    return defaults | dict(zip(names.split(), args, strict=False)) | kwargs


def _matmul(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    y = func(*args, **kwargs)
    left, right = (*args, *(value for name, value in kwargs.items() if name != "out"))
    if name_of(func) == "rmatmul":
        left, right = right, left
    shape = list(y.shape)
    if right.dim() == 1:
        right = right.unsqueeze(1)
        shape.append(1)
    if left.dim() == 1:
        left = left.unsqueeze(0)
        shape.insert(len(shape) - 1, 1)
    kind = name_of(func).replace("rmat", "mat")
    tracer.record(Matmul(), left, right, y, kind, shape=torch.Size(shape))
    return y


def _addmm(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    renamed = {name.replace("batch", "mat"): value for name, value in kwargs.items()}
    of = _arguments("input mat1 mat2", args, renamed, {})
    left, right = (of[name] for name in ("mat1", "mat2"))
    y = func(*args, **kwargs)
    tracer.record(Matmul(), left, right, y, name_of(func))
    return y


def _linear(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    of = _arguments("input weight bias", args, kwargs, {})
    y = func(*args, **kwargs)
    x, w = of["input"], of["weight"]
    tracer.record(Matmul(), rows(x), w.mT, y, "linear", shape=rows(y).shape)
    return y


def _batched(x: Tensor, y: Tensor, dims: int) -> tuple[Tensor, torch.Size]:
    """x and y's shape with a batch dimension."""
    if x.dim() == dims + 2:
        return x, y.shape
    return x.unsqueeze(0), torch.Size((1, *y.shape))


def _conv(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    of = _arguments(
        "input weight bias stride padding dilation groups", args, kwargs,
        {"stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    )  # fmt: skip
    y = func(*args, **kwargs)
    x, w = of["input"], of["weight"]
    dims = w.dim() - 2
    stride, dilation = sizes(of["stride"], dims), sizes(of["dilation"], dims)
    padding = of["padding"]
    if padding == "same":
        extra = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
        x = F.pad(x, [side for e in extra[::-1] for side in (e // 2, e - e // 2)])
    paddings = (0,) * dims if isinstance(padding, str) else sizes(padding, dims)
    geometry = Conv(ConvGeometry(stride, paddings, dilation, of["groups"]))
    x, shape = _batched(x, y, dims)
    tracer.record(geometry, x, w, y, name_of(func), shape=shape)
    return y


def _conv_transpose(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    of = _arguments(
        "input weight bias stride padding output_padding groups dilation", args, kwargs,
        {"stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    )  # fmt: skip
    y = func(*args, **kwargs)
    x, w = of["input"], of["weight"]
    dims = w.dim() - 2
    stride, padding, dilation = (sizes(of[k], dims) for k in ("stride", "padding", "dilation"))
    x, shape = _batched(x, y, dims)
    conv = Conv(ConvGeometry(stride, padding, dilation, of["groups"]))
    tracer.record(ConvTranspose(conv, tuple(shape[1:])), x, w, y, name_of(func), shape=shape)
    return y


def _sdpa(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return dot_product_attention(*args, **kwargs, matmul=tracer.matmul)[0]


def _multi_head(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    bound = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs)
    bound.apply_defaults()
    of = bound.arguments
    added = [k for k in ("bias_k", "bias_v", "static_k", "static_v") if of[k] is not None]
    added += ["add_zero_attn"] if of["add_zero_attn"] else []
    if added:
        raise NotImplementedError(
            f"plan: {tracer.place()} calls multi_head_attention_forward with {', '.join(added)}, "
            "which is not traced; plan a model without"
        )
    return multi_head_attention(of, linear=tracer.linear, matmul=tracer.matmul)


def _recurrent(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    kind = name_of(func)
    packed = isinstance(args[3], list | tuple)
    weights = args[3] if packed else args[2]
    biases = args[4] if packed else args[3]
    hidden = args[2] if packed else args[1]
    per = 4 if biases else 2
    state: tuple[Tensor, ...] = tuple(hidden) if kind == "lstm" else (hidden,)
    projected = kind == "lstm" and state[0].shape[-1] != state[1].shape[-1]
    if packed or projected or len(weights) % per:
        what = "a packed sequence" if packed else "proj_size"
        raise NotImplementedError(
            f"plan: {tracer.place()} calls {kind} with {what}, which is not traced; plan it with "
            "padded sequences and without projection"
        )
    _, layers, dropout, train, both, batch_first = args[3:]
    x = args[0].transpose(0, 1) if batch_first else args[0]
    y, last = recurrent(
        CELLS[kind], x, state, weights, biases=biases, layers=layers, dropout=dropout,
        train=train, both=both, linear=tracer.linear, step_linear=tracer.step_linear,
    )  # fmt: skip
    tracer.close_series()
    return (y.transpose(0, 1) if batch_first else y, *last)


def _cell(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """One step of a recurrent layer on its own; each call is a product of its own."""
    names = "input hx w_ih w_hh b_ih b_hh"
    of = _arguments(names, args, kwargs, {"b_ih": None, "b_hh": None})
    kind = name_of(func).removesuffix("_cell")
    state = tuple(of["hx"]) if kind == "lstm" else (of["hx"],)
    zx = tracer.linear(of["input"], of["w_ih"], of["b_ih"], "ih")
    zh = tracer.linear(state[0], of["w_hh"], of["b_hh"], "hh")
    found = CELLS[kind](zx, zh, state)
    return found if kind == "lstm" else found[0]


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("matmul", "rmatmul", "mm", "bmm", "mv"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "linear": _linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv),
    **dict.fromkeys([f"conv_transpose{d}d" for d in (1, 2, 3)], _conv_transpose),
    "scaled_dot_product_attention": _sdpa,
    "multi_head_attention_forward": _multi_head,
    **dict.fromkeys(CELLS, _recurrent),
    **dict.fromkeys([f"{kind}_cell" for kind in CELLS], _cell),
}
