"""Patterns for the layers of a model: by name, class, function or place, and the recipe of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase

import torch
from torch.nn import Module

from lpkernels.arithmetic import Recipe
from lpkernels.arithmetic.text import field_names
from lpkernels.nn._classes import Kind, kind_of, why_not_calls
from lpkernels.nn._fast_paths import uncalled_layers
from lpkernels.nn.calls import EmulatesCalls
from lpkernels.recipes import as_recipe


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

# The name, below a MultiheadAttention's own, of the products between its projections.
ATTENTION = "attention"
# An error names this many layers of the model.
_NAMED_LAYERS = 3
_KINDS = {
    "convert": "docs/layers.md lists them, torch.nn.Linear among them",
    "set_recipe": "these are the layers of lpkernels.nn, which lp.convert(model, recipe) makes",
}


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
    included = None if include is None else _listed(f"{function}: include", include)
    excluded = [] if exclude is None else _listed(f"{function}: exclude", exclude)
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


def nothing_matched(chosen: Selection, candidates: list[Layer]) -> str:
    """The error's message: the patterns of the call, and the layers of the model."""
    able = [layer for layer in candidates if not layer.by_class_alone]
    text = f"{chosen.function}: no layer matched ({chosen})"
    if not able:
        return f"{text}, and the model has none of the kind; {_KINDS[chosen.function]}"
    listed = show_layers(able)
    return f"{text}; the model has {listed}; a glob is compared with the full name"


def show_layers(layers: list[Layer]) -> str:
    """The first of the layers, each with its class or with why it cannot be emulated."""
    shown = []
    for layer in layers[:_NAMED_LAYERS]:
        why = f": {layer.why_not}" if layer.why_not else ""
        shown.append(f"{layer.names[0]!r} ({type(layer.module).__name__}{why})")
    more = len(layers) - _NAMED_LAYERS
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


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


def _listed(what: str, patterns: Patterns) -> list[Pattern]:
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
