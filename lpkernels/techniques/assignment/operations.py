"""The effects of torch's functions on values and gradients, by the names of the functions in an
observation, and calls that are several operations.

A name stands for the function, its version in place and its Python operators, as `canonical` writes
them. Matrix products stand apart: `lpkernels.nn.observing.PRODUCTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import _reduction
from torch.nn import functional as F

from lpkernels.functional.attention import dot_product
from lpkernels.functional.recording import StoreHook, store, store_hook
from lpkernels.nn.observing.parts import multi_head_attention
from lpkernels.nn.torch_functions import arguments_of

_ACTIVATIONS = """
    relu relu6 hardtanh leaky_relu prelu rrelu elu selu celu gelu silu mish softplus softsign
    hardswish hardsigmoid logsigmoid tanhshrink softshrink hardshrink threshold sigmoid tanh glu
    erf sin cos exp expm1 log log1p log2 sqrt rsqrt reciprocal square abs neg sign pow clamp
    clamp_min clamp_max clip
""".split()
_ARITHMETIC = """
    add sub rsub mul multiply div divide true_divide rdiv lerp addcmul addcdiv maximum minimum
    where masked_fill
""".split()
_JOINS = "cat concat concatenate stack hstack vstack dstack setitem copy index_put".split()
_POOLS = """
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d lp_pool1d lp_pool2d interpolate upsample pixel_shuffle pixel_unshuffle
    channel_shuffle
""".split()
_MOVES = """
    pad flip roll repeat tile repeat_interleave gather index_select take getitem index_copy
    unfold fold tril triu masked_select
""".split()
_DROPOUTS = """
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout
""".split()
_REDUCTIONS = "mean sum max min amax amin std var norm vector_norm logsumexp cumsum prod".split()
_NORMS = """
    batch_norm layer_norm group_norm instance_norm rms_norm local_response_norm normalize
""".split()
_SPLITS = "chunk split tensor_split".split()
_SOFTMAXES = "softmax log_softmax softmin".split()
_LOSSES = """
    nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy
    binary_cross_entropy_with_logits kl_div poisson_nll_loss gaussian_nll_loss margin_ranking_loss
    hinge_embedding_loss soft_margin_loss cosine_similarity cosine_embedding_loss
    triplet_margin_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
