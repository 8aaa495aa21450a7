"""Functions that are several operations in one call, as these operations.

Each takes who called, what is read and the result, and gives the steps, or None where an option of
the call has no parts here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from lpkernels.nn.observing import Run
from lpkernels.techniques.assignment.tracing.flow import Maker, Step


@dataclass(frozen=True)
class Reads:
    """What a call reads: its arguments and, by the names of the tensors among them, the makers."""

    arguments: Mapping[str, Any]
    makers: Mapping[str, Maker]

    def name(self, name: str, position: int) -> str:
        """The argument's key: its name, or its place where torch tells no name."""
        return name if name in self.arguments else str(position)

    def some(self, *names: str) -> list[Maker]:
        """The makers of these arguments, as far as they have one."""
        return [self.makers[name] for name in names if name in self.makers]


class Steps(NamedTuple):
    """all: in order. results: the makers of the tensors that the call returns."""

    all: list[Step]
    results: list[Step]


def give(step: Step, makers: Iterable[Maker]) -> Step:
    """Notes that the step reads what these made."""
    for maker in makers:
        if isinstance(maker, Step):
            if maker not in step.inputs:
                step.inputs.append(maker)
        elif maker not in step.params:
            step.params.append(maker)
    return step


def _step(run: Run, part: str, numel: int, reads: Iterable[Maker], *, gemm: bool = False) -> Step:
    return give(Step(run, "matmul" if gemm else part, part, gemm, True, numel), reads)


def _cross_entropy(run: Run, reads: Reads, result: Tensor) -> Steps:
    logits, target = reads.name("input", 0), reads.name("target", 1)
    numel = reads.arguments[logits].numel()
    logs = _step(run, "log_softmax", numel, reads.some(logits))
    loss = _step(run, "nll_loss", result.numel(), [logs, *reads.some(target)])
    return Steps([logs, loss], [loss])


def _attention(run: Run, reads: Reads, result: Tensor) -> Steps:
    numel = math.prod(result.shape[:-1]) * reads.arguments["key"].shape[-2]
    dropped = reads.arguments.get("dropout_p", 0.0) > 0
    steps = _core(
        run, numel, result.numel(), reads.some("query", "key", "attn_mask"), reads.some("value"),
        dropped=dropped,
    )  # fmt: skip
    return Steps(steps, steps[-1:])


def _core(
    run: Run,
    scores: int,
    values: int,
    left: Iterable[Maker],
    right: Iterable[Maker],
    *,
    dropped: bool,
) -> list[Step]:
    """Scores, softmax, perhaps dropout, values; scale and masks belong to the scores."""
    steps = [_step(run, "scores", scores, left, gemm=True)]
    steps.append(_step(run, "softmax", scores, steps[-1:]))
    if dropped:
        steps.append(_step(run, "dropout", scores, steps[-1:]))
    return [*steps, _step(run, "values", values, [steps[-1], *right], gemm=True)]


def _multi_head(run: Run, reads: Reads, result: tuple[Tensor, Tensor | None]) -> Steps | None:
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
    left, right = [*projections[:2], *masks], projections[2:] or projections
    dropped = bool(of.get("training", True)) and of["dropout_p"] > 0
    core = _core(run, scores, values, left, right, dropped=dropped)
    y, weights = result
    reads_out = [core[-1], *reads.some("out_proj_weight", "out_proj_bias")]
    out = _step(run, "out_proj", y.numel(), reads_out, gemm=True)
    steps = [*projections, *core, out]
    if weights is None:
        return Steps(steps, [out])
    told = _step(run, "mean", weights.numel(), core[-2:-1])
    return Steps([*steps, told], [out, told])


def _in_projections(run: Run, reads: Reads) -> list[Step]:
    """One product of a packed weight, or one each of query, key and value."""
    of = reads.arguments
    inputs = {name: of[name] for name in ("query", "key", "value")}
    if of.get("use_separate_proj_weight"):
        width = of["q_proj_weight"].shape[0]
        weights = {name: f"{name[0]}_proj_weight" for name in inputs}
    else:
        width = of["in_proj_weight"].shape[0] // 3
        weights = dict.fromkeys(inputs, "in_proj_weight")
        if of["query"] is of["key"] is of["value"]:
            numel = 3 * width * math.prod(of["query"].shape[:-1])
            found = reads.some("query", "in_proj_weight", "in_proj_bias")
            return [_step(run, "in_proj", numel, found, gemm=True)]
    return [
        _step(
            run, f"in_proj_{name[0]}", width * math.prod(x.shape[:-1]),
            reads.some(name, weights[name], "in_proj_bias"), gemm=True,
        )
        for name, x in inputs.items()
    ]  # fmt: skip


PARTS: dict[str, Callable[[Run, Reads, Any], Steps | None]] = {
    "cross_entropy": _cross_entropy,
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head,
}
