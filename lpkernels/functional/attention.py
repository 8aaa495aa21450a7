"""Scaled dot-product attention, and multi-head attention with its projections, under a Recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels import ops
from lpkernels.arithmetic import TORCH, Ranks, Recipe, check_axes
from lpkernels.functional import _checks, seeds
from lpkernels.functional.dtypes import narrowed, result_dtype, widened, widened_all
from lpkernels.functional.layer import emulated_layer
from lpkernels.functional.linear import LinearGeometry
from lpkernels.functional.products import product
from lpkernels.functional.recording import masked, store
from lpkernels.functional.torch_calls import own
from lpkernels.ops import broadcast_shapes
from lpkernels.recipes import as_recipe

_SDPA = "scaled_dot_product_attention"
_MHA = "multi_head_attention_forward"

# (left, right, "scores" or "values") -> left @ right.
Matmul = Callable[[Tensor, Tensor, str], Tensor]
# (x, w, b, "in_proj_q", "in_proj_k", "in_proj_v" or "out_proj") -> x @ w.T + b.
Linear = Callable[[Tensor, Tensor, Tensor | None, str], Tensor]


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
    Scale, mask, softmax and dropout, and their gradients, are float32's. So a model in float32
    that calls these functions one by one gets the same bits.

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
        recipe, generator, backend: as in ``linear``. One seed is drawn for both products.

    Returns: (..., L, E_v), with the dtype of query, key and value as in ``linear``.
    Raises: as ``linear``; ValueError: attn_mask and is_causal.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(
            F.scaled_dot_product_attention, query, key, value, attn_mask, dropout_p, is_causal,
            scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    _check(query, key, value, attn_mask, is_causal, enable_gqa)
    # With enable_gqa the queries that share a head have a dimension of their own.
    q, k, v = (x.dim() + enable_gqa for x in (query, key, value))
    ranks = (Ranks(_SDPA, q, k, None, max(q, k)), Ranks(_SDPA, max(q, k), v, None, max(q, k, v)))
    seed = seeds.seed_of_call(_SDPA, recipe, generator, backend, *ranks)
    mask = _causal(query, key) if is_causal else additive_mask(attn_mask, False)
    of: dict[str, Any] = {
        "query": query, "key": key, "value": value, "dropout_p": dropout_p, "scale": scale,
        "attn_mask": mask, "enable_gqa": enable_gqa,
    }  # fmt: skip
    y = dot_product(of, matmul_under(recipe, seed, backend))
    return narrowed(y, result_dtype(query, key, value))


def dot_product(of: Mapping[str, Any], matmul: Matmul) -> Tensor:
    """torch's scaled_dot_product_attention of checked arguments, which `of` has by their names;
    ``matmul`` makes its two products. ``lpkernels.nn.observing`` shares it."""
    query, key, value, mask = of["query"], of["key"], of["value"], of.get("attn_mask")
    empty_rows = None if mask is None else 0.0
    mask = _causal(query, key) == 0 if of.get("is_causal") else mask
    shares_heads = of.get("enable_gqa", False)
    if shares_heads:
        heads = key.shape[-3]
        query = query.unflatten(-3, (heads, -1))
        key, value = key.unsqueeze(-3), value.unsqueeze(-3)
        if mask is not None and mask.dim() > 2:
            is_one = mask.shape[-3] == 1
            mask = mask.unsqueeze(-3) if is_one else mask.unflatten(-3, (heads, -1))
    dropout_p, scale = of.get("dropout_p", 0.0), of.get("scale")
    y, _ = attended(query, key, value, mask, dropout_p, scale, matmul, empty_rows)
    return y.flatten(-4, -3) if shares_heads else y


def _causal(query: Tensor, key: Tensor) -> Tensor:
    """The addend of scores that leaves each query the keys up to its own place."""
    sizes = (query.shape[-2], key.shape[-2])
    hidden = torch.full(sizes, -math.inf, dtype=torch.float32, device=query.device)
    return hidden.triu(1)


def matmul_under(recipe: Recipe, seed: Tensor | None, backend: str) -> Matmul:
    """The products of attention under a recipe. They have the seeds 0 and 1 of this call's seed."""
    of_part = {"scores": seed, "values": seeds.seed_of_product(seed, 1)}

    def matmul(left: Tensor, right: Tensor, part: str) -> Tensor:
        seed, left, right = of_part[part], widened(left), widened(right)
        return product(_SDPA, left, right, None, 1.0, recipe, seed, backend)

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
    """Attention of checked operands and its weights; ``matmul`` makes its two products.

    A bool mask is True where a key takes part; any other is added. The weights of a query without
    any key are ``empty_rows``. None says that the mask leaves every query a key; backward then
    keeps no tensor for such rows.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = matmul(query, key.mT, "scores") * scale
    scores = store(scores, "scores") if mask is None else masked(scores, mask)
    if mask is None or empty_rows is None:
        weights = scores.softmax(-1)
    else:
        weights = _softmax(scores, empty_rows)
    weights = store(weights, "softmax")
    if dropout_p > 0:
        weights = store(F.dropout(weights, dropout_p), "dropout")
    return store(matmul(weights, value, "values"), "values"), weights


def _softmax(scores: Tensor, empty_rows: float) -> Tensor:
    """The weights of masked scores; those of a query without any key are empty_rows."""
    if ops.is_direct(scores) and scores.is_cpu:
        weights = scores.softmax(-1)
        # The softmax of a query without any key is NaN. A GPU's sum would have to be waited for.
        if not math.isnan(weights.detach().sum().item()):
            return weights
    # The gradient of 0 / 0 is NaN too: it must not be taken.
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, empty_rows)


def additive_mask(
    mask: Tensor | None, hides: bool, dtype: torch.dtype = torch.float32
) -> Tensor | None:
    """A checked mask as an addend of the scores; a bool one hides where it is ``hides``."""
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(mask if hides else ~mask, -math.inf)


def _check_mask(function: str, name: str, mask: Tensor, query: Tensor) -> None:
    """A mask is a bool or floating tensor on the device of the query."""
    _checks.tensor(function, name, mask)
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise TypeError(
            f"{function}: {name} is {mask.dtype}; expected bool or a floating dtype; "
            f"{name}.bool() takes what is not 0 as True"
        )
    _checks.same_device(function, query=query, **{name: mask})


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
) -> None:
    _checks.operands(_SDPA, query=query, key=key, value=value)
    q, k, v = (tuple(x.shape) for x in (query, key, value))
    if min(len(q), len(k), len(v)) < 2 or q[-1] != k[-1] or k[-2] != v[-2]:
        raise ValueError(
            f"{_SDPA}: query has shape {q}, key {k} and value {v}; expected (..., L, E), "
            "(..., S, E) and (..., S, E_v)"
        )
    heads_differ = min(len(q), len(k), len(v)) < 3 or k[-3] != v[-3] or not k[-3] or q[-3] % k[-3]
    if enable_gqa and heads_differ:
        raise ValueError(
            f"{_SDPA}: query has shape {q}, key {k} and value {v}; with enable_gqa key and value "
            "need the same number of heads in dimension -3, and query a multiple of it"
        )
    if is_causal and mask is not None:
        raise ValueError(
            f"{_SDPA}: is_causal=True is a mask of its own; leave attn_mask away or combine them "
            "in attn_mask"
        )
    if enable_gqa:
        k, v = (*k[:-3], q[-3], *k[-2:]), (*v[:-3], q[-3], *v[-2:])
    try:
        batch = broadcast_shapes(q[:-2], k[:-2], v[:-2])
    except ValueError:
        raise ValueError(
            f"{_SDPA}: the leading dimensions {q[:-2]} of query, {k[:-2]} of key and {v[:-2]} of "
            "value do not broadcast; each must be equal or 1"
        ) from None
    if mask is not None:
        _check_mask(_SDPA, "attn_mask", mask, query)
        _checks.broadcasts(_SDPA, "attn_mask", mask, (*batch, q[-2], k[-2]))


# The number of each part's seed; attention is two products with one seed.
_SEEDS = {"in_proj_q": 0, "in_proj_k": 1, "in_proj_v": 2, "attention": 3, "out_proj": 4}


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
        in_proj_weight, in_proj_bias: (3 E, E) and (3 E,), or None; the rows of query, key, value.
            With use_separate_proj_weight, q_proj_weight, k_proj_weight and v_proj_weight (E, E_v)
            are in the place of in_proj_weight.
        bias_k, bias_v, add_zero_attn, dropout_p, training, out_proj_weight, out_proj_bias: as in
            https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html, bias_k
            and bias_v (1, 1, E).
        key_padding_mask, attn_mask, need_weights, average_attn_weights: as there, the masks (N, S)
            and (L, S) or (N * heads, L, S).
        static_k, static_v: None; torch's layer has no way to give them.
        is_causal: a hint that attn_mask, which must be given, is the causal one.
        recipe, generator, backend: as in ``linear``. One seed is drawn for all products.
        attention_recipe: the recipe of both products of the attention; None is `recipe`.

    Returns: the output (L, N, E) and, with need_weights, the weights (N, L, S), or (N, heads, L, S)
        unless average_attn_weights; without N if query had none. Both have the dtype as in
        ``linear``, of all operands but masks.
    Raises: as ``linear``; ValueError: is_causal without a mask.
    """
    recipe = as_recipe(recipe)
    inner = recipe if attention_recipe is None else as_recipe(attention_recipe)
    of: dict[str, Any] = {
        "query": query, "key": key, "value": value, "embed_dim_to_check": embed_dim_to_check,
        "num_heads": num_heads, "in_proj_weight": in_proj_weight, "in_proj_bias": in_proj_bias,
        "bias_k": bias_k, "bias_v": bias_v, "add_zero_attn": add_zero_attn, "dropout_p": dropout_p,
        "out_proj_weight": out_proj_weight, "out_proj_bias": out_proj_bias, "training": training,
        "key_padding_mask": key_padding_mask, "need_weights": need_weights, "attn_mask": attn_mask,
        "use_separate_proj_weight": use_separate_proj_weight, "q_proj_weight": q_proj_weight,
        "k_proj_weight": k_proj_weight, "v_proj_weight": v_proj_weight, "static_k": static_k,
        "static_v": static_v, "average_attn_weights": average_attn_weights, "is_causal": is_causal,
    }  # fmt: skip
    if recipe.is_torch and inner.is_torch:
        return own(F.multi_head_attention_forward, **of)
    _checks.operands(_MHA, query=query, key=key, value=value, **_weights(of))
    check_multi_head(of)
    if is_causal and attn_mask is None:
        raise ValueError(
            f"{_MHA}: is_causal is a hint that attn_mask is the causal mask, and there is none; "
            "give attn_mask as well"
        )
    _checks.call(_MHA, backend, generator)
    for product_recipe, tensor_ranks in zip(
        (recipe, inner), ranks(in_proj_bias, out_proj_bias), strict=True
    ):
        if product_recipe.axes:
            check_axes(product_recipe, tensor_ranks)
    draws = recipe.is_stochastic or inner.is_stochastic
    seed = seeds.seed_for(draws, generator)

    def linear(x: Tensor, w: Tensor, b: Tensor | None, part: str) -> Tensor:
        own_seed = seeds.seed_of_product(seed, _SEEDS[part])
        return emulated_layer(*widened_all(x, w, b), recipe, LinearGeometry(), own_seed, backend)

    dtype = result_dtype(query, key, value, *_weights(of).values())
    of.update(zip(("query", "key", "value"), apart(query, key, value), strict=True))
    inner_seed = seeds.seed_of_product(seed, _SEEDS["attention"])
    y, shares = multi_head(of, linear, matmul_under(inner, inner_seed, backend))
    return narrowed(y, dtype), None if shares is None else narrowed(shares, dtype)


