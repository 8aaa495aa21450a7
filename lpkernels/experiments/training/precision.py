"""From a run's configuration to the recipes of its layers and the rounding of its weights."""

import dataclasses
from typing import Any

from lpkernels.arithmetic import Accumulator, Quantizer, Recipe, as_accumulator, as_quantizer
from lpkernels.experiments.training.config import RunConfig
from lpkernels.recipes import recipe as named_recipe


def layer_recipes(config: RunConfig) -> Recipe | dict[Any, Recipe]:
    """What `convert` takes: one recipe, or with `edge` a mapping for `stem`, `head` and the rest.

    With edge="e6m9" and fp8_wang2018 this is the exception of Wang et al. 2018 (arXiv 1812.08011):
    the images enter the first layer in 16 bits, because 8 bits have too few levels for them, and
    the operands of the last layer have 16 bits, because softmax is sensitive to its input; the
    accumulators stay those of the other layers. A layer named in `layer_accs` has its own.
    """
    body = body_recipe(config)
    if not config.edge and not config.layer_accs:
        return body
    recipes: dict[Any, Recipe] = {}
    if config.edge:
        operands = ("input", "weight", "bias", "grad_output")
        recipes["stem"] = _replace_operands(body, config.edge, operands[:1])
        recipes["head"] = _replace_operands(body, config.edge, operands)
    for layer, *sums in config.layer_accs:
        fprop, dgrad, wgrad = (as_accumulator(name) for name in sums)
        base = recipes.get(layer, body)
        recipes[layer] = dataclasses.replace(base, fprop=fprop, dgrad=dgrad, wgrad=wgrad)
    return {**recipes, "*": body}


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
