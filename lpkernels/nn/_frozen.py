"""Graphs inside a model that torch has traced already: no recipe reaches their products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import Module

from lpkernels.nn._classes import TRACED
from lpkernels.nn._product_sizes import SIZES
from lpkernels.nn.calls import PRODUCTS
from lpkernels.nn.selecting import Layer, Selection, named

_OURS = "lpkernels::"
_ATEN = "aten::"
# The names of functions, of methods, and of the operators that stand for them in exported graphs.
_NAMES = PRODUCTS | {name.removeprefix(_ATEN) for name in SIZES} | {"_convolution"}


def refuse_frozen(function: str, chosen: Selection, model: Module, *, functions: bool) -> None:
    """Refuses a selected graph that holds products; a graph of torch.fx only if functions count.

    Raises: ValueError: there is one; it is named.
    """
    for names, module, kind, products in _graphs(model):
        counts = products and (functions or isinstance(module, torch.jit.ScriptModule))
        if counts and chosen.recipe_of(Layer(names, module, "")) is not None:
            raise ValueError(
                f"{function}: {names[0]!r} is {kind} that calls {', '.join(sorted(products))}; no "
                f"recipe reaches these products, and nothing was changed. {function} the model "
                f"before it is traced, scripted or exported, or leave it out: exclude={names[0]!r}"
            )


def refuse_fixed_recipes(function: str, chosen: Selection, model: Module) -> None:
    """Refuses a selected graph that was traced from a converted model.

    Raises: ValueError: there is one; it is named.
    """
    for names, module, kind, products in _graphs(model):
        fixed = any(name.startswith(_OURS) for name in products)
        if fixed and chosen.recipe_of(Layer(names, module, "")) is not None:
            raise ValueError(
                f"{function}: {names[0]!r} is {kind} of a converted model, with its recipe in it; "
                f"nothing was changed. Call {function} on the model and trace or export it again"
            )


def _graphs(model: Module) -> Iterator[tuple[list[str], Module, str, set[str]]]:
    """Names, module, kind and products of every graph; a script is listed once, with all it
    holds."""
    if not any(isinstance(module, TRACED) for module in model.modules()):
        return
    scripted: set[int] = set()
    for names, module in named(model):
        if isinstance(module, torch.jit.ScriptModule):
            if id(module) not in scripted:
                yield names, module, "a TorchScript graph", _scripted_products(module)
            scripted.update(map(id, module.modules()))
        elif isinstance(module, torch.fx.GraphModule):
            calls = {_called(node) for node in module.graph.nodes}
            products = {name for name in calls if name in _NAMES or name.startswith(_OURS)}
            yield names, module, "a graph of torch.fx", products


def _called(node: Any) -> str:
    """The bare name of the function that a node calls, with our namespace; "" if it calls none."""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.removeprefix(_ATEN)
    return getattr(node.target, "__name__", "")


def _scripted_products(module: Any) -> set[str]:
    if not module._c._has_method("forward"):
        return set()
    graph = module.inlined_graph
    kinds = [name if name.startswith(_OURS) else _ATEN + name for name in _NAMES]
    return {kind.removeprefix(_ATEN) for kind in kinds if graph.findAllNodes(kind)}
