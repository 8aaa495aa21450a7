"""Layers whose recipe may keep a running range of their one input, in two buffers."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer, Recipe, check_axes
from lpkernels.arithmetic.precisions import Formats
from lpkernels.functional.running import Average, rounded_input
from lpkernels.functional.tabled import TabledRecipe, tabled
from lpkernels.nn.emulated import Emulated, is_traced

# Buffers of a layer with a running range; no other layer has them.
RANGE, WEIGHT = "input_range", "input_range_weight"


@lru_cache(maxsize=1024)
def _without_input(recipe: Recipe) -> Recipe:
    """The part of the recipe that is left when the input is rounded."""
    rest = replace(recipe, input=None, input_range=None)
    # Torch's own arithmetic would refuse a float32 input beside a weight of another dtype.
    return replace(rest, input=Quantizer("fp32")) if rest.is_torch else rest


class RunningInput(Emulated):
    """Mixin of the layers with one input, which know the `input_range` of a Recipe.

    With an `input_range` they have two buffers in float32: ``input_range`` (2,) is the average of
    the lowest and of the highest finite value of the batches seen in training, and
    ``input_range_weight`` () is the weight of these batches in it, ``1 - momentum^t``. As with the
    statistics of batch norm, a batch that activation checkpointing computes again counts again.
    """

    _rest: Recipe | None
    _tabled_rest: TabledRecipe | None

    def reset_range(self) -> None:
        """Start the running range anew; does nothing where the recipe has none.

        Until the next batch in training, evaluation takes the range of each input itself.
        """
        for name in (RANGE, WEIGHT):
            if name in self._buffers:
                self.get_buffer(name).zero_()

    def _compute_by(self, recipe: Recipe, formats: Formats = ()) -> None:
        super()._compute_by(recipe, formats)
        if recipe.input_range is None:
            self._drop_range()
        elif RANGE not in self._buffers:
            device = next((p.device for p in self.parameters()), torch.device("cpu"))
            zeros = torch.zeros(3, dtype=torch.float32, device=device)
            self.register_buffer(RANGE, zeros[:2].clone())
            self.register_buffer(WEIGHT, zeros[2].clone())

    def _build(self, recipe: Recipe, formats: Formats) -> dict[str, Any]:
        attributes = super()._build(recipe, formats)
        if recipe.input_range is None:
            return {**attributes, "_rest": None, "_tabled_rest": None}
        rest = _without_input(recipe)
        table = tabled(rest, [fmt for _, fmt in formats])
        return {**attributes, "_rest": rest, "_tabled_rest": table}

    def _drop_range(self) -> None:
        for name in (RANGE, WEIGHT):
            if name in self._buffers:
                delattr(self, name)

    def _forget(self) -> None:
        super()._forget()
        self._drop_range()
        for attribute in ("_rest", "_tabled_rest"):
            vars(self).pop(attribute, None)

    def _rounded(self, input: Tensor) -> tuple[Tensor, Recipe]:
        """The input, and the recipe that is left to apply: all of it, or all but the input's
        rounding."""
        rest = self._tabled_rest if is_traced() else self._rest
        arithmetic: Any = self._arithmetic
        if rest is None:
            return input, arithmetic
        if arithmetic.axes:
            # Before the batch goes into the average.
            rank = max(input.dim(), 2)
            found = [r._replace(input=rank, output=rank) for r in self._ranks() if r.input is None]
            check_axes(arithmetic, *found)
        kept = Average(getattr(self, RANGE), getattr(self, WEIGHT))
        its = (arithmetic.input, arithmetic.input_range)
        x = rounded_input(type(self).__name__, input, *its, kept, self.training)
        return x, rest

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        rest = (local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        lacking = [prefix + name for name in (RANGE, WEIGHT) if prefix + name in missing_keys]
        for key in lacking:
            missing_keys.remove(key)
        if lacking:
            warnings.warn(
                f"load_state_dict: the state_dict has no {', '.join(lacking)}; the layer keeps the "
                "running range it has. It was saved without one: train a few batches, or "
                "recalibrate, before evaluation",
                stacklevel=2,
            )
