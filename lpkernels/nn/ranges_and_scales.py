"""The running range and the delayed scales of a layer, in buffers. The module's name stands in
pickles."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic import SCALED_ROLES, Quantizer, Recipe, check_axes
from lpkernels.arithmetic.precisions import Formats
from lpkernels.formats.checks import set_fields
from lpkernels.functional.dtypes import narrowed, result_dtype
from lpkernels.functional.recording import is_exporting, is_in_backward
from lpkernels.functional.running import Average, Delayed, Scales, rounded_input
from lpkernels.functional.tabled import TabledRecipe, tabled
from lpkernels.nn.emulated import Emulated

# The module in a layer with delayed scales that has their buffers.
SCALING = "scaling"

# Buffers of a layer with a running range; no other layer has them.
RANGE, WEIGHT = "input_range", "input_range_weight"
# What the warning says of a state_dict that lacks them.
_WITHOUT_RANGE = (
    "the layer keeps the running range it has. It was saved without one: train a few batches, or "
    "recalibrate, before evaluation"
)
_WITHOUT_SCALES = (
    "the layer starts with the scale 1 and an empty history. It was saved without delayed scaling: "
    "lpkernels.nn.calibrate finds scales"
)


@contextmanager
def kept_in_float32(buffers: dict[str, Tensor | None], names: Sequence[str]) -> Iterator[None]:
    """A context around a module's `_apply`. Buffers of these names whose dtype it changes get the
    values from before, on the device to which it moved them."""
    before = {name: buffers[name] for name in names if name in buffers}
    yield
    for name, old in before.items():
        moved = buffers[name]
        if moved is not None and old is not None and moved.dtype != torch.float32:
            buffers[name] = old.to(moved.device)


class KeptScales(torch.nn.Module):
    """The delayed scales of a layer (`lpkernels.DelayedScaling`): of each role that its recipe
    rounds, the buffers ``<role>_history`` (history,) and ``<role>_scale`` (), in float32."""

    def __init__(self, roles: Sequence[str], history: int, device: torch.device | str) -> None:
        super().__init__()
        self.roles = tuple(roles)
        # The scales before the last update, from then until the layer's next call in training.
        self.before: dict[str, Tensor] = {}
        # Whether a backward pass came since the last update; whether the user updates, or knows.
        self.waits = self.is_updated = False
        for role in roles:
            start = torch.ones(history + 1, dtype=torch.float32, device=device)
            self.register_buffer(f"{role}_history", torch.zeros_like(start[1:]))
            self.register_buffer(f"{role}_scale", start[0].clone())

    def of(self, role: str) -> tuple[Tensor, Tensor]:
        """The history and the scale of a role."""
        return self.get_buffer(f"{role}_history"), self.get_buffer(f"{role}_scale")

    def of_training(self) -> tuple[dict[str, Tensor], bool, bool]:
        """A copy of what a call in training changes beside the buffers."""
        return dict(self.before), self.waits, self.is_updated

    def of_call(self, training: bool) -> Scales:
        """The scales that a call of the layer rounds with. In training it notes the largest
        magnitudes."""
        compiled = torch.compiler.is_compiling()
        again = not compiled and is_in_backward()
        if training and not (again or compiled):
            self.before.clear()
            self._warn()
        delayed: dict[str, Delayed] = {}
        for role in self.roles:
            history, scale = self.of(role)
            # A recomputation rounds as the call that it repeats, and notes nothing again.
            scale = self.before.get(role, scale) if again else scale
            notes = training and (role == "grad_output" or not again)
            # The backward pass may come after an update.
            scale = scale.clone() if role == "grad_output" else scale
            delayed[role] = Delayed(scale, history if notes else None)
        after = self._after_backward if training and not compiled else None
        return Scales(
            delayed.get("input"), delayed.get("weight"), delayed.get("grad_output"), after
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> KeptScales:
        """The buffers move with the layer, and stay in float32 where its dtype changes."""
        with kept_in_float32(self._buffers, tuple(self._buffers)):
            super()._apply(fn, recurse)
        return self

    def _after_backward(self) -> None:
        self.waits = True

    def _warn(self) -> None:
        if self.waits and not self.is_updated:
            self.is_updated = True
            warnings.warn(
                "a layer with delayed scaling goes forward again after a backward pass, and its "
                "scales were never updated; call lpkernels.nn.update_scales(model) after backward",
                stacklevel=5,
            )


def scales_of(module: torch.nn.Module) -> KeptScales | None:
    """The delayed scales of a layer; None of any other module."""
    scales = module._modules.get(SCALING)
    return scales if isinstance(scales, KeptScales) else None


@lru_cache(maxsize=1024)
def _without_input(recipe: Recipe) -> Recipe:
    """The part of the recipe that is left when the input is rounded."""
    others = replace(recipe, input=None, input_range=None)
    # Torch's own arithmetic would refuse a float32 input beside a weight of another dtype.
    others = replace(others, input=Quantizer("fp32")) if others.is_torch else others
    # The products of a rounded input are not torch's own.
    set_fields(others, emulated=recipe.emulated)
    return others


class OneInput(Emulated):
    """Mixin of the layers with one input, which know the `input_range` and the `scaling` of a
    Recipe.

    With an `input_range` they have two buffers in float32: ``input_range`` (2,) is the average of
    the lowest and of the highest finite value of the batches seen in training, and
    ``input_range_weight`` () is the weight of these batches in it, ``1 - momentum^t``. As with the
    statistics of batch norm, a batch that activation checkpointing computes again counts again.
    With a `scaling` they have a module ``scaling``, a `KeptScales`.
    """

    # The recipe for an input that is rounded already.
    _rounded: Recipe | None
    _tabled_rounded: TabledRecipe | None
    _takes_scaling = True

    def reset_range(self) -> None:
        """Start the running range anew; does nothing where the recipe has none.

        Until the next batch in training, evaluation takes the range of each input itself.
        """
        for name in (RANGE, WEIGHT):
            if name in self._buffers:
                self.get_buffer(name).zero_()

    @torch.inference_mode(False)
    def _compute_by(self, recipe: Recipe, formats: Formats = ()) -> None:
        super()._compute_by(recipe, formats)
        self._keep_scales(recipe)
        if recipe.input_range is None:
            self._drop_range()
        elif RANGE not in self._buffers:
            for name, shape in ((RANGE, 2), (WEIGHT, ())):
                zeros = torch.zeros(shape, dtype=torch.float32, device=self._device())
                self.register_buffer(name, zeros)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """The range moves with the layer, and stays in float32 where its dtype changes."""
        with kept_in_float32(self._buffers, (RANGE, WEIGHT)):
            return super()._apply(fn, recurse)

    def _device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def _keep_scales(self, recipe: Recipe) -> None:
        present = scales_of(self)
        if recipe.scaling is None:
            if present is not None:
                delattr(self, SCALING)
            return
        roles = [role for role in SCALED_ROLES if getattr(recipe, role) is not None]
        length = recipe.scaling.history
        if present is not None and list(present.roles) == roles:
            if present.of(roles[0])[0].shape == (length,):
                return
        if present is None and hasattr(self, SCALING):
            raise ValueError(
                f"{type(self).__name__}: delayed scales are kept in the attribute {SCALING!r}, "
                "which this layer uses for something else; exclude it"
            )
        scales = KeptScales(roles, length, self._device())
        for role in scales.roles:
            if present is not None and role in present.roles:
                scales.of(role)[1].copy_(present.of(role)[1])
        scales.train(self.training)
        setattr(self, SCALING, scales)

    def _build(self, recipe: Recipe, formats: Formats) -> dict[str, Any]:
        attributes = super()._build(recipe, formats)
        if recipe.input_range is None:
            return {**attributes, "_rounded": None, "_tabled_rounded": None}
        others = _without_input(recipe)
        table = tabled(others, [fmt for _, fmt in formats])
        return {**attributes, "_rounded": others, "_tabled_rounded": table}

    def _drop_range(self) -> None:
        for name in (RANGE, WEIGHT):
            if name in self._buffers:
                delattr(self, name)

    def _forget(self) -> None:
        super()._forget()
        self._drop_range()
        if scales_of(self) is not None:
            delattr(self, SCALING)

    def _operand(self, input: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """The input, and the options `recipe` and `scales` of the layer's function.

        An input with a running range is rounded here, and the recipe is all but its rounding."""
        # As in `_arithmetic`, without its call.
        traced = torch.compiler.is_compiling() and not is_exporting()
        recipe: Any = self._tabled if traced else self._recipe
        if self._rounded is None and SCALING not in self._modules:
            return input, {"recipe": recipe}
        others = self._tabled_rounded if traced else self._rounded
        scales = scales_of(self)
        options = {} if scales is None else {"scales": scales.of_call(self.training)}
        if others is None:
            return input, {"recipe": recipe, **options}
        if recipe.axes:
            # Before the batch goes into the average.
            rank = max(input.dim(), 2)
            unknown = [r for r in self._ranks(self) if r.input is None]
            check_axes(recipe, *(r._replace(input=rank, output=rank) for r in unknown))
        average = Average(getattr(self, RANGE), getattr(self, WEIGHT))
        name = type(self).__name__
        x = rounded_input(name, input, recipe.input, recipe.input_range, average, self.training)
        return x, {"recipe": others, **options}

    def _narrowed(self, y: Tensor, input: Tensor) -> Tensor:
        """The result of an operand made of input, in float32, in the dtype of input's result."""
        return narrowed(y, result_dtype(input, *self.parameters()))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kw: Any) -> None:
        """A state_dict may lack the range and the scales: it is loaded with a warning."""
        delayed = scales_of(self)
        scales = {} if delayed is None else dict(delayed.named_buffers(SCALING))
        ranges = {k: x for k, x in self.named_buffers(recurse=False) if k in (RANGE, WEIGHT)}
        for values, without in ((ranges, _WITHOUT_RANGE), (scales, _WITHOUT_SCALES)):
            lacking = [name for name in values if prefix + name not in state_dict]
            for name in lacking:
                start = float(name.endswith("_scale"))
                value = values[name] if values is ranges else torch.full_like(values[name], start)
                state_dict[prefix + name] = value
            if lacking:
                names = ", ".join(prefix + name for name in lacking)
                text = f"load_state_dict: the state_dict has no {names}; {without}"
                warnings.warn(text, stacklevel=2)
        super()._load_from_state_dict(state_dict, prefix, *args, **kw)
