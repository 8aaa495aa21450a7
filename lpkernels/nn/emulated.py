"""The common part of emulating layers: a recipe to read, replace, print, copy and pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from lpkernels.arithmetic import (
    Accumulator,
    Precision,
    Ranks,
    Recipe,
    check_axes,
    checked_formats,
    precision,
    with_accumulators,
    with_precision,
)
from lpkernels.arithmetic.precisions import Formats, checked_bits, checked_forward_bits
from lpkernels.formats import FormatLike
from lpkernels.functional.recording import is_exporting
from lpkernels.functional.tabled import TabledRecipe, tabled
from lpkernels.recipes import as_recipe, recipe, recipes

if TYPE_CHECKING:
    from torch.nn import Module
else:
    Module = object


# What an emulated layer keeps beside torch.nn's attributes, buffers and modules.
_ATTRIBUTES = "_built _recipe _assigned _tabled _formats _rounded _tabled_rounded _attention"


def recipe_name(value: Recipe) -> str:
    """The name under which ``lpkernels.recipe`` knows a recipe, else its text."""
    names = (name for name in recipes() if recipe(name) == value)
    return next(names, str(value))


def set_widths(
    layers: Mapping[str, Emulated], forward_bits: Any, backward_bits: Any, formats: Any
) -> None:
    """Gives all layers another precision, or none of them; the keys name them in errors."""
    forward = checked_forward_bits(forward_bits)
    backward = checked_bits("backward_bits", backward_bits)
    table = checked_formats(formats)
    new_recipes = []
    for owner, layer in layers.items():
        try:
            narrow = vars(layer).get("_assigned", layer.recipe)
            new = with_precision(layer.recipe, forward, backward, table, narrow)
        except ValueError as error:
            raise ValueError(f"set_precision: {owner} {error}") from error
        if new.axes:
            check_axes(new, *layer._ranks(layer), owner=f"set_precision: {owner}")
        new_recipes.append(new)
    for layer, new in zip(layers.values(), new_recipes, strict=True):
        layer._compute_by(new, table or ())


class Emulated(Module):
    """Mixin of the layers in ``lpkernels.nn``; comes before the torch.nn class in the bases.

    The recipe is a plain attribute of the module: it is no part of the state_dict, whose keys stay
    torch.nn's, but it travels with ``copy.deepcopy`` and ``pickle``.
    """

    _recipe: Recipe
    # The recipe that was assigned last, before its precision was set.
    _assigned: Recipe
    _tabled: TabledRecipe
    # The table of formats from which the precision was set last.
    _formats: Formats
    # What this layer needs to compute by a recipe it had, keyed by the recipe and the formats that
    # take turns. Each layer has its own: torch.compile would take one tensor in two layers for one
    # input.
    _built: dict[tuple[Recipe, Formats], dict[str, Any]]
    # Whether the layer can keep delayed scales, or has no tensors of its own.
    _takes_scaling = False
    # The function of lpkernels.functional that computes the layer.
    _function: ClassVar[Callable[..., Any]]
    # Whether the layer multiplies by weights in its sums.
    _has_products = True
    # Whether `convert` takes the layer only where a pattern is its class.
    _by_class_alone = False

    @property
    def recipe(self) -> Recipe:
        """How this layer computes; assign a Recipe or a name to change it."""
        return self._recipe

    @recipe.setter
    def recipe(self, recipe: Recipe | str) -> None:
        self._assign(as_recipe(recipe))

    def _assign(self, recipe: Recipe) -> None:
        if recipe.axes:
            check_axes(recipe, *self._ranks(self))
        self._refuse_scaling(recipe)
        self._built = {}
        self._compute_by(recipe)
        self._assigned = recipe

    def _refuse_scaling(self, recipe: Recipe) -> None:
        if recipe.scaling is not None and not self._takes_scaling:
            raise ValueError(
                f"{type(self).__name__}: {recipe.scaling} is for linear layers and convolutions; "
                "give this layer another recipe, or exclude it from lp.convert"
            )

    @classmethod
    def _ranks(cls, layer: Any) -> tuple[Ranks, ...]:
        """The ranks of the tensors of a layer, emulated or not, as far as they are known before a
        call."""
        return ()

    def _compute_by(self, recipe: Recipe, formats: Formats = ()) -> None:
        key = (recipe, formats)
        attributes = self._built.get(key)
        if attributes is None:
            attributes = self._built[key] = self._build(recipe, formats)
        # Module.__setattr__ would look for parameters, modules and buffers each time.
        vars(self).update(attributes)

    def _build(self, recipe: Recipe, formats: Formats) -> dict[str, Any]:
        """The attributes of a layer that computes by recipe."""
        table = tabled(recipe, [fmt for _, fmt in formats])
        return {"_recipe": recipe, "_tabled": table, "_formats": formats}

    @property
    def precision(self) -> Precision:
        """The widths in force, (forward, backward): forward is the width of input and weight, a
        pair where they differ; backward is the width of the gradients. None stands for a side that
        the recipe does not round. Change them with `set_precision`."""
        return precision(self._recipe)

    def set_precision(
        self,
        forward_bits: int | tuple[int | None, int | None] | None,
        backward_bits: int | None,
        *,
        formats: Mapping[int, FormatLike] | None = None,
    ) -> None:
        """Give the quantizers of the recipe other widths; everything else of it stays.

        docs/layers.md, "Precision at run time", has the rule of each kind of format. A call costs
        microseconds and may come before every step: torch.compile compiles nothing again as long as
        every call has the same table, or none has one and no affine format passes 16 bits. A
        backward has the precision of its forward.

        Args:
            forward_bits: of `input` and `weight`, an int or a pair of both; None stays.
            backward_bits: of `grad_output`, and of `grad_input` and `grad_weight` where the recipe
                rounds them; None stays.
            formats: {bits: format or its name}, which float and block formats need.

        Raises:
            TypeError: bits that are no int, formats that is no mapping.
            ValueError: the recipe rounds none of this, bits that a format does not take or formats
                lacks, a float or block format without formats. Nothing is changed then.
        """
        set_widths({type(self).__name__: self}, forward_bits, backward_bits, formats)

    def set_accumulator(
        self,
        acc: Accumulator | FormatLike | Mapping[str, Accumulator | FormatLike],
    ) -> None:
        """Give the products of the recipe other accumulators; everything else of it stays.

        Between accumulators that are not "native", and of one kind (all draw random bits or none
        does), torch.compile compiles nothing again.

        Args:
            acc: an Accumulator, a format or a name for all three products, or a mapping {"fprop",
                "dgrad", "wgrad": accumulator} of some.

        Raises:
            TypeError: no accumulator.  ValueError: an unknown name or product. Nothing is changed
            then.
        """
        self._compute_by(with_accumulators(self._recipe, acc), self._formats)

    @property
    def _arithmetic(self) -> Recipe:
        """The recipe as forward takes it: under torch.compile one that a graph reads as it runs."""
        traced = torch.compiler.is_compiling() and not is_exporting()
        return self._tabled if traced else self._recipe

    def _forget(self) -> None:
        """Removes everything of lpkernels from the module, which is to become torch.nn's."""
        for attribute in _ATTRIBUTES.split():
            vars(self).pop(attribute, None)

    def __prepare_scriptable__(self) -> None:
        """torch.jit.script asks every module of a model for a form that it can compile."""
        raise NotImplementedError(
            f"{type(self).__name__}: torch.jit.script cannot compile emulated arithmetic; use "
            "torch.export, or lp.revert the model"
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={recipe_name(self.recipe)}".removeprefix(", ")
