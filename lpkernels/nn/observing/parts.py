"""Functions of torch that are several products, computed product by product, each one reported.

A recurrent gate's two products are kept apart: the input's is one product over all steps; the
hidden state's is one per step whose weight gradient is one sum over all steps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.functional.attention import Linear, Matmul, check_multi_head, dot_product, multi_head
from lpkernels.functional.cells import CELLS, Cell
from lpkernels.nn.observing.reporting import Reporter


def multi_head_attention(
    of: dict[str, Any], *, linear: Linear, matmul: Matmul
) -> tuple[Tensor, Tensor | None]:
    """torch's multi_head_attention_forward for the arguments `of`, by name."""
    bound = inspect.signature(F.multi_head_attention_forward).bind(**of)
    bound.apply_defaults()
    check_multi_head(bound.arguments)
    return multi_head(bound.arguments, linear, matmul)


def _stepped(cell: Cell, zx: Tensor, zh: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The new state, from the two products of the gates."""
    h, c, _ = cell.forward(zx, zh, state[0], state[1] if len(state) > 1 else None)
    return (h,) if c is None else (h, c)


class _Products:
    """The products of one call of `function`."""

    def __init__(self, reporter: Reporter, name: str, function: Callable[..., Any]) -> None:
        self.reporter, self.name, self.function = reporter, name, function
        # The arguments and the results of each series of steps.
        self._steps: dict[str, tuple[dict[str, Any], list[Tensor]]] = {}

    def linear(self, x: Tensor, w: Tensor, b: Tensor | None, part: str) -> Tensor:
        of, compute = {"input": x, "weight": w, "bias": b}, partial(F.linear, x, w, b)
        y: Tensor = self.reporter.report("linear", self.function, of, compute, part=part)
        return y

    def matmul(self, left: Tensor, right: Tensor, part: str) -> Tensor:
        of, compute = {"input": left, "other": right}, partial(torch.matmul, left, right)
        y: Tensor = self.reporter.report("matmul", self.function, of, compute, part=part)
        return y

    def step_linear(self, x: Tensor, w: Tensor, b: Tensor | None, part: str) -> Tensor:
        """One step of a series whose weight gradient is one sum over all steps."""
        new: dict[str, Any] = {"input": [], "weight": w, "bias": b}
        arguments, results = self._steps.setdefault(part, (new, []))
        arguments["input"].append(x)
        results.append(F.linear(x, w, b))
        return results[-1]

    def report_steps(self) -> None:
        """Reports the steps so far, each series as one product."""
        for part, (arguments, results) in self._steps.items():
            arguments["input"] = torch.cat(arguments["input"])
            self.reporter.report_steps(self.function, arguments, results, part=part)
        self._steps = {}


def in_parts(
    reporter: Reporter, name: str, function: Callable[..., Any], arguments: dict[str, Any]
) -> Any:
    """The result of a function of `PARTS` for these arguments.

    Raises: NotImplementedError: an option that keeps the function whole; the error names it.
    """
    return PARTS[name](_Products(reporter, name, function), arguments)


def _recurrent(products: _Products, of: dict[str, Any]) -> tuple[Tensor, ...]:
    """All layers and directions, over an input (T, N, I)."""
    kind, weights, biases = products.name, of["params"], of["has_biases"]
    cell = CELLS[kind]
    states: tuple[Tensor, ...] = tuple(of["hx"]) if kind == "lstm" else (of["hx"],)
    packed = "batch_sizes" in of
    projected = kind == "lstm" and states[0].shape[-1] != states[1].shape[-1]
    per = 4 if biases else 2
    if packed or projected or len(weights) % per:
        what = "a packed sequence" if packed else "proj_size"
        raise NotImplementedError(
            f"{kind} with {what}, called by {products.reporter.runs.innermost}, is not traced "
            "product by product; take padded sequences and no projection"
        )
    x = of["input"].transpose(0, 1) if of["batch_first"] else of["input"]
    last_states: list[tuple[Tensor, ...]] = []
    for layer in range(of["num_layers"]):
        outputs = []
        for reverse in (False, True) if of["bidirectional"] else (False,):
            index = len(last_states)
            w_ih, w_hh, *b = weights[index * per : (index + 1) * per]
            b_ih, b_hh = b if biases else (None, None)
            name = f"l{layer}{'_reverse' if reverse else ''}"
            zx = products.linear(x, w_ih, b_ih, f"ih_{name}")
            state = tuple(s[index] for s in states)
            steps: list[Tensor] = []
            for t in reversed(range(len(x))) if reverse else range(len(x)):
                zh = products.step_linear(state[0], w_hh, b_hh, f"hh_{name}")
                state = _stepped(cell, zx[t], zh, state)
                steps.append(state[0])
            last_states.append(state)
            outputs.append(torch.stack(steps[::-1] if reverse else steps))
        x = torch.cat(outputs, dim=-1)
        if of["dropout"] and layer + 1 < of["num_layers"]:
            x = torch.dropout(x, of["dropout"], of["train"])
    products.report_steps()
    y = x.transpose(0, 1) if of["batch_first"] else x
    return (y, *(torch.stack(parts) for parts in zip(*last_states, strict=True)))


def _cell(products: _Products, of: dict[str, Any]) -> Any:
    """One step of a recurrent layer on its own; each call is a product of its own."""
    kind = products.name.removesuffix("_cell")
    state = tuple(of["hx"]) if kind == "lstm" else (of["hx"],)
    zx = products.linear(of["input"], of["w_ih"], of.get("b_ih"), "ih")
    zh = products.linear(state[0], of["w_hh"], of.get("b_hh"), "hh")
    state = _stepped(CELLS[kind], zx, zh, state)
    return state if kind == "lstm" else state[0]


PARTS: dict[str, Callable[[_Products, dict[str, Any]], Any]] = {
    "scaled_dot_product_attention": lambda products, of: dot_product(of, products.matmul),
    "multi_head_attention_forward": lambda products, of: multi_head_attention(
        of, linear=products.linear, matmul=products.matmul
    ),
    **dict.fromkeys(CELLS, _recurrent),
    **dict.fromkeys([f"{kind}_cell" for kind in CELLS], _cell),
}