def multi_head(
    of: Mapping[str, Any], linear: Linear, matmul: Matmul
) -> tuple[Tensor, Tensor | None]:
    """torch's multi_head_attention_forward of checked arguments, which `of` has by their names;
    ``linear`` and ``matmul`` make its products. ``lpkernels.nn.observing`` shares it."""
    heads, need_weights, batched = of["num_heads"], of["need_weights"], of["query"].dim() == 3
    q, k, v = _projected(of, linear)
    length, batch = q.shape[:2]
    sizes = (heads, k.shape[0])
    if of["bias_k"] is not None:
        rows = (of[name].to(k.dtype).expand(1, batch, -1) for name in ("bias_k", "bias_v"))
        k, v = (torch.cat(pair) for pair in zip((k, v), rows, strict=True))
    # [S, N, E] -> [N * heads, S, E / heads]
    q, k, v = (
        x.reshape(len(x), batch * heads, x.shape[2] // heads).transpose(0, 1) for x in (q, k, v)
    )
    if of["add_zero_attn"]:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    mask = _mask(of["attn_mask"], of["key_padding_mask"], sizes, k, batched)
    p = of["dropout_p"] if of["training"] else 0.0
    y, shares = attended(q, k, v, mask, p, None, matmul, math.nan if need_weights else 0.0)
    y = y.transpose(0, 1).reshape(length, batch, v.shape[2] * heads)
    y = store(linear(y, of["out_proj_weight"], of["out_proj_bias"], "out_proj"), "out_proj")
    y = y if batched else y.squeeze(1)
    if not need_weights:
        return y, None
    shares = shares.unflatten(0, (batch, heads))
    shares = store(shares.mean(1) if of["average_attn_weights"] else shares, "mean")
    return y, shares if batched else shares.squeeze(0)


def ranks(*biases: Tensor | None) -> tuple[Ranks, Ranks]:
    """The ranks of the tensors of the projections and of the products of two activations."""
    bias = None if all(b is None for b in biases) else 1
    return Ranks(_MHA, 3, 2, bias, 3), Ranks(_MHA, 3, 3, None, 3)


def _weights(of: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights and biases of a call, as far as it has them."""
    separate = of["use_separate_proj_weight"]
    names = [f"{x}_proj_weight" for x in "qkv"] if separate else ["in_proj_weight"]
    names.append("out_proj_weight")
    missing = [name for name in names if of[name] is None]
    if missing:
        raise ValueError(
            f"{_MHA}: {missing[0]} is None; with use_separate_proj_weight={separate} expected "
            f"tensors for {', '.join(names)}"
        )
    names += ["in_proj_bias", "out_proj_bias", "bias_k", "bias_v"]
    return {name: of[name] for name in names if of[name] is not None}


def check_multi_head(of: Mapping[str, Any]) -> None:
    """The shapes of torch's multi_head_attention_forward, whose arguments `of` has by their names,
    fit one another, and the masks are masks."""
    embed, heads = of["embed_dim_to_check"], of["num_heads"]
    q, k, v = (tuple(of[name].shape) for name in ("query", "key", "value"))
    if len(q) not in (2, 3) or len(k) != len(q) or k[:-1] != v[:-1] or q[1:-1] != k[1:-1]:
        raise ValueError(
            f"{_MHA}: query has shape {q}, key {k} and value {v}; expected (L, N, E), (S, N, E_k) "
            "and (S, N, E_v), or all without N"
        )
    if q[-1] != embed or embed % heads:
        raise ValueError(
            f"{_MHA}: query has E={q[-1]}; expected {embed}, a multiple of the {heads} heads"
        )
    weights = _weights(of)
    if "in_proj_weight" in weights and not k[-1] == v[-1] == embed:
        raise ValueError(
            f"{_MHA}: key has shape {k} and value {v}; in_proj_weight takes keys and values with "
            f"E={embed}, use_separate_proj_weight=True also others"
        )
    if ("bias_k" in weights) != ("bias_v" in weights):
        raise ValueError(f"{_MHA}: got {', '.join(weights)}; expected bias_k and bias_v together")
    if of["static_k"] is not None or of["static_v"] is not None:
        raise NotImplementedError(
            f"{_MHA}: static_k and static_v are not emulated; leave them away, or exclude the "
            "module that makes this call from lp.convert"
        )
    expected = _shapes(q, k, v, weights["out_proj_weight"])
    for name, w in weights.items():
        shape, meaning = expected[name]
        # torch takes bias_k and bias_v without their leading dimensions too.
        shape = shape[-max(w.dim(), 1) :] if name.startswith("bias") else shape
        _checks.shape(_MHA, name, w, shape, meaning)
    batch, length, sources = q[1] if len(q) == 3 else 1, q[0], k[0]
    mask, padding = of["attn_mask"], of["key_padding_mask"]
    if mask is not None:
        _check_mask(_MHA, "attn_mask", mask, of["query"])
        scores = (length, sources)
        if mask.shape not in (scores, (1, *scores), (batch * heads, *scores)):
            raise ValueError(
                f"{_MHA}: attn_mask has shape {tuple(mask.shape)}; expected (L, S) or "
                f"(N * heads, L, S) with L={length}, S={sources}, N * heads={batch * heads}"
            )
    if padding is not None:
        _check_mask(_MHA, "key_padding_mask", padding, of["query"])
        if padding.shape != ((batch, sources) if len(q) == 3 else (sources,)):
            raise ValueError(
                f"{_MHA}: key_padding_mask has shape {tuple(padding.shape)}; expected (N, S), "
                f"without N if query has none, with N={batch}, S={sources}"
            )


def _shapes(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], out: Tensor
) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape of each weight by its name, and its letters; q, k, v: the shapes of the inputs, and
    out: out_proj_weight."""
    embed = q[-1]
    features = out.shape[0] if out.dim() == 2 else embed
    return {
        "in_proj_weight": ((3 * embed, embed), "(3 * E, E)"),
        "in_proj_bias": ((3 * embed,), "(3 * E,)"),
        "q_proj_weight": ((embed, embed), "(E, E)"),
        "k_proj_weight": ((embed, k[-1]), "(E, E_k)"),
        "v_proj_weight": ((embed, v[-1]), "(E, E_v)"),
        "bias_k": ((1, 1, embed), "(1, 1, E)"),
        "bias_v": ((1, 1, embed), "(1, 1, E)"),
        "out_proj_weight": ((features, embed), "(out_features, E)"),
        "out_proj_bias": ((features,), "(out_features,)"),
    }


def apart(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three as three tensors: one that is given again is a view of itself.

    So autograd adds their gradients in the order in which it adds those of views that a caller
    makes, and the float32 sums are the same.
    """
    own_key = key.view_as(key) if key is query else key
    own_value = value.view_as(value) if value is query or value is key else value
    return query, own_key, own_value


def _projected(of: Mapping[str, Any], linear: Linear) -> list[Tensor]:
    """query, key and value, each (length, N, E)."""
    embed, bias = of["query"].shape[-1], of["in_proj_bias"]
    biases = (None, None, None) if bias is None else bias.split(embed)
    if of["use_separate_proj_weight"]:
        weights = [of[f"{x}_proj_weight"] for x in "qkv"]
    else:
        # Autograd joins the gradients of one split, and would add those of three.
        weights = of["in_proj_weight"].split(embed)
    results: list[Tensor] = []
    for name, w, b in zip(("query", "key", "value"), weights, biases, strict=True):
        x, part = of[name], f"in_proj_{name[0]}"
        results.append(store(linear(x if x.dim() == 3 else x.unsqueeze(1), w, b, part), part))
    return results


def _mask(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    sizes: tuple[int, int],
    k: Tensor,
    batched: bool,
) -> Tensor | None:
    """Both masks as one that is added to the scores (N * heads, L, keys) of the keys k; sizes:
    (heads, S). All queries see the keys beyond S, which bias_k and add_zero_attn bring."""
    heads, sources = sizes
    further = (0, k.shape[1] - sources)
    mask = additive_mask(attn_mask, True, k.dtype)
    if mask is not None:
        mask = F.pad(mask.unsqueeze(0) if mask.dim() == 2 else mask, further)
    padding = additive_mask(key_padding_mask, True, k.dtype)
    if padding is None:
        return mask
    padding = padding if batched else padding.unsqueeze(0)
    padding = F.pad(padding, further).repeat_interleave(heads, 0).unsqueeze(1)
    return padding if mask is None else mask + padding
