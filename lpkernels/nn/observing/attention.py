"""Attention as its products, so that each of them can be looked at."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lpkernels.functional.storing import masked, stored

# (left, right, name) -> left @ right;  (x, w, b, name) -> x @ w.T + b.
Matmul = Callable[[Tensor, Tensor, str], Tensor]
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
    empty_rows: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The output of torch's scaled_dot_product_attention, and the weights.

    The weights of a query whose keys are all masked are ``empty_rows``.
    """
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(repeats, dim=-3) for x in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = matmul(query, key.mT, "scores") * factor
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = masked(scores, attn_mask)
    else:
        scores = stored(scores, "scores")
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    if attn_mask is not None:
        # The softmax of such a query would be 0 / 0, and its gradient NaN: it must not be taken.
        empty = (scores == -math.inf).all(-1, keepdim=True)
        weights = scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, empty_rows)
    else:
        weights = torch.softmax(scores, dim=-1)
    weights = stored(weights, "softmax")
    dropped = weights
    if dropout_p > 0:
        dropped = stored(torch.dropout(weights, dropout_p, True), "dropout")
    return stored(matmul(dropped, value, "values"), "values"), weights


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
    y, weights = dot_product_attention(
        q, k, v, _mask(of, batch, heads, q), of["dropout_p"] if of["training"] else 0.0,
        matmul=matmul, empty_rows=math.nan if of["need_weights"] else 0.0,
    )  # fmt: skip
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
    weight, bias = of["in_proj_weight"], of["in_proj_bias"]
    if not of["use_separate_proj_weight"] and query is key and key is value:
        return stored(linear(query, weight, bias, "in_proj"), "in_proj").chunk(3, dim=-1)
    if of["use_separate_proj_weight"]:
        weights = tuple(of[f"{x}_proj_weight"] for x in "qkv")
    else:
        weights = weight.chunk(3)
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
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(
        mask, -math.inf
    )
