"""Scaled dot-product attention under a Recipe."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import TORCH, Ranks, Recipe
from lpkernels.functional import _checks, seeds
from lpkernels.functional.products import product
from lpkernels.functional.storing import masked, stored
from lpkernels.functional.torch_calls import own
from lpkernels.recipes import as_recipe

_NAME = "scaled_dot_product_attention"

# (left, right, "scores" or "values") -> left @ right.
Matmul = Callable[[Tensor, Tensor, str], Tensor]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` under a recipe.

        s = matmul(query, key^T) * scale + mask;   p = dropout(softmax(s));   y = matmul(p, value)

    Both products multiply two activations, as ``matmul(..., recipe=recipe)`` does: the recipe's
    `input` rounds query and p, `weight` rounds key and value, and `output` rounds both results.
    Scale, mask, softmax and dropout, and their gradients, are float32's. So a model that calls
    these functions one by one gets the same bits.

    Args:
        query: (..., L, E), key: (..., S, E), value: (..., S, E_v); dtypes as in ``linear``; leading
            dimensions broadcast.
        attn_mask: broadcasts to (..., L, S): bool, True where a key takes part, or floating, which
            is added. A query without any key gets zeros, as in torch. Without a mask a query gets
            NaN if all of its scores are -inf, which takes infinite operands; torch gives zeros.
        dropout_p: always in force, as in torch; its draws are torch's.
        is_causal: query i sees the keys 0..i; not together with attn_mask.
        scale: None is 1 / sqrt(E).
        enable_gqa: query has, in dimension -3, a multiple of the heads of key and value; several
            queries share a head. The gradients of key and value are then one sum over the queries
            that share them, then l. A format with an axis sees query as (..., heads of key, queries
            that share one, L, E), and key and value with a dimension of size 1 there.
        recipe, generator, backend: as in ``linear``. One seed is drawn for both products. torch's
            own function is
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html.

    Returns: (..., L, E_v), float32.
    Raises: as ``linear``; ValueError: attn_mask and is_causal.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        torchs = F.scaled_dot_product_attention
        masks = (attn_mask, dropout_p, is_causal)
        return own(torchs, query, key, value, *masks, scale=scale, enable_gqa=enable_gqa)
    _check(query, key, value, attn_mask, is_causal, enable_gqa)
    length, keys = query.shape[-2], key.shape[-2]
    mask = additive_mask(_NAME, "attn_mask", attn_mask, False)
    if is_causal:
        hidden = torch.ones(length, keys, dtype=torch.bool, device=query.device).triu(1)
        mask = hiding(hidden, torch.float32)
    # With enable_gqa the queries that share a head have a dimension of their own.
    q, k, v = (x.dim() + enable_gqa for x in (query, key, value))
    ranks = (Ranks(_NAME, q, k, None, max(q, k)), Ranks(_NAME, max(q, k), v, None, max(q, k, v)))
    seed = seeds.seed_of_call(_NAME, recipe, generator, backend, *ranks)
    matmul = matmul_under(recipe, seed, backend)
    if not enable_gqa:
        return attended(query, key, value, mask, dropout_p, scale, matmul)[0]
    heads = key.shape[-3]
    query = query.unflatten(-3, (heads, -1))
    key, value = key.unsqueeze(-3), value.unsqueeze(-3)
    if mask is not None and mask.dim() > 2:
        shared = mask.shape[-3] == 1
        mask = mask.unsqueeze(-3) if shared else mask.unflatten(-3, (heads, -1))
    return attended(query, key, value, mask, dropout_p, scale, matmul)[0].flatten(-4, -3)


def matmul_under(recipe: Recipe, seed: Tensor | None, backend: str) -> Matmul:
    """The products of attention under a recipe. They have the seeds 0 and 1 of this call's seed."""
    of_part = {"scores": seed, "values": seeds.seed_of_product(seed, 1)}

    def matmul(left: Tensor, right: Tensor, part: str) -> Tensor:
        return product(_NAME, left, right, None, 1.0, recipe, of_part[part], backend)

    return matmul


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    scale: float | None,
    matmul: Matmul,
    empty_rows: float | None = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attention of checked operands and its weights; ``matmul`` makes its two products. It is the
    one rule, which ``lpkernels.nn.observing`` shares.

    Scores, softmax, dropout and values are stored. A bool mask is True where a key takes part; any
    other is added. The weights of a query without any key are ``empty_rows``. None says that the
    mask leaves every query a key; backward then keeps no tensor for such rows.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = matmul(query, key.mT, "scores") * scale
    scores = stored(scores, "scores") if mask is None else masked(scores, mask)
    if mask is None or empty_rows is None:
        weights = scores.softmax(-1)
    else:
        # Where no key is left the softmax is 0 / 0, and its gradient NaN: it must not be taken.
        empty = (scores == -math.inf).all(-1, keepdim=True)
        weights = scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, empty_rows)
    weights = stored(weights, "softmax")
    if dropout_p > 0:
        weights = stored(F.dropout(weights, dropout_p), "dropout")
    return stored(matmul(weights, value, "values"), "values"), weights


def additive_mask(function: str, name: str, mask: Tensor | None, hides: bool) -> Tensor | None:
    """A mask as a float32 addend of the scores; a bool one hides where it is ``hides``."""
    if mask is None:
        return None
    _checks.tensor(function, name, mask)
    if mask.dtype == torch.bool:
        return hiding(mask if hides else ~mask, torch.float32)
    if not mask.dtype.is_floating_point:
        raise TypeError(
            f"{function}: {name} is {mask.dtype}; expected bool or a floating dtype; "
            f"{name}.bool() takes what is not 0 as True"
        )
    return mask.float()


def hiding(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """The addend of scores that hides them where ``hidden`` is True."""
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return zeros.masked_fill(hidden, -math.inf)


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
) -> None:
    _checks.operands(_NAME, query=query, key=key, value=value)
    q, k, v = (tuple(x.shape) for x in (query, key, value))
    if min(len(q), len(k), len(v)) < 2 or q[-1] != k[-1] or k[-2] != v[-2]:
        raise ValueError(
            f"{_NAME}: query has shape {q}, key {k} and value {v}; expected (..., L, E), "
            "(..., S, E) and (..., S, E_v)"
        )
    heads_differ = min(len(q), len(k), len(v)) < 3 or k[-3] != v[-3] or not k[-3] or q[-3] % k[-3]
    if enable_gqa and heads_differ:
        raise ValueError(
            f"{_NAME}: query has shape {q}, key {k} and value {v}; with enable_gqa key and value "
            "need the same number of heads in dimension -3, and query a multiple of it"
        )
    if is_causal and mask is not None:
        raise ValueError(
            f"{_NAME}: is_causal=True is a mask of its own; leave attn_mask away or combine them "
            "in attn_mask"
        )
    _check_broadcast(q, k, v, mask, enable_gqa)


def _check_broadcast(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], mask: Tensor | None, gqa: bool
) -> None:
    if gqa:
        k, v = (*k[:-3], q[-3], *k[-2:]), (*v[:-3], q[-3], *v[-2:])
    try:
        batch = torch.broadcast_shapes(q[:-2], k[:-2], v[:-2])
    except RuntimeError:
        raise ValueError(
            f"{_NAME}: the leading dimensions {q[:-2]} of query, {k[:-2]} of key and {v[:-2]} of "
            "value do not broadcast; each must be equal or 1"
        ) from None
    if mask is not None:
        _checks.broadcasts(_NAME, "attn_mask", mask, (*batch, q[-2], k[-2]))
