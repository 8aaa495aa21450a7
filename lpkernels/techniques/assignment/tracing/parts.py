"""Calls that are several operations: the operations inside, and their computation one by one."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import _reduction
from torch.nn import functional as F

from lpkernels.functional.storing import stored, storing
from lpkernels.nn.observing import Run
from lpkernels.nn.observing.attention import dot_product_attention, multi_head_attention
from lpkernels.nn.observing.functions import arguments_of
from lpkernels.techniques.assignment.tracing.makers import Maker, TracedOp

Store = Callable[[Tensor, str], Tensor]


@dataclass(frozen=True)
class CallInputs:
    """The arguments of a call and, by the names of the tensors among them, the makers of their
    values."""

    arguments: Mapping[str, Any]
    makers: Mapping[str, Maker]

    def name(self, name: str, position: int) -> str:
        """The argument's key: its name, or its place where torch tells no name."""
        return name if name in self.arguments else str(position)

    def some(self, *names: str) -> list[Maker]:
        """The makers of these arguments, as far as they have one."""
        return [self.makers[name] for name in names if name in self.makers]


class TracedOps(NamedTuple):
    """all: in order. results: the makers of the tensors that the call returns."""

    all: list[TracedOp]
    results: list[TracedOp]


def give(step: TracedOp, makers: Iterable[Maker]) -> TracedOp:
    """Notes that the step reads what these made."""
    for maker in makers:
        if isinstance(maker, TracedOp):
            if maker not in step.inputs:
                step.inputs.append(maker)
        elif maker not in step.params:
            step.params.append(maker)
    return step


def _step(
    run: Run, part: str, numel: int, reads: Iterable[Maker], *, gemm: bool = False
) -> TracedOp:
    return give(TracedOp(run, "matmul" if gemm else part, part, gemm, True, numel), reads)


def _cross_entropy(run: Run, reads: CallInputs, result: Tensor) -> TracedOps:
    logits, target = reads.name("input", 0), reads.name("target", 1)
    numel = reads.arguments[logits].numel()
    logs = _step(run, "log_softmax", numel, reads.some(logits))
    loss = _step(run, "nll_loss", result.numel(), [logs, *reads.some(target)])
    return TracedOps([logs, loss], [loss])


def _attention(run: Run, reads: CallInputs, result: Tensor) -> TracedOps:
    numel = math.prod(result.shape[:-1]) * reads.arguments["key"].shape[-2]
    dropped = reads.arguments.get("dropout_p", 0.0) > 0
    steps = _core(
        run, numel, result.numel(), reads.some("query", "key", "attn_mask"), reads.some("value"),
        dropped=dropped,
    )  # fmt: skip
    return TracedOps(steps, steps[-1:])


def _core(
    run: Run,
    scores: int,
    values: int,
    left: Iterable[Maker],
    right: Iterable[Maker],
    *,
    dropped: bool,
) -> list[TracedOp]:
    """Scores, softmax, perhaps dropout, values; scale and masks belong to the scores."""
    steps = [_step(run, "scores", scores, left, gemm=True)]
    steps.append(_step(run, "softmax", scores, steps[-1:]))
    if dropped:
        steps.append(_step(run, "dropout", scores, steps[-1:]))
    return [*steps, _step(run, "values", values, [steps[-1], *right], gemm=True)]


def _multi_head(
    run: Run, reads: CallInputs, result: tuple[Tensor, Tensor | None]
) -> TracedOps | None:
    of = reads.arguments
    more = [of.get(name) for name in ("bias_k", "bias_v", "static_k", "static_v")]
    if of.get("add_zero_attn") or any(x is not None for x in more):
        return None
    projections = _in_projections(run, reads)
    query, key = of["query"], of["key"]
    batch = query.shape[1] if query.dim() == 3 else 1
    scores = batch * of["num_heads"] * query.shape[0] * key.shape[0]
    values = math.prod(query.shape[:-1]) * of["out_proj_weight"].shape[1]
    masks = reads.some("attn_mask", "key_padding_mask")
    left, right = [*projections[:2], *masks], projections[2:]
    dropped = bool(of.get("training", True)) and of["dropout_p"] > 0
    core = _core(run, scores, values, left, right, dropped=dropped)
    y, weights = result
    reads_out = [core[-1], *reads.some("out_proj_weight", "out_proj_bias")]
    out = _step(run, "out_proj", y.numel(), reads_out, gemm=True)
    steps = [*projections, *core, out]
    if weights is None:
        return TracedOps(steps, [out])
    told = _step(run, "mean", weights.numel(), core[-2:-1])
    return TracedOps([*steps, told], [out, told])


def _in_projections(run: Run, reads: CallInputs) -> list[TracedOp]:
    """One product each of query, key and value."""
    of = reads.arguments
    inputs = {name: of[name] for name in ("query", "key", "value")}
    if of.get("use_separate_proj_weight"):
        width = of["q_proj_weight"].shape[0]
        weights = {name: f"{name[0]}_proj_weight" for name in inputs}
    else:
        width = of["in_proj_weight"].shape[0] // 3
        weights = dict.fromkeys(inputs, "in_proj_weight")
    return [
        _step(
            run, f"in_proj_{name[0]}", width * math.prod(x.shape[:-1]),
            reads.some(name, weights[name], "in_proj_bias"), gemm=True,
        )
        for name, x in inputs.items()
    ]  # fmt: skip


#: By the name of a function: from the caller, the call's inputs and its result to the operations
#: inside; None where an option of the call has no parts here.
PARTS: dict[str, Callable[[Run, CallInputs, Any], TracedOps | None]] = {
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
    store: Store,
) -> Any:
    """The result of the call if `store` is applied to each result inside it.

    A function of torch is taken apart here; one under a recipe stores its results itself.
    """
    with storing(store), torch._C.DisableTorchFunction():
        recipe = kwargs.get("recipe")
        if name == "cross_entropy":

            def logs(x: Tensor, axis: int) -> Tensor:
                return stored(torch.log_softmax(x, axis), "log_softmax")

            return stored(cross_entropy(logs, *args, **kwargs), "nll_loss")
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
    """torch's cross_entropy, from the logarithms that logs_of(input, axis) gives."""
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
