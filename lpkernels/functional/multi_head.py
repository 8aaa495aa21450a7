"""Multi-head attention, with its projections, under a Recipe."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import TORCH, Ranks, Recipe, check_axes
from lpkernels.functional import _checks, seeds
from lpkernels.functional.attention import additive_mask, attended, matmul_under
from lpkernels.functional.layer import emulated_layer, widened
from lpkernels.functional.linear import LinearGeometry
from lpkernels.functional.storing import stored
from lpkernels.functional.torch_calls import own
from lpkernels.recipes import as_recipe

_NAME = "multi_head_attention_forward"
# The three projections come first. Attention is two products with one seed.
_ATTENTION, _OUT = 3, 4


class _Call(NamedTuple):
    """The arguments that every product of a call takes."""

    recipe: Recipe
    seed: Tensor | None
    backend: str

    def linear(self, index: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seed = seeds.seed_of_product(self.seed, index)
        b = None if bias is None else widened(bias)
        operands = (widened(x), widened(weight), b)
        return emulated_layer(*operands, self.recipe, LinearGeometry(), seed, self.backend)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    recipe: Recipe | str = TORCH,
    attention_recipe: Recipe | str | None = None,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """``torch.nn.functional.multi_head_attention_forward`` under a recipe.

    The projections of query, key and value are three ``linear``, each with its rows of a packed
    weight, also where query, key and value are one tensor: docs/contract.md, "Gradients".
    Attention is ``scaled_dot_product_attention`` on (N * heads, L, E / heads). Between them
    everything is float32's. The output does not depend on need_weights, except that with it a query
    without any key gets NaN, as in torch.

    Args:
        query: (L, N, E), key: (S, N, E_k), value: (S, N, E_v), or without N; dtypes as in
            ``linear``, as are those of all weights and biases.
        embed_dim_to_check: E.  num_heads: a divisor of E.
        in_proj_weight: (3 E, E), the rows of query, key and value; None with
            use_separate_proj_weight: q_proj_weight (E, E), k_proj_weight (E, E_k) and v_proj_weight
            (E, E_v) are in its place.
        in_proj_bias: (3 E,) or None.
        bias_k, bias_v: (1, 1, E) or None: one more key and value.
        add_zero_attn: whether a key and a value of zeros are added.
        dropout_p: the share of the attention's weights that are dropped where `training`.
        out_proj_weight, out_proj_bias: (E, E), and (E,) or None.
        key_padding_mask: (N, S): bool, True where a key takes no part, or floating, which is added.
        attn_mask: (L, S) or (N * heads, L, S), of the same two kinds.
        need_weights, average_attn_weights: whether weights are returned, and their mean over heads.
        static_k, static_v: (N * heads, S, E / heads) in place of the projected keys or values.
        is_causal: a hint that attn_mask, which must be given, is the causal one. The arguments
            up to here are as in torch, whose layer is
            https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html.
        recipe, generator, backend: as in ``linear``. One seed is drawn for all products.
        attention_recipe: the recipe of both products of the attention; None is `recipe`.

    Returns: the output (L, N, E), float32, and, with need_weights, the weights (N, L, S), or (N,
        heads, L, S) unless average_attn_weights; without N if query had none.
    Raises: as ``linear``; ValueError: is_causal without a mask.
    """
    recipe = as_recipe(recipe)
    inner = recipe if attention_recipe is None else as_recipe(attention_recipe)
    if recipe.is_torch and inner.is_torch:
        masks = (key_padding_mask, need_weights, attn_mask)
        projections = (use_separate_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight)
        bias = (in_proj_weight, in_proj_bias, bias_k, bias_v, add_zero_attn)
        inputs = (query, key, value, embed_dim_to_check, num_heads)
        out = (dropout_p, out_proj_weight, out_proj_bias, training)
        rest = (*projections, static_k, static_v, average_attn_weights, is_causal)
        return own(F.multi_head_attention_forward, *inputs, *bias, *out, *masks, *rest)
    _checks.operands(_NAME, query=query, key=key, value=value, out_proj_weight=out_proj_weight)
    _check_sizes(query, key, value, embed_dim_to_check, num_heads)
    if is_causal and attn_mask is None:
        raise ValueError(
            f"{_NAME}: is_causal is a hint that attn_mask is the causal mask, and there is none; "
            "give attn_mask as well"
        )
    _checks.call(_NAME, backend, generator)
    for each, its_ranks in zip((recipe, inner), ranks(in_proj_bias, out_proj_bias), strict=True):
        if each.axes:
            check_axes(each, its_ranks)
    draws = recipe.is_stochastic or inner.is_stochastic
    call = _Call(recipe, seeds.seed_for(draws, generator), backend)
    weights = (q_proj_weight, k_proj_weight, v_proj_weight)
    if not use_separate_proj_weight:
        weights = (in_proj_weight, None, None)
    batched = query.dim() == 3
    q, k, v = _projected(call, apart(query, key, value), weights, in_proj_bias)
    length, batch = q.shape[:2]
    k, v = _with_rows(k, bias_k, batch), _with_rows(v, bias_v, batch)
    q, k, v = (_heads(x, num_heads) for x in (q, k, v))
    k = k if static_k is None else widened(static_k)
    v = v if static_v is None else widened(static_v)
    if add_zero_attn:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    sizes = (batch, num_heads, length, key.shape[0])
    mask = _mask(attn_mask, key_padding_mask, sizes, k.shape[1], batched)
    p = dropout_p if training else 0.0
    matmul = matmul_under(inner, seeds.seed_of_product(call.seed, _ATTENTION), backend)
    empty = math.nan if need_weights else 0.0
    y, shares = attended(q, k, v, mask, p, None, matmul, empty)
    y = y.transpose(0, 1).reshape(length, batch, v.shape[2] * num_heads)
    y = stored(call.linear(_OUT, y, out_proj_weight, out_proj_bias), "out_proj")
    y = y if batched else y.squeeze(1)
    if not need_weights:
        return y, None
    shares = shares.unflatten(0, (batch, num_heads))
    shares = stored(shares.mean(1) if average_attn_weights else shares, "mean")
    return y, shares if batched else shares.squeeze(0)


def ranks(*biases: Tensor | None) -> tuple[Ranks, Ranks]:
    """The ranks of the tensors of the projections and of the products of two activations."""
    bias = None if all(b is None for b in biases) else 1
    return Ranks(_NAME, 3, 2, bias, 3), Ranks(_NAME, 3, 3, None, 3)


def _check_sizes(query: Tensor, key: Tensor, value: Tensor, embed_dim: int, heads: int) -> None:
    q, k, v = (tuple(x.shape) for x in (query, key, value))
    if len(q) not in (2, 3) or len(k) != len(q) or k[:-1] != v[:-1] or q[1:-1] != k[1:-1]:
        raise ValueError(
            f"{_NAME}: query has shape {q}, key {k} and value {v}; expected (L, N, E), (S, N, E_k) "
            "and (S, N, E_v), or all without N"
        )
    if q[-1] != embed_dim or embed_dim % heads:
        raise ValueError(
            f"{_NAME}: query has E={q[-1]}; expected {embed_dim}, a multiple of the {heads} heads"
        )


def apart(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three as three tensors: one that is given again is a view of itself.

    So autograd adds their gradients in the order in which it adds those of views that a caller
    makes, and the float32 sums are the same.
    """
    own_key = key.view_as(key) if key is query else key
    own_value = value.view_as(value) if value is query or value is key else value
    return query, own_key, own_value


