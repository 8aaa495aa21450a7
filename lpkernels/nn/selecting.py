"""Patterns for the layers of a model: by name, class, function or place, and the recipe of each;
what `convert` and `set_recipe` refuse before any change, and the warning of `convert`."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.nn import Module, MultiheadAttention

from lpkernels.arithmetic import TORCH, Recipe, check_axes
from lpkernels.arithmetic.text import field_names
from lpkernels.formats.elsewhere import nearest
from lpkernels.nn._classes import Kind, kind_of, why_not_calls
from lpkernels.nn._fast_paths import uncalled_layers
from lpkernels.nn._product_sizes import SIZES
from lpkernels.nn.calls import EmulatesCalls
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.torch_functions import EMULATIONS
from lpkernels.recipes import as_recipe

#: Torch's own recipe where a policy has no arithmetic for a class of layers, or for products called
#: as functions. `convert` warns of such layers, and of such products where a module has stacks of
#: weights for them. Where a layer stays torch's own on purpose, its recipe is TORCH.
NO_ARITHMETIC = replace(TORCH)


class Position(Enum):
    """A pattern for layers by their place: ``lp.nn.FIRST``, ``LAST``, ``GATES``, ``FUNCTIONS``.

    FUNCTIONS are the products that modules with a forward of their own call as functions, such as
    those of attention, and in a mapping the attention between the projections of
    torch.nn.MultiheadAttention too. GATES are modules that choose experts: the last part of the
    name is "gate", ends in "_gate" or has "router" in it; "gate_proj" of a gated linear unit is
    none. A model may have neither.

    FIRST and LAST are the first and the last layer that multiply by weights of their own, in the
    order of ``named_modules``, converted or not, selected or not; a single layer is both. An
    Embedding multiplies nothing, so FIRST of a language model is the layer behind it. Where a model
    registers its head before its body, or is several networks, as a GAN, name the layers instead.
    """

    FIRST = "first"
    LAST = "last"
    GATES = "gates"
    FUNCTIONS = "functions"

    def __repr__(self) -> str:
        return self.name


FIRST = Position.FIRST
LAST = Position.LAST
GATES = Position.GATES
FUNCTIONS = Position.FUNCTIONS
# A gate that chooses experts.
_GATE = re.compile(r"(.*\.)?((\w*_)?gate|\w*router\w*)")

Pattern = str | type | Position | Callable[[str, Module], bool]
Patterns = Pattern | Iterable[Pattern]
Recipes = Recipe | str | Mapping[Pattern, Recipe | str]

# Patterns that are read off the model; a function may be made for some of its layers alone.
_SAYS_WHICH = (str, type, Position)
_OURS, _ATEN = "lpkernels::", "aten::"
# The operators of functions and methods that multiply, and the names of all these in graphs.
_OPERATORS = {_ATEN + function.__name__ for function in EMULATIONS} | {*SIZES, "aten::_convolution"}
_PRODUCT_NAMES = {name.removeprefix(_ATEN) for name in _OPERATORS}

# The name, below a MultiheadAttention's own, of the products between its projections.
ATTENTION = "attention"
# An error names this many layers of the model.
_NAMED_LAYERS = 3
_KINDS = {
    "convert": "docs/layers.md lists them, torch.nn.Linear among them",
    "set_recipe": "these are the layers of lpkernels.nn, which lp.convert(model, recipe) makes",
}


class NotEmulatedWarning(UserWarning):
    """A conversion after which products of a model stay torch's own, though nobody left them out:
    a policy has no arithmetic for layers of this class, a forward cannot be followed, or the model
    has no layer that multiplies."""


@dataclass(frozen=True)
class Layer:
    """A module with all its names, and its places in the model.

    why_not: why it cannot be emulated, "" if it can; None: it is no layer, and calls no functions
        that count.
    calls: whether it is a module whose calls of functions are emulated.
    """

    names: list[str]
    module: Module
    kind: Kind
    why_not: str | None
    calls: bool
    positions: frozenset[Position]

    @property
    def by_class_alone(self) -> bool:
        """Whether it is selected only where a pattern is its class."""
        return self.kind.by_class_alone and not self.calls


@dataclass(frozen=True)
class Selection:
    """The rules in order, each (pattern, recipe); include None is everything. function: the public
    one whose arguments these are. is_mapping: whether the user gave the rules' patterns."""

    function: str
    rules: list[tuple[Pattern, Recipe]]
    include: list[Pattern] | None
    exclude: list[Pattern]
    is_mapping: bool

    def recipe_of(self, layer: Layer) -> Recipe | None:
        """The recipe of the first rule that matches the layer; None if it is not selected."""
        if not self.means(layer):
            return None
        if self.include is not None and not any(matches(p, layer) for p in self.include):
            return None
        if self.excludes(layer):
            return None
        return self.first_rule(layer)

    def attention_of(self, layer: Layer) -> Recipe | None:
        """The recipe of the attention in a MultiheadAttention: of the first rule for the layer, for
        `ATTENTION` below its name, or for FUNCTIONS, which it is."""
        names = [*layer.names, *attention_names(layer.names)]
        return self.first_rule(replace(layer, names=names, positions=layer.positions | {FUNCTIONS}))

    def excludes(self, layer: Layer) -> bool:
        return any(matches(p, layer) for p in self.exclude)

    def first_rule(self, layer: Layer) -> Recipe | None:
        return next((recipe for pattern, recipe in self.rules if matches(pattern, layer)), None)

    def means(self, layer: Layer) -> bool:
        """Whether a pattern that matches the layer may select it."""
        if not layer.by_class_alone:
            return True
        patterns = [*(self.include or []), *(pattern for pattern, _ in self.rules)]
        classes = [p for p in patterns if isinstance(p, type) and p is not Module]
        return any(isinstance(layer.module, cls) for cls in classes)

    def __str__(self) -> str:
        parts = [f"recipe for {show(p for p, _ in self.rules)}"]
        if self.include is not None:
            parts.append(f"include={show(self.include)}")
        if self.exclude:
            parts.append(f"exclude={show(self.exclude)}")
        return ", ".join(parts)


