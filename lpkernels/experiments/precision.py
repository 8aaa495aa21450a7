"""From a run's configuration to the recipes of its layers and the rounding of its weights."""

import dataclasses
from typing import Any

from lpkernels.arithmetic import Accumulator, Quantizer, Recipe, as_quantizer
from lpkernels.experiments.config import RunConfig
from lpkernels.recipes import recipe as named_recipe


def layer_recipes(config: RunConfig) -> Recipe | dict[Any, Recipe]:
    """What `convert` takes: one recipe, or with `edge` a mapping for `stem`, `head` and the rest.

    With edge="e6m9" and fp8_wang2018 this is the exception of Wang et al. 2018 (arXiv 1812.08011):
    the images enter the first layer in 16 bits, because 8 bits have too few levels for them, and
    the operands of the last layer have 16 bits, because softmax is sensitive to its input; the
    accumulators stay those of the other layers.
    """
    body = body_recipe(config)
    if not config.edge:
        return body
    stem = _replace_operands(body, config.edge, ("input",))
    head = _replace_operands(body, config.edge, ("input", "weight", "bias", "grad_output"))
    return {"stem": stem, "head": head, "*": body}


def body_recipe(config: RunConfig) -> Recipe:
    """The recipe of the layers between the first and the last."""
    body = named_recipe(config.recipe)
    if not config.acc:
        return body
    acc = Accumulator(config.acc, config.acc_rounding, chunk=config.chunk or None)
    return dataclasses.replace(body, fprop=acc, dgrad=acc, wgrad=acc)


def _replace_operands(recipe: Recipe, fmt: str, fields: tuple[str, ...]) -> Recipe:
    """`recipe` with the format `fmt` in those of `fields` that it quantises at all."""
    changes: dict[str, Any] = {}
    for name in fields:
        old = getattr(recipe, name)
        if old is not None:
            changes[name] = Quantizer(fmt, old.rounding)
    return dataclasses.replace(recipe, **changes)


def weight_quantizer(config: RunConfig) -> Quantizer | None:
    """The rounding of the weight updates, None for plain float32 weights."""
    return as_quantizer(config.weight_update) if config.weight_update else None
