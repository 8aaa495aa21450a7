"""The products that a forward pass makes, as the rows of a summary."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch.nn import Module, RNNBase

from lpkernels.arithmetic import Recipe
from lpkernels.nn._classes import has_no_products
from lpkernels.nn._product_sizes import SIZES, Sizes
from lpkernels.nn.emulated import Emulated, recipe_name
from lpkernels.nn.observing import Call, Visitor
from lpkernels.nn.summary import Row

_FUNCTIONS = "lpkernels.functional."


class ProductsSeen(Visitor):
    """Gathers the products of a forward pass, for `summary`."""

    def __init__(self, model: Module) -> None:
        self._model = model
        # The calls and multiply-adds of rows are gathered here; the rows themselves have none yet.
        self._found: dict[Row, tuple[int, int]] = {}
        # For recurrent layers all their steps, which are the rows of their largest product.
        self._steps: dict[str, int] = {}
        # The sizes of the call that is being computed.
        self._sizes: Sizes | None = None

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        self._sizes = SIZES[call.operation](*arguments.values())

    def after(self, call: Call, result: Any) -> None:
        module = call.run.module or self._model
        sizes = self._sizes
        if sizes is None or has_no_products(module):
            return
        recipe = module.recipe if isinstance(module, Emulated) else None
        emulated = call.operation.startswith("lpkernels::") or _follows_a_recipe()
        shown = "" if recipe is None else recipe_name(recipe)
        kind = type(module).__name__
        if isinstance(module, RNNBase) and sizes.lengths is not None:
            self._steps[call.module] = max(sizes.lengths[2], self._steps.get(call.module, 0))
        row = Row(call.module, kind, sizes.product, shown, sizes.lengths, 0, 0, emulated)
        calls, macs = self._found.get(row, (0, 0))
        self._found[row] = (calls + 1, macs + sizes.macs)

    def rows(self) -> Iterator[Row]:
        merged: dict[Row, tuple[int, int]] = {}
        for row, (calls, macs) in self._found.items():
            if row.name in self._steps and row.lengths is not None:
                row = replace(row, lengths=(*row.lengths[:2], self._steps[row.name]))
            before = merged.get(row, (0, 0))
            merged[row] = (before[0] + calls, before[1] + macs)
        for row, (calls, macs) in merged.items():
            yield replace(row, calls=calls, macs=macs)


def _follows_a_recipe() -> bool:
    """Whether one of our functions asked torch for this product, for a native sum of a recipe."""
    frame = sys._getframe(1)
    while frame is not None:
        recipe = frame.f_locals.get("recipe")
        home = str(frame.f_globals.get("__name__"))
        if isinstance(recipe, Recipe) and home.startswith(_FUNCTIONS):
            return not recipe.is_torch
        frame = frame.f_back  # type: ignore[assignment]
    return False
