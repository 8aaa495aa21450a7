"""What `convert` and `set_recipe` refuse before any change, and the warning of `convert`."""

from __future__ import annotations

import warnings
from collections import Counter
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.nn import Module, MultiheadAttention

from lpkernels.arithmetic import Recipe, check_axes
from lpkernels.formats.elsewhere import nearest
from lpkernels.nn._product_sizes import SIZES
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.policies import NO_ARITHMETIC
from lpkernels.nn.selecting import (
    FUNCTIONS,
    Layer,
    Pattern,
    Position,
    Selection,
    attention_names,
    matches,
    modules_of,
    nothing_matched,
    show,
    show_layers,
)
from lpkernels.nn.torch_functions import EMULATIONS

# Patterns that are read off the model; a function may be made for some of its layers alone.
_SAYS_WHICH = (str, type, Position)
_OURS, _ATEN = "lpkernels::", "aten::"
# The operators of functions and methods that multiply, and the names of all these in graphs.
_OPERATORS = {_ATEN + function.__name__ for function in EMULATIONS} | {*SIZES, "aten::_convolution"}
_PRODUCT_NAMES = {name.removeprefix(_ATEN) for name in _OPERATORS}


class NotEmulatedWarning(UserWarning):
    """A conversion after which products of a model stay torch's own, though nobody left them out:
    a policy has no arithmetic for layers of this class, a forward cannot be followed, or the model
    has no layer that multiplies."""


def chosen_layers(wanted: Selection, model: Module, functions: bool) -> list[tuple[Layer, Recipe]]:
    """The layers that are selected, each with its recipe, whether it can be emulated or not. They
    are layers of `lpkernels.nn` alone for set_recipe.

    functions: whether products that are called as functions count.

    Raises: ValueError: nothing can be emulated, or a part of the selection means nothing.
    """
    converts = wanted.function == "convert"
    modules = modules_of(model, functions and converts)
    _refuse_unknown_names(wanted, modules)
    _refuse_graphs(wanted, modules, functions)
    candidates = [layer for layer in modules if layer.why_not is not None]
    if not converts:
        candidates = [layer for layer in candidates if isinstance(layer.module, Emulated)]
    able = [layer for layer in candidates if not layer.why_not and wanted.means(layer)]
    if converts:
        _refuse_unsupported(wanted, modules, able)
    _refuse_dead_rules(wanted, able)
    chosen = [(x, recipe) for x in candidates if (recipe := wanted.recipe_of(x)) is not None]
    if all(layer.why_not for layer, _ in chosen):
        raise ValueError(nothing_matched(wanted, candidates))
    for layer, recipe in chosen:
        emulating = layer.kind.emulating
        if recipe.axes and not layer.why_not and emulating is not None:
            owner = f"{wanted.function}: {layer.names[0]!r}"
            check_axes(recipe, *emulating._ranks(layer.module), owner=owner)
    return chosen


def _refuse_unknown_names(chosen: Selection, modules: list[Layer]) -> None:
    """Refuses a name in include, in exclude or as a key of the mapping that fits no module of the
    model, whether converted or not. Classes and functions may fit none."""
    names = [name for layer in modules for name in layer.names]
    heads = [layer for layer in modules if isinstance(layer.module, MultiheadAttention)]
    keys = [*names, *(name for layer in heads for name in attention_names(layer.names))]
    asked = [("include=", pattern, names) for pattern in chosen.include or []]
    asked += [("exclude=", pattern, names) for pattern in chosen.exclude]
    asked += [("the key ", pattern, keys) for pattern, _ in chosen.rules]
    for what, pattern, known in asked:
        if not isinstance(pattern, str) or _fits(pattern, known):
            continue
        inside = f"*.{pattern}"
        candidates = [inside] if _fits(inside, names) else names
        near = nearest(pattern, candidates, "model.named_modules() lists all", shown=repr)
        advice = f"expected one of {near}"
        if any(type(layer.module).__name__ == pattern for layer in modules):
            advice = f"a class is given without quotes, as torch.nn.{pattern}"
        raise ValueError(
            f"{chosen.function}: {what}{pattern!r} fits the name of no module; {advice}. A glob is "
            "compared with the full name. Nothing was changed"
        )