def selection(
    function: str, recipe: Recipes, include: Patterns | None = None, exclude: Patterns | None = None
) -> Selection:
    """The arguments of a public function, checked; a single recipe is the rule for "*"."""
    pairs = recipe.items() if isinstance(recipe, Mapping) else [("*", recipe)]
    try:
        rules = [(checked(f"{function}: a key of the mapping", p), as_recipe(r)) for p, r in pairs]
    except (TypeError, ValueError) as error:
        if isinstance(recipe, Mapping) and recipe.keys() <= {*field_names(Recipe)}:
            raise type(error)(
                f"{function}: keys of a mapping are layers, and these are fields of a single "
                f"recipe; give lp.Recipe.from_dict({dict(recipe)})"
            ) from error
        raise
    included = None if include is None else _patterns(f"{function}: include", include)
    excluded = [] if exclude is None else _patterns(f"{function}: exclude", exclude)
    return Selection(function, rules, included, excluded, isinstance(recipe, Mapping))


def check_model(function: str, model: object) -> None:
    if isinstance(model, torch.export.ExportedProgram):
        raise TypeError(
            f"{function}: model must be a torch.nn.Module, got an ExportedProgram, whose "
            f"arithmetic is fixed; call {function} on the model and export it then"
        )
    if not isinstance(model, Module):
        raise TypeError(f"{function}: model must be a torch.nn.Module, got {type(model).__name__}")


def candidates(model: Module, functions: bool = True) -> list[Layer]:
    """The modules of a kind that can be emulated, in the order of `modules_of`."""
    return [layer for layer in modules_of(model, functions) if layer.why_not is not None]