""".split()

KNOWN = frozenset(_SPLITS).union(
    _ACTIVATIONS, _ARITHMETIC, _JOINS, _POOLS, _MOVES, _DROPOUTS, _REDUCTIONS, _NORMS, _SOFTMAXES,
    _LOSSES, ["embedding"],
)  # fmt: skip
"""All operations but matrix products."""

SAME_VALUES = frozenset(
    """
    contiguous clone to type type_as float double half bfloat16 reshape flatten ravel cpu cuda
    expand expand_as broadcast_to positive requires_grad as_subclass identity
    """.split()
)
"""Operations whose result holds the values of their argument, and is no tensor of its own."""

PASSES_GRADIENTS = frozenset("add sub rsub neg sum mean".split())
"""Operations that give operands of one element the gradient of their result, as it is or with its
sign changed, unless a factor (`alpha`) is among their arguments."""

BY_THEIR_RESULT = frozenset(
    """
    relu relu6 elu selu celu leaky_relu threshold sigmoid tanh exp expm1 sqrt rsqrt reciprocal
    softmax log_softmax softmin
    """.split()
)
"""Operations whose gradient is a function of their result. (The gradient of a maximum compares the
result with the operands, and a result rounded to another format would equal none of them.)"""


_PYTHONS = {
    "truediv": "div", "itruediv": "div", "idiv": "div", "rtruediv": "rdiv", "iadd": "add",
    "radd": "add", "isub": "sub", "imul": "mul", "rmul": "mul", "ipow": "pow", "rpow": "pow",
    "absolute": "abs", "negative": "neg",
}  # fmt: skip


def canonical(name: str) -> str:
    """One name for an operation, its version in place and its Python operators."""
    name = name.rstrip("_") or name
    return _PYTHONS.get(name, name)


class Part(NamedTuple):
    """One operation inside a call.

    reads: names of the call's arguments and of parts before it.
    """

    name: str
    numel: int
    reads: tuple[str, ...]
    is_gemm: bool = False


#: The operations inside a call, in order, and the names of the operations that make its results.
Parts = tuple[list[Part], list[str]]


def _cross_entropy(arguments: Mapping[str, Any], result: Tensor) -> Parts:
    # torch tells no name of an argument that is given by its place.
    logits = "input" if "input" in arguments else "0"
    target = "target" if "target" in arguments else "1"
    logs = Part("log_softmax", arguments[logits].numel(), (logits,))
    return [logs, Part("nll_loss", result.numel(), ("log_softmax", target))], ["nll_loss"]


def _attention(arguments: Mapping[str, Any], result: Tensor) -> Parts:
    scores = math.prod(result.shape[:-1]) * arguments["key"].shape[-2]
    left, dropped = ("query", "key", "attn_mask"), arguments.get("dropout_p", 0.0) > 0
    return _core(scores, result.numel(), left, "value", dropped), ["values"]


def _core(scores: int, values: int, left: tuple[str, ...], right: str, dropped: bool) -> list[Part]:
    """Scores, softmax, perhaps dropout, values; scale and masks belong to the scores."""
    parts = [Part("scores", scores, left, True), Part("softmax", scores, ("scores",))]
    if dropped:
        parts.append(Part("dropout", scores, ("softmax",)))
    return [*parts, Part("values", values, (parts[-1].name, right), True)]


def _multi_head(of: Mapping[str, Any], result: tuple[Tensor, Tensor | None]) -> Parts | None:
    operands = ("bias_k", "bias_v")
    if of.get("add_zero_attn") or any(of.get(x) is not None for x in operands):
        return None
    separate = bool(of.get("use_separate_proj_weight"))
    parts = []
    for name in ("query", "key", "value"):
        weight = f"{name[0]}_proj_weight" if separate else "in_proj_weight"
        width = of["q_proj_weight"].shape[0] if separate else of[weight].shape[0] // 3
        numel = width * math.prod(of[name].shape[:-1])
        parts.append(Part(f"in_proj_{name[0]}", numel, (name, weight, "in_proj_bias"), True))
    query, key = of["query"], of["key"]
    batch = query.shape[1] if query.dim() == 3 else 1
    scores = batch * of["num_heads"] * query.shape[0] * key.shape[0]
    values = math.prod(query.shape[:-1]) * of["out_proj_weight"].shape[1]
    left = ("in_proj_q", "in_proj_k", "attn_mask", "key_padding_mask")
    dropped = bool(of.get("training", True)) and of["dropout_p"] > 0
    core = _core(scores, values, left, "in_proj_v", dropped)
    y, weights = result
    out = Part("out_proj", y.numel(), ("values", "out_proj_weight", "out_proj_bias"), True)
    parts += [*core, out]
    if weights is None:
        return parts, ["out_proj"]
    return [*parts, Part("mean", weights.numel(), (core[-2].name,))], ["out_proj", "mean"]


#: By the name of a function: from the call's arguments by name and its result to the operations
#: inside; None where an option of the call has no parts here.
PARTS: dict[str, Callable[[Mapping[str, Any], Any], Parts | None]] = {
    "cross_entropy": _cross_entropy,
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head,
}


def in_parts(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    compute: Callable[..., Any],
    hook: StoreHook,
) -> Any:
    """The result of the call if `store` is applied to each result inside it.

    A function of torch is taken apart here; one under a recipe stores its results itself.
    """
    with store_hook(hook), torch._C.DisableTorchFunction():
        recipe = kwargs.get("recipe")
        if name == "cross_entropy":
            return store(_cross_entropy_of_logs(*args, **kwargs), "nll_loss")
        if recipe is not None and not recipe.is_torch:
            return compute(*args, **kwargs)
        of = {k: v for k, v in arguments_of(name, args, kwargs).items() if k != "recipe"}

        def matmul(left: Tensor, right: Tensor, part: str) -> Tensor:
            return torch.matmul(left, right)

        if name == "scaled_dot_product_attention":
            return dot_product(of, matmul)

        def linear(x: Tensor, w: Tensor, b: Tensor | None, part: str) -> Tensor:
            return F.linear(x, w, b)

        return multi_head_attention(of, linear=linear, matmul=matmul)


def _cross_entropy_of_logs(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """torch's cross_entropy, in which the logarithms of the softmax are stored."""
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    axis = 0 if input.dim() == 1 else 1
    logs = store(torch.log_softmax(input, axis), "log_softmax")
    classes = input.shape[axis]
    along = [-1 if i == axis else 1 for i in range(input.dim())]
    if target.is_floating_point():
        shares = target * (1 - label_smoothing) + label_smoothing / classes
        terms = -(logs * shares if weight is None else logs * shares * weight.view(along))
        return _reduced(terms.sum(axis), reduction, max(input.numel() // classes, 1))
    hard = F.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    if not label_smoothing:
        return hard
    weighted = logs if weight is None else logs * weight.view(along)
    counted = target != ignore_index
    terms = torch.where(counted, -weighted.sum(axis), 0.0)
    shares = counted if weight is None else torch.where(counted, weight[target.clamp(min=0)], 0.0)
    soft = _reduced(terms, reduction, shares.sum())
    return hard * (1 - label_smoothing) + soft * (label_smoothing / classes)


def _reduced(terms: Tensor, reduction: str, total: Tensor | int) -> Tensor:
    if reduction == "none":
        return terms
    return terms.sum() / total if reduction == "mean" else terms.sum()
