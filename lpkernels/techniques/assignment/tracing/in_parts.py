"""Calls that are several operations, computed one after the other, each result stored."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction
from torch.nn import functional as F

from lpkernels.functional.storing import stored, storing
from lpkernels.nn.observing.attention import dot_product_attention, multi_head_attention
from lpkernels.nn.observing.functions import arguments_of

Store = Callable[[Tensor, str], Tensor]


def in_parts(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    compute: Callable[..., Any],
    store: Store,
) -> Any:
    """The result of the call if `store` is applied to each result inside it.

    A function of torch is taken apart here; one under a recipe stores its results itself.
    """
    with storing(store), torch._C.DisableTorchFunction():
        recipe = kwargs.get("recipe")
        if name == "cross_entropy":
            return stored(cross_entropy(_logs, *args, **kwargs), "nll_loss")
        if recipe is not None and not recipe.is_torch:
            return compute(*args, **kwargs)
        of = {k: v for k, v in arguments_of(name, args, kwargs).items() if k != "recipe"}
        if name == "scaled_dot_product_attention":
            return dot_product_attention(**of, matmul=_matmul)[0]
        bound = inspect.signature(F.multi_head_attention_forward).bind(**of)
        bound.apply_defaults()
        return multi_head_attention(bound.arguments, linear=_linear, matmul=_matmul)


def _matmul(left: Tensor, right: Tensor, part: str) -> Tensor:
    return torch.matmul(left, right)


def _linear(x: Tensor, w: Tensor, b: Tensor | None, part: str) -> Tensor:
    return F.linear(x, w, b)


def _logs(x: Tensor, axis: int) -> Tensor:
    return stored(torch.log_softmax(x, axis), "log_softmax")


def cross_entropy(
    logs_of: Callable[[Tensor, int], Tensor],
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """torch's, of the logarithms that logs_of(input, axis) gives."""
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    axis = 0 if input.dim() == 1 else 1
    logs = logs_of(input, axis)
    if target.is_floating_point():
        classes = input.shape[axis]
        shares = target * (1 - label_smoothing) + label_smoothing / classes
        terms = -(logs * shares if weight is None else logs * shares * _along(weight, logs, axis))
        loss = _reduced(terms.sum(axis), reduction, max(input.numel() // classes, 1))
    elif label_smoothing:
        loss = _smoothed(logs, target, weight, ignore_index, reduction, label_smoothing, axis)
    else:
        loss = F.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    return loss


def _smoothed(
    logs: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
    axis: int,
) -> Tensor:
    hard = F.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    terms = -(logs if weight is None else logs * _along(weight, logs, axis)).sum(axis)
    counted = target != ignore_index
    terms = torch.where(counted, terms, 0.0)
    total = counted.sum() if weight is None else torch.where(
        counted, weight[target.clamp(min=0)], 0.0
    ).sum()  # fmt: skip
    soft = _reduced(terms, reduction, total)
    return hard * (1 - smoothing) + soft * (smoothing / logs.shape[axis])


def _along(weight: Tensor, like: Tensor, axis: int) -> Tensor:
    return weight.view([-1 if i == axis else 1 for i in range(like.dim())])


def _reduced(terms: Tensor, reduction: str, total: Tensor | int) -> Tensor:
    if reduction == "none":
        return terms
    return terms.sum() / total if reduction == "mean" else terms.sum()