def modules_of(model: Module, functions: bool = True) -> list[Layer]:
    """Every module once, in the order of the model, but last, if functions count, the modules with
    a forward of their own. A layer with a forward of its own is such a module."""
    rows = [(names, module, kind_of(module)) for names, module in named(model)]
    multiplying = [module for _, module, kind in rows if kind.multiplies]
    uncalled = uncalled_layers(model)
    layers = []
    for names, module, kind in rows:
        calls = functions and kind.calls_functions
        why_not = why_not_calls(module) if calls else uncalled.get(module, kind.why_not)
        holds = {
            FIRST: module in multiplying[:1],
            LAST: module in multiplying[-1:],
            GATES: any(map(_GATE.fullmatch, names)),
            FUNCTIONS: kind.calls_functions or isinstance(module, EmulatesCalls),
        }
        positions = [x for x, is_there in holds.items() if is_there and why_not is not None]
        layers.append(Layer(names, module, kind, why_not, calls, frozenset(positions)))
    return sorted(layers, key=lambda layer: layer.calls)


def attention_names(names: Iterable[str]) -> list[str]:
    return [f"{name}.{ATTENTION}".removeprefix(".") for name in names]


def named(model: Module) -> list[tuple[list[str], Module]]:
    """Every module once, with all its names, in the order of the model."""
    names: dict[Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return [(all_names, module) for module, all_names in names.items()]


def escaped(name: str) -> str:
    """The glob that fits this name alone."""
    return re.sub(r"[*?[]", r"[\g<0>]", name)


def show_layers(layers: list[Layer]) -> str:
    """The first of the layers, each with its class or with why it cannot be emulated."""
    texts = []
    for layer in layers[:_NAMED_LAYERS]:
        why = f": {layer.why_not}" if layer.why_not else ""
        texts.append(f"{layer.names[0]!r} ({type(layer.module).__name__}{why})")
    more = len(layers) - _NAMED_LAYERS
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


def matches(pattern: Pattern, layer: Layer) -> bool:
    """Whether the pattern matches one of the layer's names, its class or its place, or is a
    function that says yes."""
    if isinstance(pattern, str):
        return any(fnmatchcase(name, pattern) for name in layer.names)
    if isinstance(pattern, type):
        return isinstance(layer.module, pattern)
    if isinstance(pattern, Position):
        return pattern in layer.positions
    return any(pattern(name, layer.module) for name in layer.names)


def _patterns(what: str, patterns: Patterns) -> list[Pattern]:
    if isinstance(patterns, str | type) or callable(patterns) or not isinstance(patterns, Iterable):
        return [checked(what, patterns)]
    return [checked(what, pattern) for pattern in patterns]


def checked(what: str, pattern: Pattern) -> Pattern:
    """The pattern.  Raises: TypeError: it is none."""
    hint = "; give the module's name in the model" if isinstance(pattern, Module) else ""
    if hint or not (isinstance(pattern, str | type | Position) or callable(pattern)):
        raise TypeError(
            f"{what} must be a glob like 'layer1.*', a class, lp.nn.FIRST, LAST, GATES, FUNCTIONS "
            f"or a function of (name, module), got {type(pattern).__name__}{hint}"
        )
    return pattern


def show(patterns: Iterable[Pattern]) -> str:
    return ", ".join(
        repr(p) if isinstance(p, str) else getattr(p, "__name__", repr(p)) for p in patterns
    )


def layers_with_recipes(
    choice: Selection, model: Module, functions: bool
) -> list[tuple[Layer, Recipe]]:
    """The layers that are selected, each with its recipe, whether it can be emulated or not. They
    are layers of `lpkernels.nn` alone for set_recipe.

    functions: whether products that are called as functions count.

    Raises: ValueError: nothing can be emulated, or a part of the selection means nothing.
    """
    converts = choice.function == "convert"
    modules = modules_of(model, functions and converts)
    _refuse_unknown_names(choice, modules)
    _refuse_graphs(choice, modules, functions)
    candidates = [layer for layer in modules if layer.why_not is not None]
    if not converts:
        candidates = [layer for layer in candidates if isinstance(layer.module, Emulated)]
    able = [layer for layer in candidates if not layer.why_not and choice.means(layer)]
    if converts:
        _refuse_unsupported(choice, modules, able)
    _refuse_dead_rules(choice, able)
    pairs = [(x, recipe) for x in candidates if (recipe := choice.recipe_of(x)) is not None]
    if all(layer.why_not for layer, _ in pairs):
        able = [layer for layer in candidates if not layer.by_class_alone]
        text = f"the model has none of the kind; {_KINDS[choice.function]}"
        if able:
            text = f"the model has {show_layers(able)}; a glob is compared with the full name"
        raise ValueError(f"{choice.function}: no layer matched ({choice}); {text}")
    for layer, recipe in pairs:
        emulating = layer.kind.emulating
        if recipe.axes and not layer.why_not and emulating is not None:
            owner = f"{choice.function}: {layer.names[0]!r}"
            check_axes(recipe, *emulating._ranks(layer.module), owner=owner)
    return pairs


def _refuse_unknown_names(choice: Selection, modules: list[Layer]) -> None:
    """Refuses a name in include, in exclude or as a key of the mapping that fits no module of the
    model, whether converted or not. Classes and functions may fit none."""
    names = [name for layer in modules for name in layer.names]
    heads = [layer for layer in modules if isinstance(layer.module, MultiheadAttention)]
    keys = [*names, *(name for layer in heads for name in attention_names(layer.names))]
    patterns = [("include=", pattern, names) for pattern in choice.include or []]
    patterns += [("exclude=", pattern, names) for pattern in choice.exclude]
    patterns += [("the key ", pattern, keys) for pattern, _ in choice.rules]
    for what, pattern, allowed in patterns:
        if not isinstance(pattern, str) or _fits(pattern, allowed):
            continue
        inside = f"*.{pattern}"
        candidates = [inside] if _fits(inside, names) else names
        near = nearest(pattern, candidates, "model.named_modules() lists all", shown=repr)
        advice = f"expected one of {near}"
        if any(type(layer.module).__name__ == pattern for layer in modules):
            advice = f"a class is given without quotes, as torch.nn.{pattern}"
        raise ValueError(
            f"{choice.function}: {what}{pattern!r} fits the name of no module; {advice}. A glob is "
            "compared with the full name. Nothing was changed"
        )


def _fits(pattern: str, names: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _refuse_unsupported(choice: Selection, modules: list[Layer], able: list[Layer]) -> None:
    """Refuses a pattern of include, or a key of the user's mapping, that matches modules but none
    that can be emulated. A function of (name, module) is not asked about such modules. Layers that
    cannot be emulated are no obstacle to a key if they are excluded or are to be torch's own."""
    patterns: list[tuple[Pattern, Recipe | None]] = [(p, None) for p in choice.include or []]
    patterns += choice.rules if choice.is_mapping else []
    for pattern, recipe in patterns:
        if not isinstance(pattern, _SAYS_WHICH) or any(matches(pattern, x) for x in able):
            continue
        blocked = [layer for layer in modules if matches(pattern, layer)]
        if recipe is not None:
            blocked = [
                layer
                for layer in blocked
                if layer.why_not is None or not (recipe.is_torch or choice.excludes(layer))
            ]
        if blocked:
            text = f"{'include=' if recipe is None else 'the key '}{show([pattern])}"
            raise ValueError(
                f"{choice.function}: no layer matched {text}: lpkernels cannot emulate "
                f"{show_layers(blocked)}. Nothing was converted. 'name.*' are the layers in a "
                "container; norms and Softmax are meant only where a pattern is their class"
            )


def _refuse_dead_rules(choice: Selection, able: list[Layer]) -> None:
    """Refuses a name as a key of the mapping behind a wider key with another recipe, and FIRST and
    LAST behind "*"."""
    matched = [
        {i for i, x in enumerate(able) if isinstance(p, _SAYS_WHICH) and matches(p, x)}
        for p, _ in choice.rules
    ]
    for i, (pattern, recipe) in enumerate(choice.rules):
        if not (isinstance(pattern, str | Position) and matched[i]):
            continue
        for j, (wider, wider_recipe) in enumerate(choice.rules[:i]):
            is_lost = matched[i] < matched[j]
            if isinstance(pattern, Position):
                # Another pattern that takes the name may be meant as its exception.
                is_lost = wider == "*"
            if is_lost and wider_recipe != recipe:
                lost = show_layers([able[k] for k in sorted(matched[i])])
                raise ValueError(
                    f"{choice.function}: the key {show([pattern])} never applies, since the first "
                    f"match wins and {show([wider])} before it takes {lost}; put the narrower key "
                    "first"
                )


def _refuse_graphs(choice: Selection, modules: list[Layer], functions: bool) -> None:
    """Refuses a selected graph that torch has traced already and whose arithmetic is fixed: for
    convert one that holds products (a graph of torch.fx only if functions count), for set_recipe
    one that was traced from a converted model."""
    function = choice.function
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
        if products and choice.recipe_of(layer) is not None:
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
    choice: Selection, pairs: list[tuple[Layer, Recipe]], *, whole: bool
) -> None:
    """Warns once of the layers in the selection that stay torch's own.

    A layer that the user excluded, or that a policy keeps by its place in the model (the head, the
    gates), stays on purpose; so does a layer that a mapping of the user's own leaves out.

    whole: whether a recipe or a policy was given, without include and exclude.
    """
    parts = []
    lacking = [layer for layer, recipe in pairs if recipe is NO_ARITHMETIC]
    layers = [layer for layer in lacking if FUNCTIONS not in layer.positions]
    if layers:
        why = "because the policy has no arithmetic for their class"
        parts.append(f"{_counted(layers)} stay torch's own, {why}")
    callers = [layer for layer in lacking if FUNCTIONS in layer.positions]
    experts = [layer for layer in callers if _has_stacked_weights(layer.module)]
    if experts:
        name = experts[0].names[0]
        key = f"*.{name.rpartition('.')[2]}" if "." in name else name
        parts.append(
            f"{_counted(experts)} with stacks of weights stay torch's own, because the policy "
            "leaves products called as functions to torch; a key before those of the policy, as "
            f"{{{key!r}: recipe}} | policy, gives them a recipe"
        )
    asks = any(not recipe.is_torch for _, recipe in choice.rules)
    by_name = any(isinstance(pattern, str) and pattern != "*" for pattern, _ in choice.rules)
    is_emulated = [
        layer.kind.multiplies or FUNCTIONS in layer.positions
        for layer, recipe in pairs
        if not (layer.why_not or recipe.is_torch)
    ]
    if whole and asks and not by_name and not any(is_emulated):
        parts.append("no product of this model is emulated")
    blocked = [layer for layer, _ in pairs if layer.why_not]
    if blocked:
        reasons = "; ".join(f"{layer.names[0]!r}: {layer.why_not}" for layer in blocked)
        parts.append(f"left {len(blocked)} selected layer(s) as they are: {reasons}")
    if parts:
        warnings.warn(
            f"convert: {'; '.join(parts)}. exclude= silences this, and "
            "lpkernels.nn.summary(model, batch) shows the emulated share",
            NotEmulatedWarning,
            stacklevel=3,
        )


def _counted(layers: list[Layer]) -> str:
    """The classes of the layers with their numbers."""
    classes = Counter(type(layer.module).__name__ for layer in layers)
    return ", ".join(f"{count} {name}" for name, count in classes.items())


def _has_stacked_weights(module: Module) -> bool:
    """Whether a parameter of the module itself is a stack of matrices, as those of experts are."""
    return any(p.dim() == 3 and min(p.shape) > 1 for p in module.parameters(recurse=False))
