"""What every emulating layer has: a recipe to read, replace, print, copy and pickle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lpkernels.arithmetic import Recipe
from lpkernels.functional._autograd import is_exporting
from lpkernels.functional._tabled import TabledRecipe, tabled
from lpkernels.recipes import as_recipe, recipe, recipes

if TYPE_CHECKING:
    from torch.nn import Module
else:
    Module = object


def recipe_name(its: Recipe) -> str:
    """The name under which ``lpkernels.recipe`` knows a recipe, else its text."""
    named = (name for name in recipes() if recipe(name) == its)
    return next(named, str(its))


class Emulated(Module):
    """Mixin of the layers in ``lpkernels.nn``; comes before the torch.nn class in the bases.

    The recipe is a plain attribute of the module: it is no part of the state_dict, whose keys stay
    torch.nn's, but it travels with ``copy.deepcopy`` and ``pickle``.
    """

    _recipe: Recipe
    _tabled: TabledRecipe

    @property
    def recipe(self) -> Recipe:
        """How this layer computes; assign a Recipe or a name to change it."""
        return self._recipe

    @recipe.setter
    def recipe(self, recipe: Recipe | str) -> None:
        self._recipe = as_recipe(recipe)
        # Of this layer alone: torch.compile would take one tensor in two layers for one input.
        self._tabled = tabled(self._recipe)

    @property
    def _arithmetic(self) -> Recipe:
        """The recipe as forward takes it: under torch.compile one that a graph reads as it runs."""
        traced = torch.compiler.is_compiling() and not is_exporting()
        return self._tabled if traced else self._recipe

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={recipe_name(self.recipe)}".removeprefix(", ")