def _projected(
    call: _Call,
    inputs: tuple[Tensor, Tensor, Tensor],
    weights: tuple[Tensor | None, Tensor | None, Tensor | None],
    bias: Tensor | None,
) -> list[Tensor]:
    """query, key and value, each (length, N, E); weights[1] is None where weights[0] is all."""
    embed = inputs[0].shape[-1]
    if bias is not None and bias.shape != (3 * embed,):
        raise ValueError(f"{_NAME}: in_proj_bias has shape {tuple(bias.shape)}; expected (3 * E,)")
    biases = (None, None, None) if bias is None else bias.split(embed)
    projections = zip(inputs, _weights(inputs, weights), biases, strict=True)
    results: list[Tensor] = []
    for i, (x, w, b) in enumerate(projections):
        y = call.linear(i, x if x.dim() == 3 else x.unsqueeze(1), w, b)
        results.append(stored(y, f"in_proj_{'qkv'[i]}"))
    return results


def _weights(
    inputs: tuple[Tensor, Tensor, Tensor],
    weights: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> list[Tensor]:
    """The weight of each projection."""
    packed, embed = weights[1] is None, inputs[0].shape[-1]
    for x, w in zip(inputs, weights[:1] * 3 if packed else weights, strict=True):
        expected = (3 * embed if packed else embed, x.shape[-1])
        if w is None or w.shape != expected:
            raise ValueError(
                f"{_NAME}: the weight of a projection is {None if w is None else tuple(w.shape)}; "
                f"expected {expected} for an input of shape {tuple(x.shape)}"
            )
    chosen = weights[0].split(embed) if packed and weights[0] is not None else weights
    return [w for w in chosen if w is not None]


def _with_rows(x: Tensor, row: Tensor | None, batch: int) -> Tensor:
    """x (S, N, E) and bias_k or bias_v (1, 1, E) as one more key."""
    return x if row is None else torch.cat([x, widened(row).expand(1, batch, -1)])


def _heads(x: Tensor, heads: int) -> Tensor:
    """(S, N, E) as (N * heads, S, E / heads)."""
    return x.reshape(x.shape[0], x.shape[1] * heads, x.shape[2] // heads).transpose(0, 1)


def _mask(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    sizes: tuple[int, int, int, int],
    keys: int,
    batched: bool,
) -> Tensor | None:
    """Both masks as one that is added to the scores (N * heads, L, keys); sizes: (N, heads, L, S).
    All queries see the keys beyond S, which bias_k and add_zero_attn bring."""
    batch, heads, length, given = sizes
    shown = additive_mask(_NAME, "attn_mask", attn_mask, True)
    if shown is not None and attn_mask is not None:
        shown = shown.unsqueeze(0) if shown.dim() == 2 else shown
        if shown.shape not in ((1, length, given), (batch * heads, length, given)):
            raise ValueError(
                f"{_NAME}: attn_mask has shape {tuple(attn_mask.shape)}; expected (L, S) or "
                f"(N * heads, L, S) with L={length}, S={given}, N * heads={batch * heads}"
            )
        shown = F.pad(shown, (0, keys - given))
    padding = additive_mask(_NAME, "key_padding_mask", key_padding_mask, True)
    if padding is None or key_padding_mask is None:
        return shown
    padding = padding if batched else padding.unsqueeze(0)
    if padding.shape != (batch, given):
        raise ValueError(
            f"{_NAME}: key_padding_mask has shape {tuple(key_padding_mask.shape)}; expected (N, S),"
            f" without N if query has none, with N={batch}, S={given}"
        )
    padding = F.pad(padding, (0, keys - given)).repeat_interleave(heads, 0).unsqueeze(1)
    return padding if shown is None else shown + padding
