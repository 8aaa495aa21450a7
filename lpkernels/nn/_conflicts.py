"""Patterns that cannot mean what they say: refused, with the module they name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch.nn import Module, MultiheadAttention

from lpkernels.arithmetic import Recipe, check_axes
from lpkernels.formats.elsewhere import nearest
from lpkernels.nn import _classes
from lpkernels.nn._positions import Position
from lpkernels.nn.selecting import (
    Layer,
    Pattern,
    Selection,
    attention_names,
    matches,
    named,
    show,
)

# An error names this many modules.
_NAMED_MODULES = 3
# Patterns that are read off the model; a function may be made for some of its layers alone.
_SAYS_WHICH = (str, type, Position)
_NO_PRODUCTS = "converted only where a pattern is its class"


def refuse_unknown_names(function: str, chosen: Selection, model: Module) -> None:
    """Refuses a name in include, in exclude or as a key of the mapping that fits no module of the
    model, whether converted or not. Classes and functions may fit none.

    Raises: ValueError: there is such a name; the names that are near it are given.
    """
    names = [name for its_names, _ in named(model) for name in its_names]
    heads = [its for its, x in named(model) if isinstance(x, MultiheadAttention)]
    keys = [*names, *(name for its in heads for name in attention_names(its))]
    asked = [("include=", pattern) for pattern in chosen.include or []]
    asked += [("exclude=", pattern) for pattern in chosen.exclude]
    asked += [("the key ", pattern) for pattern, _ in chosen.rules]
    for what, pattern in asked:
        known = keys if what == "the key " else names
        if not isinstance(pattern, str) or _fits(pattern, known):
            continue
        inside = f"*.{pattern}"
        near = nearest(
            pattern,
            [inside] if _fits(inside, names) else names,
            "model.named_modules() lists all",
            shown=repr,
        )
        near = f"; expected one of {near}."
        if any(type(x).__name__ == pattern for _, x in named(model)):
            near = f"; a class is given without quotes, as torch.nn.{pattern}."
        raise ValueError(
            f"{function}: {what}{pattern!r} fits the name of no module{near} A glob is compared "
            "with the full name. Nothing was changed"
        )


def _fits(pattern: str, names: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def refuse_unsupported(
    function: str, chosen: Selection, model: Module, found: list[Layer], *, keys: bool
) -> None:
    """Refuses a pattern of include, or with ``keys`` a key of the mapping, that matches modules but
    none that can be emulated. A function of (name, module) is not asked about such modules. Layers
    that cannot be emulated are no obstacle to a key if they are excluded or are to be torch's own.

    Raises: ValueError: there is such a pattern; its modules are named.
    """
    patterns: list[tuple[Pattern, Recipe | None]] = [(p, None) for p in chosen.include or []]
    patterns += chosen.rules if keys else []
    by_module = {layer.module: layer for layer in found}
    able = [layer for layer in found if not layer.why_not and chosen.means(layer)]
    for pattern, recipe in patterns:
        if not isinstance(pattern, _SAYS_WHICH) or any(matches(pattern, x) for x in able):
            continue
        modules = [by_module.get(m) or Layer(names, m, "") for names, m in named(model)]
        meant = [each for each in modules if matches(pattern, each)]
        if recipe is not None:
            layers = [x for x in meant if x.module in by_module]
            stay = [x.module for x in layers if recipe.is_torch or chosen.excludes(x)]
            meant = [x for x in meant if x.module not in stay]
        if meant:
            asked = f"{'include=' if recipe is None else 'the key '}{show([pattern])}"
            shown = _listed([_described(each, by_module) for each in meant])
            raise ValueError(
                f"{function}: no layer matched {asked}: lpkernels cannot emulate {shown}. Nothing "
                f"was converted{_inside(meant, by_module)}"
            )


def refuse_axes(function: str, chosen: Sequence[tuple[Layer, Recipe]]) -> None:
    """Refuses a recipe with a format along an axis that a tensor of its layer lacks.

    Raises: ValueError: there is one; the layer and the tensor are named.
    """
    for layer, recipe in chosen:
        if recipe.axes and not layer.why_not:
            owner = f"{function}: {layer.names[0]!r}"
            check_axes(recipe, *_classes.ranks(layer.module), owner=owner)


def refuse_conflicts(function: str, chosen: Selection, found: list[Layer]) -> None:
    """Refuses a name in include that is excluded, or left without a recipe, as a whole, and a name
    that stands as a key of the mapping behind a wider key with another recipe. FIRST and LAST are
    names in include; as keys they must not stand behind "*" with another recipe.

    Classes and functions say less: "every Linear but this one" may leave none.

    Raises: ValueError: there is such a name.
    """
    if not chosen.include and len(chosen.rules) < 2:
        return
    able = [layer for layer in found if not layer.why_not and chosen.means(layer)]
    for pattern in chosen.include or []:
        meant = [layer for layer in able if matches(pattern, layer)]
        asked = f"include={show([pattern])}"
        specific = isinstance(pattern, str | Position) or pattern in chosen.exclude
        if not meant or not specific:
            continue
        kept = [layer for layer in meant if not chosen.excludes(layer)]
        if not kept:
            raise ValueError(
                f"{function}: {asked} conflicts with exclude={show(chosen.exclude)}, which leaves "
                f"out all it selects: {_named_layers(meant)}; take one of them away"
            )
        if all(chosen.first_rule(layer) is None for layer in kept):
            raise ValueError(
                f"{function}: {asked} conflicts with the mapping, which has no key for what it "
                f"selects: {_named_layers(kept)}; add one, or '*' as the last"
            )
    _refuse_dead_rules(function, chosen, able)


def _refuse_dead_rules(function: str, chosen: Selection, able: list[Layer]) -> None:
    matched = [
        {i for i, x in enumerate(able) if isinstance(p, _SAYS_WHICH) and matches(p, x)}
        for p, _ in chosen.rules
    ]
    for i, (pattern, recipe) in enumerate(chosen.rules):
        if not (isinstance(pattern, str | Position) and matched[i]):
            continue
        for j, (wider, its_recipe) in enumerate(chosen.rules[:i]):
            is_lost = matched[i] < matched[j]
            if isinstance(pattern, Position):
                # Another pattern that takes the name may be meant as its exception.
                is_lost = wider == "*"
            if is_lost and its_recipe != recipe:
                lost = _named_layers([able[k] for k in sorted(matched[i])])
                raise ValueError(
                    f"{function}: the key {show([pattern])} never applies, since the first match "
                    f"wins and {show([wider])} before it takes {lost}; put the narrower key first"
                )


def _described(layer: Layer, by_module: dict[Module, Layer]) -> str:
    """The module's name and class, and why it cannot be emulated where more is known."""
    why = layer.why_not or (_NO_PRODUCTS if layer.module in by_module else "")
    return f"{layer.names[0]!r} ({type(layer.module).__name__}{': ' if why else ''}{why})"


def _inside(meant: list[Layer], by_module: dict[Module, Layer]) -> str:
    """Advice where a module is no layer but holds some."""
    for layer in meant:
        inner = [m for m in layer.module.modules() if m is not layer.module and m in by_module]
        if inner:
            name = layer.names[0]
            return f"; it holds layers, which {(name + '.*' if name else '*')!r} selects"
    return ""


def _named_layers(layers: list[Layer]) -> str:
    return _listed([f"{x.names[0]!r} ({type(x.module).__name__})" for x in layers])


def _listed(shown: Sequence[str]) -> str:
    more = len(shown) - _NAMED_MODULES
    return ", ".join(shown[:_NAMED_MODULES]) + (f" and {more} more" if more > 0 else "")
