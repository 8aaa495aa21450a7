"""The arithmetic of a run: the recipes of its layers."""

import dataclasses
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field, Strict
from torch.nn import Module

from lpkernels.arithmetic import PRODUCTS, TORCH, Quantizer, Recipe, as_accumulator, as_quantizer
from lpkernels.experiments.settings import Option, Settings, checked
from lpkernels.formats import AffineFormat, parse_format
from lpkernels.nn.policies import REDUCING, Policy, method
from lpkernels.nn.selecting import candidates, selection
from lpkernels.recipes import as_recipe

# JSON and TOML have lists in place of tuples.
_LayerAcc = Annotated[tuple[str, str, str, str], Strict(False)]
LayerAccs = Annotated[tuple[_LayerAcc, ...], Strict(False)]


class ArithmeticConfig(Settings):
    """The published method or the recipe by which the layers of a network compute, and what is
    changed in it.

    operands, grads, edge and acc change the layers with products that a method quantizes; a layer
    that it leaves to torch stays torch's.
    """

    recipe: Annotated[str, checked(as_recipe)] = Field(
        "fp32",
        description="Arithmetic of the network: a published method's name, which treats norms, the "
        "first and the last layer as its source does, or the text of a recipe for every layer, as "
        "Recipe(fprop='e6m9'); lpkernels recipes lists names and shows texts.",
    )
    operands: Annotated[str, checked(as_quantizer)] = Field(
        "", description="Rounding of all inputs and weights instead of the recipe's, e.g. affine4."
    )
    grads: Annotated[str, checked(as_quantizer)] = Field(
        "",
        description="Rounding of all output gradients instead of the recipe's, e.g. "
        "affine8:stochastic.",
    )
    edge: Annotated[str, checked(parse_format)] = Field(
        "", description="Format of the first layer's input and the last layer's operands."
    )
    acc: Annotated[str, checked(as_accumulator)] = Field(
        "",
        description="Format or accumulator replacing the recipe's, as e6m9_chunk64 or native.",
    )
    torch_layers: str = Field(
        "",
        description="Layers that torch computes in float32: names or globs with commas, as "
        "head,blocks.1.*.",
    )
    layer_accs: Annotated[LayerAccs, Option("")] = Field(
        (),
        description="(layer, fprop, dgrad, wgrad) for layers with accumulators of their own, by "
        "name.",
    )


def layer_recipes(config: ArithmeticConfig, model: Module) -> dict[Any, Recipe]:
    """The recipes for `convert` of this model. Single layers come first, by `torch_layers`,
    `layer_accs` and `edge`; the rules of the method or of the recipe follow.

    With edge="e6m9" and the text of the recipe fp8_wang2018 this is the exception of Wang et al.
    2018 (arXiv 1812.08011), which the method of that name has: the images enter the first layer in
    16 bits, because 8 bits have too few levels for them, and the operands of the last layer have 16
    bits, because softmax is sensitive to its input; the accumulators stay those of the other
    layers. A layer named in `layer_accs` has its own, and those of `torch_layers` have none.

    Raises: ValueError: `edge` for a model without a `stem` or a `head`.
    """
    rules = _rules(config)
    globs = filter(None, map(str.strip, config.torch_layers.split(",")))
    torch_layers = dict.fromkeys(globs, TORCH)
    ends = _ends(model) if config.edge else {}
    accs: dict[str, dict[str, Any]] = {
        layer: dict(zip(PRODUCTS, map(as_accumulator, sums), strict=True))
        for layer, *sums in config.layer_accs
    }
    choice = selection("recipe", rules)
    places = {name: layer for layer in candidates(model) for name in layer.names}
    layers = {}
    for name in dict.fromkeys([*accs, *ends]):
        if any(fnmatchcase(name, glob) for glob in torch_layers):
            continue
        rule = choice.first_rule(places[name]) if name in places else None
        recipe = rule or rules["*"]
        operands = {field: getattr(recipe, field) for field in ends.get(name, ())}
        changes = {
            field: Quantizer(config.edge, old.rounding) for field, old in operands.items() if old
        }
        layers[name] = dataclasses.replace(_replaced(recipe, **changes), **accs.get(name, {}))
    return {**torch_layers, **layers, **rules}


def body_recipe(config: ArithmeticConfig) -> Recipe:
    """The recipe of the layers between the first and the last."""
    return _rules(config)["*"]


def _rules(config: ArithmeticConfig) -> dict[Any, Recipe]:
    """The method's policy, or the recipe for all layers, with the changes of `config`."""
    rules = method(config.recipe)
    if not isinstance(rules, Policy):
        return {"*": _changed(as_recipe(config.recipe), config)}
    unchanged = [key for key, recipe in rules.items() if recipe.is_torch or key in REDUCING]
    return {k: r if k in unchanged else _changed(r, config) for k, r in rules.items()}


def _changed(recipe: Recipe, config: ArithmeticConfig) -> Recipe:
    """`recipe` with the operands, gradients and sums of `config`."""
    if config.operands:
        operands = as_quantizer(config.operands)
        recipe = _replaced(recipe, input=operands, weight=operands)
    if config.grads:
        recipe = dataclasses.replace(recipe, grad_output=as_quantizer(config.grads))
    if not config.acc:
        return recipe
    acc = as_accumulator(config.acc)
    return dataclasses.replace(recipe, fprop=acc, dgrad=acc, wgrad=acc)


def _ends(model: Module) -> dict[str, tuple[str, ...]]:
    """The layers that `edge` is for, and the operands that it changes there. A network within the
    model, as a GAN's, has a first and a last layer too.

    Raises: ValueError: the model has no first or no last one.
    """
    operands = ("input", "weight", "bias", "grad_output")
    ends: dict[str, tuple[str, ...]] = {}
    for end, fields in {"stem": operands[:1], "head": operands}.items():
        names = [name for name, _ in model.named_modules() if name.rpartition(".")[2] == end]
        if not names:
            raise ValueError(
                f"edge: the model has no layer {end!r}; its first layer must be named 'stem' and "
                "its last 'head'. Leave edge away, or give a method's name, as fp8_wang2018"
            )
        ends |= dict.fromkeys(names, fields)
    return ends


def _replaced(recipe: Recipe, **changes: Any) -> Recipe:
    """`recipe` with other operands, without a running range where its input takes none, and without
    delayed scales, which are for formats of its own."""
    fmt = changes["input"].fmt if "input" in changes else None
    if fmt is not None and (not isinstance(fmt, AffineFormat) or fmt.axis is not None):
        changes["input_range"] = None
    if changes:
        changes["scaling"] = None
    return dataclasses.replace(recipe, **changes)
