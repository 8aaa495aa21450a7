"""Functions of torch that are several products, computed product by product, each one reported."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.functional.cells import CELLS
from lpkernels.nn.observing.attention import dot_product_attention, multi_head_attention
from lpkernels.nn.observing.recurrent import recurrent, stepped
from lpkernels.nn.observing.reporting import Reporter


@dataclass
class _Steps:
    """The steps of a recurrent product."""

    weight: Tensor
    bias: Tensor | None
    inputs: list[Tensor] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)


class _Products:
    """The products of one call of `function`."""

    def __init__(self, reporter: Reporter, name: str, function: Callable[..., Any]) -> None:
        self._reporter = reporter
        self.name, self.function = name, function
        self._steps: dict[str, _Steps] = {}

    def linear(self, x: Tensor, w: Tensor, b: Tensor | None, part: str) -> Tensor:
        arguments = {"input": x, "weight": w, "bias": b}
        return self._report("linear", arguments, lambda: F.linear(x, w, b), part)

    def matmul(self, left: Tensor, right: Tensor, part: str) -> Tensor:
        arguments = {"input": left, "other": right}
        return self._report("matmul", arguments, lambda: torch.matmul(left, right), part)

    def step_linear(self, x: Tensor, w: Tensor, b: Tensor | None, part: str) -> Tensor:
        """One step of a series whose weight gradient is one sum over all steps."""
        steps = self._steps.setdefault(part, _Steps(w, b))
        steps.inputs.append(x)
        steps.results.append(F.linear(x, w, b))
        return steps.results[-1]

    def report_steps(self) -> None:
        """Reports the steps so far, each series as one product."""
        for part, steps in self._steps.items():
            inputs = torch.cat(steps.inputs)
            arguments = {"input": inputs, "weight": steps.weight, "bias": steps.bias}
            self._reporter.report_steps(self.function, arguments, steps.results, part=part)
        self._steps = {}

    def refuse(self, what: str, instead: str) -> NotImplementedError:
        return NotImplementedError(
            f"{self.name} with {what}, called by {self._reporter.runs.innermost}, is not traced "
            f"product by product; {instead}"
        )

    def _report(
        self, operation: str, arguments: dict[str, Any], compute: Callable[[], Any], part: str
    ) -> Any:
        return self._reporter.report(operation, self.function, arguments, compute, part=part)


def in_parts(
    reporter: Reporter, name: str, function: Callable[..., Any], arguments: dict[str, Any]
) -> Any:
    """The result of a function of `PARTS` for these arguments.

    Raises: NotImplementedError: an option that keeps the function whole; the error names it.
    """
    return PARTS[name](_Products(reporter, name, function), arguments)


def _sdpa(products: _Products, of: dict[str, Any]) -> Tensor:
    return dot_product_attention(**of, matmul=products.matmul)[0]


def _multi_head(products: _Products, of: dict[str, Any]) -> Any:
    bound = inspect.signature(F.multi_head_attention_forward).bind(**of)
    bound.apply_defaults()
    of = bound.arguments
    added = [k for k in ("bias_k", "bias_v", "static_k", "static_v") if of[k] is not None]
    added += ["add_zero_attn"] if of["add_zero_attn"] else []
    if added:
        raise products.refuse(", ".join(added), "take a model without")
    return multi_head_attention(of, linear=products.linear, matmul=products.matmul)


def _recurrent(products: _Products, of: dict[str, Any]) -> Any:
    kind, weights, biases = products.name, of["params"], of["has_biases"]
    state: tuple[Tensor, ...] = tuple(of["hx"]) if kind == "lstm" else (of["hx"],)
    packed = "batch_sizes" in of
    projected = kind == "lstm" and state[0].shape[-1] != state[1].shape[-1]
    if packed or projected or len(weights) % (4 if biases else 2):
        what = "a packed sequence" if packed else "proj_size"
        raise products.refuse(what, "take padded sequences and no projection")
    first = of["batch_first"]
    y, last = recurrent(
        CELLS[kind], of["input"].transpose(0, 1) if first else of["input"], state, weights,
        biases=biases, layers=of["num_layers"], dropout=of["dropout"], train=of["train"],
        both=of["bidirectional"], linear=products.linear, step_linear=products.step_linear,
    )  # fmt: skip
    products.report_steps()
    return (y.transpose(0, 1) if first else y, *last)


def _cell(products: _Products, of: dict[str, Any]) -> Any:
    """One step of a recurrent layer on its own; each call is a product of its own."""
    kind = products.name.removesuffix("_cell")
    state = tuple(of["hx"]) if kind == "lstm" else (of["hx"],)
    zx = products.linear(of["input"], of["w_ih"], of.get("b_ih"), "ih")
    zh = products.linear(state[0], of["w_hh"], of.get("b_hh"), "hh")
    found = stepped(CELLS[kind], zx, zh, state)
    return found if kind == "lstm" else found[0]


PARTS: dict[str, Callable[[_Products, dict[str, Any]], Any]] = {
    "scaled_dot_product_attention": _sdpa,
    "multi_head_attention_forward": _multi_head,
    **dict.fromkeys(CELLS, _recurrent),
    **dict.fromkeys([f"{kind}_cell" for kind in CELLS], _cell),
}
