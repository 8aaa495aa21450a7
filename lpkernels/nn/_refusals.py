"""What `convert` and `set_recipe` refuse before any change, and the warning of `convert`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.nn import Module, MultiheadAttention

from lpkernels.arithmetic import Recipe, check_axes
from lpkernels.formats.elsewhere import nearest
from lpkernels.nn import _classes
from lpkernels.nn._product_sizes import SIZES
from lpkernels.nn.policies import NO_ARITHMETIC
from lpkernels.nn.selecting import (
    FUNCTIONS,
    Layer,
    Pattern,
    Position,
    Selection,
    attention_names,
    matches,
    named,
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


def chosen_layers(
    wanted: Selection, model: Module, candidates: list[Layer], functions: bool = True
) -> list[tuple[Layer, Recipe]]:
    """The candidates that are selected, each with its recipe, whether it can be emulated or not.

    functions: whether products that are called as functions count.

    Raises: ValueError: nothing can be emulated, or a part of the selection means nothing.
    """
    _refuse_unknown_names(wanted, model)
    _refuse_graphs(wanted, model, functions)
    able = [layer for layer in candidates if not layer.why_not and wanted.means(layer)]
    if wanted.function == "convert":
        _refuse_unsupported(wanted, model, candidates, able)
    _refuse_dead_rules(wanted, able)
    chosen = [(x, recipe) for x in candidates if (recipe := wanted.recipe_of(x)) is not None]
    if all(layer.why_not for layer, _ in chosen):
        raise ValueError(nothing_matched(wanted, candidates))
    for layer, recipe in chosen:
        if recipe.axes and not layer.why_not:
            owner = f"{wanted.function}: {layer.names[0]!r}"
            check_axes(recipe, *_classes.ranks(layer.module), owner=owner)
    return chosen


def _refuse_unknown_names(chosen: Selection, model: Module) -> None:
    """Refuses a name in include, in exclude or as a key of the mapping that fits no module of the
    model, whether converted or not. Classes and functions may fit none."""
    names = [name for all_names, _ in named(model) for name in all_names]
    heads = [all_names for all_names, x in named(model) if isinstance(x, MultiheadAttention)]
    keys = [*names, *(name for all_names in heads for name in attention_names(all_names))]
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
        if any(type(x).__name__ == pattern for _, x in named(model)):
            advice = f"a class is given without quotes, as torch.nn.{pattern}"
        raise ValueError(
            f"{chosen.function}: {what}{pattern!r} fits the name of no module; {advice}. A glob is "
            "compared with the full name. Nothing was changed"
        )


def _fits(pattern: str, names: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _refuse_unsupported(
    chosen: Selection, model: Module, candidates: list[Layer], able: list[Layer]
) -> None:
    """Refuses a pattern of include, or a key of the user's mapping, that matches modules but none
    that can be emulated. A function of (name, module) is not asked about such modules. Layers that
    cannot be emulated are no obstacle to a key if they are excluded or are to be torch's own."""
    patterns: list[tuple[Pattern, Recipe | None]] = [(p, None) for p in chosen.include or []]
    patterns += chosen.rules if chosen.is_mapping else []
    by_module = {layer.module: layer for layer in candidates}
    modules = [by_module.get(m) or Layer(names, m, "") for names, m in named(model)]
    for pattern, recipe in patterns:
        if not isinstance(pattern, _SAYS_WHICH) or any(matches(pattern, x) for x in able):
            continue
        blocked = [layer for layer in modules if matches(pattern, layer)]
        if recipe is not None:
            blocked = [
                layer
                for layer in blocked
                if layer.module not in by_module or not (recipe.is_torch or chosen.excludes(layer))
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


def _refuse_graphs(chosen: Selection, model: Module, functions: bool) -> None:
    """Refuses a selected graph that torch has traced already and whose arithmetic is fixed: for
    convert one that holds products (a graph of torch.fx only if functions count), for set_recipe
    one that was traced from a converted model."""
    function = chosen.function
    for names, module, kind, products in _graphs(model):
        if function == "set_recipe":
            products = {name for name in products if name.startswith(_OURS)}
        counts = products and (functions or isinstance(module, torch.jit.ScriptModule))
        if counts and chosen.recipe_of(Layer(names, module, "")) is not None:
            raise ValueError(
                f"{function}: {names[0]!r} is {kind} that calls {', '.join(sorted(products))}; no "
                f"recipe reaches these products, and nothing was changed. {function} the model "
                f"before it is traced, scripted or exported, or leave out {names[0]!r}"
            )


def _graphs(model: Module) -> Iterator[tuple[list[str], Module, str, set[str]]]:
    """Names, module, kind and products of every graph; a script is listed once, with all it
    holds."""
    if not any(isinstance(module, _classes.TRACED) for module in model.modules()):
        return
    scripted: set[int] = set()
    for names, module in named(model):
        if isinstance(module, torch.jit.ScriptModule):
            if id(module) not in scripted:
                yield names, module, "a TorchScript graph", _scripted_products(module)
            scripted.update(map(id, module.modules()))
        elif isinstance(module, torch.fx.GraphModule):
            calls = {_called(node) for node in module.graph.nodes}
            products = {name for name in calls if name in _PRODUCT_NAMES or name.startswith(_OURS)}
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
    return _classes.kind_of(layer.module).multiplies or FUNCTIONS in layer.positions