def _fits(pattern: str, names: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _refuse_unsupported(chosen: Selection, modules: list[Layer], able: list[Layer]) -> None:
    """Refuses a pattern of include, or a key of the user's mapping, that matches modules but none
    that can be emulated. A function of (name, module) is not asked about such modules. Layers that
    cannot be emulated are no obstacle to a key if they are excluded or are to be torch's own."""
    patterns: list[tuple[Pattern, Recipe | None]] = [(p, None) for p in chosen.include or []]
    patterns += chosen.rules if chosen.is_mapping else []
    for pattern, recipe in patterns:
        if not isinstance(pattern, _SAYS_WHICH) or any(matches(pattern, x) for x in able):
            continue
        blocked = [layer for layer in modules if matches(pattern, layer)]
        if recipe is not None:
            blocked = [
                layer
                for layer in blocked
                if layer.why_not is None or not (recipe.is_torch or chosen.excludes(layer))
            ]
        if blocked:
            asked = f"{'include=' if recipe is None else 'the key '}{show([pattern])}"
            raise ValueError(
                f"{chosen.function}: no layer matched {asked}: lpkernels cannot emulate "
                f"{show_layers(blocked)}. Nothing was converted. 'name.*' are the layers in a "
                "container; norms, Softmax and GELU are meant only where a pattern is their class"
            )


def _refuse_dead_rules(chosen: Selection, able: list[Layer]) -> None:
    """Refuses a name as a key of the mapping behind a wider key with another recipe, and FIRST and
    LAST behind "*"."""
    matched = [
        {i for i, x in enumerate(able) if isinstance(p, _SAYS_WHICH) and matches(p, x)}
        for p, _ in chosen.rules
    ]
    for i, (pattern, recipe) in enumerate(chosen.rules):
        if not (isinstance(pattern, str | Position) and matched[i]):
            continue
        for j, (wider, wider_recipe) in enumerate(chosen.rules[:i]):
            is_lost = matched[i] < matched[j]
            if isinstance(pattern, Position):
                # Another pattern that takes the name may be meant as its exception.
                is_lost = wider == "*"
            if is_lost and wider_recipe != recipe:
                lost = show_layers([able[k] for k in sorted(matched[i])])
                raise ValueError(
                    f"{chosen.function}: the key {show([pattern])} never applies, since the first "
                    f"match wins and {show([wider])} before it takes {lost}; put the narrower key "
                    "first"
                )


def _refuse_graphs(chosen: Selection, modules: list[Layer], functions: bool) -> None:
    """Refuses a selected graph that torch has traced already and whose arithmetic is fixed: for
    convert one that holds products (a graph of torch.fx only if functions count), for set_recipe
    one that was traced from a converted model."""
    function = chosen.function
    scripted: set[int] = set()
    for layer in modules:
        module, name = layer.module, layer.names[0]
        if isinstance(module, torch.jit.ScriptModule) and id(module) not in scripted:
            # The graph of a script has the products of all scripts in it.
            scripted.update(map(id, module.modules()))
            kind, products = "a TorchScript graph", _scripted_products(module)
        elif isinstance(module, torch.fx.GraphModule) and functions:
            calls = {_called(node) for node in module.graph.nodes}
            kind, products = "a graph of torch.fx", calls & _PRODUCT_NAMES
            products |= {call for call in calls if call.startswith(_OURS)}
        else:
            continue
        if function == "set_recipe":
            products = {product for product in products if product.startswith(_OURS)}
        if products and chosen.recipe_of(layer) is not None:
            raise ValueError(
                f"{function}: {name!r} is {kind} that calls {', '.join(sorted(products))}; no "
                f"recipe reaches these products, and nothing was changed. {function} the model "
                f"before it is traced, scripted or exported, or leave out {name!r}"
            )


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
    return {name.removeprefix(_ATEN) for name in _OPERATORS if graph.findAllNodes(name)}


def warn_of_torchs_own(
    wanted: Selection, chosen: list[tuple[Layer, Recipe]], *, whole: bool
) -> None:
    """Warns once of the layers in the selection that stay torch's own.

    A layer that the user excluded, or that a policy keeps by its place in the model (the head, the
    gates), stays on purpose; so does a layer that a mapping of the user's own leaves out.

    whole: whether a recipe or a policy was given, without include and exclude.
    """
    parts = []
    lacking = (type(layer.module) for layer, recipe in chosen if recipe is NO_ARITHMETIC)
    classes = Counter(cls.__name__ for cls in lacking)
    if classes:
        listed = ", ".join(f"{count} {name}" for name, count in classes.items())
        why = "because the policy has no arithmetic for their class"
        parts.append(f"{listed} stay torch's own, {why}")
    asks = any(not recipe.is_torch for _, recipe in wanted.rules)
    by_name = any(isinstance(pattern, str) and pattern != "*" for pattern, _ in wanted.rules)
    if whole and asks and not by_name and not any(_multiplies(*pair) for pair in chosen):
        parts.append("no product of this model is emulated")
    blocked = [layer for layer, _ in chosen if layer.why_not]
    if blocked:
        listed = "; ".join(f"{layer.names[0]!r}: {layer.why_not}" for layer in blocked)
        parts.append(f"left {len(blocked)} selected layer(s) as they are: {listed}")
    if parts:
        warnings.warn(
            f"convert: {'; '.join(parts)}. exclude= silences this, and "
            "lpkernels.nn.summary(model, batch) shows the emulated share",
            NotEmulatedWarning,
            stacklevel=3,
        )


def _multiplies(layer: Layer, recipe: Recipe) -> bool:
    """Whether products of the layer become emulated."""
    if layer.why_not or recipe.is_torch:
        return False
    return layer.kind.multiplies or FUNCTIONS in layer.positions
