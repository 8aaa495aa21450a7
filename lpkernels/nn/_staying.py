"""The warning of `convert` about what stays torch's own though nobody left it out."""

from __future__ import annotations

import warnings
from collections import Counter

from lpkernels.arithmetic import Recipe
from lpkernels.nn._classes import multiplies
from lpkernels.nn._positions import FUNCTIONS
from lpkernels.nn.policies import NO_ARITHMETIC
from lpkernels.nn.selecting import Layer, Selection


class NotEmulatedWarning(UserWarning):
    """A conversion after which products of a model stay torch's own, though nobody left them out:
    a policy has no arithmetic for layers of this class, a forward cannot be followed, or the model
    has no layer that multiplies."""


def warn_of_staying(wanted: Selection, chosen: list[tuple[Layer, Recipe]], *, whole: bool) -> None:
    """Warns once of the layers in the selection that stay torch's own.

    A layer that the user excluded, or that a policy keeps by its place in the model (the head, the
    gates), stays on purpose; so does a layer that a mapping of the user's own leaves out.

    whole: whether a recipe or a policy was given, without include and exclude.
    """
    parts = []
    without = [layer.module for layer, recipe in chosen if recipe is NO_ARITHMETIC]
    classes = Counter(type(module).__name__ for module in without)
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
        named = "; ".join(f"{layer.names[0]!r}: {layer.why_not}" for layer in blocked)
        parts.append(f"left {len(blocked)} selected layer(s) as they are: {named}")
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
    return multiplies(layer.module) or FUNCTIONS in layer.positions
