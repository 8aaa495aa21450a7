"""The layers of a model that a call selects, and the recipe of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from torch.nn import Module

from lpkernels.arithmetic import Recipe
from lpkernels.arithmetic.text import field_names
from lpkernels.nn import _classes
from lpkernels.nn._fast_paths import uncalled_layers
from lpkernels.nn._positions import FUNCTIONS, Position, ends, gates
from lpkernels.nn.calls import EmulatesCalls
from lpkernels.recipes import as_recipe

Pattern = str | type | Position | Callable[[str, Module], bool]
Patterns = Pattern | Iterable[Pattern]
Recipes = Recipe | str | Mapping[Pattern, Recipe | str]

# The name, below a MultiheadAttention's own, of the products between its projections.
ATTENTION = "attention"
# An error names this many layers of the model.
_NAMED_LAYERS = 5
_KINDS = {
    "convert": "these are torch.nn.Linear, Bilinear, Embedding, MultiheadAttention, RNN, LSTM, "
    "GRU, their cells, Conv1d to Conv3d, ConvTranspose1d to ConvTranspose3d; where a pattern is "
    "their class, norms, Softmax and GELU; and modules with a forward of their own, whose calls of "
    "functions count",
    "set_recipe": "these are the layers of lpkernels.nn, which lp.convert(model, recipe) makes",
}


@dataclass(frozen=True)
class Layer:
    """A layer of a kind that lpkernels emulates: all its names, why it cannot be emulated (or ""),
    and its places in the model. A layer without products is selected only where a
    pattern is its class."""

    names: list[str]
    module: Module
    why_not: str
    has_products: bool = True
    positions: frozenset[Position] = frozenset()


@dataclass(frozen=True)
class Selection:
    """The rules in order, each (pattern, recipe); include None is everything."""

    rules: list[tuple[Pattern, Recipe]]
    include: list[Pattern] | None
    exclude: list[Pattern]

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
        """Whether a pattern that matches the layer may select it: one without products only where
        some pattern is its class."""
        if layer.has_products:
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
    kept = None if include is None else _listed(f"{function}: include", include)
    return Selection(
        rules, kept, [] if exclude is None else _listed(f"{function}: exclude", exclude)
    )


def check_model(function: str, model: object) -> None:
    if isinstance(model, torch.export.ExportedProgram):
        raise TypeError(
            f"{function}: model must be a torch.nn.Module, got an ExportedProgram, whose "
            f"arithmetic is fixed; call {function} on the model and export it then"
        )
    if not isinstance(model, Module):
        raise TypeError(f"{function}: model must be a torch.nn.Module, got {type(model).__name__}")


def layers(model: Module) -> list[Layer]:
    """Every layer of a kind that can be emulated, once, in the order of the model."""
    at, uncalled = ends(model), uncalled_layers(model)
    reasons = (
        (names, module, uncalled.get(module, _classes.why_not(module)))
        for names, module in named(model)
    )
    return [
        Layer(names, module, why, not _classes.has_no_products(module), _places(names, module, at))
        for names, module, why in reasons
        if why is not None
    ]


def callers(model: Module) -> list[Layer]:
    """Every module with a forward of its own, which may call products as functions, once."""
    at = ends(model)
    return [
        Layer(names, module, _classes.why_not_calls(module), positions=_places(names, module, at))
        for names, module in named(model)
        if _classes.calls_functions(module)
    ]


def _places(
    names: list[str], module: Module, at: dict[Module, frozenset[Position]]
) -> frozenset[Position]:
    """at: of the ends of the model."""
    found = at.get(module, frozenset()) | gates(names)
    calls = isinstance(module, EmulatesCalls) or _classes.calls_functions(module)
    return found | {FUNCTIONS} if calls else found


def attention_names(names: Iterable[str]) -> list[str]:
    return [f"{name}.{ATTENTION}".removeprefix(".") for name in names]


def named(model: Module) -> list[tuple[list[str], Module]]:
    """Every module once, with all its names, in the order of the model."""
    names: dict[Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return [(all_names, module) for module, all_names in names.items()]


def nothing_matched(function: str, chosen: Selection, found: list[Layer]) -> str:
    """The error's message: the patterns of the call, and the layers of the model."""
    found = [layer for layer in found if layer.has_products]
    if not found:
        return (
            f"{function}: no layer matched ({chosen}), and the model has none of the kind; "
            + _KINDS[function]
        )
    shown = ", ".join(
        f"{layer.names[0]!r} ({layer.why_not or type(layer.module).__name__})"
        for layer in found[:_NAMED_LAYERS]
    )
    more = f" and {len(found) - _NAMED_LAYERS} more" if len(found) > _NAMED_LAYERS else ""
    return (
        f"{function}: no layer matched ({chosen}); the model has {shown}{more}; "
        "a glob is compared with the full name"
    )


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
