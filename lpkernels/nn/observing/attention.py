"""Attention as its products, so that each of them can be looked at."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lpkernels.functional.attention import Matmul, attended, hiding
from lpkernels.functional.storing import stored

# (x, w, b, name) -> x @ w.T + b.
Linear = Callable[[Tensor, Tensor, Tensor | None, str], Tensor]


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    matmul: Matmul,
) -> tuple[Tensor, Tensor]:
    """The output of torch's scaled_dot_product_attention, and the weights."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(repeats, dim=-3) for x in (key, value))
    mask = attn_mask
    if is_causal:
        sizes = (query.shape[-2], key.shape[-2])
        seen = torch.ones(sizes, dtype=torch.bool, device=query.device).tril()
        hides = False if mask is not None and mask.dtype == torch.bool else -math.inf
        mask = seen if mask is None else mask.masked_fill(~seen, hides)
    empty = None if attn_mask is None else 0.0
    return attended(query, key, value, mask, dropout_p, scale, matmul, empty)


def multi_head_attention(
    of: dict[str, Any], *, linear: Linear, matmul: Matmul
) -> tuple[Tensor, Tensor | None]:
    """torch.nn.functional.multi_head_attention_forward for the arguments `of`, by name.

    Without bias_k, bias_v, static_k, static_v and add_zero_attn.
    """
    query, key, value = (of[name] for name in ("query", "key", "value"))
    batched = query.dim() == 3
    if not batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
    q, k, v = _projections(query, key, value, of, linear)
    (length, batch, width), heads = query.shape, of["num_heads"]
    # (L, N, E) -> (N, heads, L, E / heads)
    q, k, v = (x.reshape(len(x), batch, heads, -1).permute(1, 2, 0, 3) for x in (q, k, v))
    mask, p = _mask(of, batch, heads, q), of["dropout_p"] if of["training"] else 0.0
    empty = math.nan if of["need_weights"] else 0.0
    y, weights = attended(q, k, v, mask, p, None, matmul, empty)
    y = y.permute(2, 0, 1, 3).reshape(length, batch, width)
    y = stored(linear(y, of["out_proj_weight"], of["out_proj_bias"], "out_proj"), "out_proj")
    if of["average_attn_weights"]:
        weights = weights.mean(dim=1)
    if of["need_weights"]:
        weights = stored(weights, "mean")
    if not batched:
        y, weights = y.squeeze(1), weights.squeeze(0)
    return y, weights if of["need_weights"] else None


def _projections(
    query: Tensor, key: Tensor, value: Tensor, of: dict[str, Any], linear: Linear
) -> tuple[Tensor, ...]:
    bias = of["in_proj_bias"]
    if of["use_separate_proj_weight"]:
        weights = tuple(of[f"{x}_proj_weight"] for x in "qkv")
    else:
        weights = of["in_proj_weight"].chunk(3)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    inputs = zip("qkv", (query, key, value), weights, biases, strict=True)
    parts = ((f"in_proj_{name}", x, w, b) for name, x, w, b in inputs)
    return tuple(stored(linear(x, w, b, part), part) for part, x, w, b in parts)


def _mask(of: dict[str, Any], batch: int, heads: int, like: Tensor) -> Tensor | None:
    """Both masks of the arguments as one to be added; where a given mask is True, the key is left
    out."""
    mask = None
    if of["attn_mask"] is not None:
        mask = _additive(of["attn_mask"], like)
        if mask.dim() == 3:
            mask = mask.reshape(batch, heads, *mask.shape[1:])
    padding = of["key_padding_mask"]
    if padding is not None:
        padding = _additive(padding, like).reshape(batch, 1, 1, -1)
        mask = padding if mask is None else mask + padding
    return mask


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    return hiding(mask, like.dtype) if mask.dtype == torch.bool else mask
