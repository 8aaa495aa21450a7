"""The arithmetic of a run: the recipes of its layers."""

import dataclasses
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from torch.nn import Module

from lpkernels.arithmetic import (
    TORCH,
    Accumulator,
    Quantizer,
    Recipe,
    as_accumulator,
    as_quantizer,
)
from lpkernels.experiments.settings import Section, one_of, setting, settings
from lpkernels.formats import AffineFormat, parse_format
from lpkernels.nn.policies import policy as named_policy
from lpkernels.recipes import as_recipe
from lpkernels.rounding import ROUNDINGS


@dataclass(frozen=True)
class ArithmeticConfig(Section):
    """The recipe of every linear and convolution layer, and the exceptions from it."""

    TITLE: ClassVar[str] = "Arithmetic"

    recipe: str = setting(
        "fp32",
        "Arithmetic of all layers: a recipe's name, or its text, as Recipe(fprop='e6m9').",
        check=as_recipe,
    )
    policy: str = setting(
        "",
        "Arithmetic of the whole model instead of --recipe, with its first and last layer and its "
        "norms: a policy's name.",
        check=named_policy,
    )
    operands: str = setting(
        "",
        "Rounding of all inputs and weights instead of the recipe's, e.g. affine4.",
        check=as_quantizer,
    )
    grads: str = setting(
        "",
        "Rounding of all incoming gradients instead of the recipe's, e.g. affine8:stochastic.",
        check=as_quantizer,
    )
    edge: str = setting(
        "", "Format of the first input and the last layer's operands.", check=parse_format
    )
    acc: str = setting(
        "", "Format or accumulator replacing the recipe's, as e6m9 or native.", check=as_accumulator
    )
    chunk: int = setting(0, "With --acc: length of the inner sums, 0 for none.", least=0)
    acc_rounding: str = setting(
        "nearest_even", "With --acc: rounding of its sums.", check=one_of(*ROUNDINGS)
    )
    torch_layers: str = setting(
        "",
        "Layers that stay torch's own: names or globs with commas between, as head,blocks.1.*.",
    )
    layer_accs: tuple[tuple[str, str, str, str], ...] = setting(
        (),
        "(layer, fprop, dgrad, wgrad) for layers with accumulators of their own, by name.",
        option=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        others = [f.name for f in settings(type(self)) if getattr(self, f.name) != f.default]
        others = [name for name in others if name not in ("policy", "torch_layers")]
        if self.policy and others:
            raise ValueError(
                f"ArithmeticConfig: policy is the arithmetic of the whole model, got {self.policy} "
                f"with {', '.join(others)}; give a recipe instead, or the policy alone"
            )
        if not self.acc and (self.chunk or self.acc_rounding != "nearest_even"):
            raise ValueError(
                "ArithmeticConfig: chunk and acc_rounding belong to acc; give acc a format such as "
                "'e6m9'"
            )


def layer_recipes(config: ArithmeticConfig, model: Module) -> Recipe | dict[Any, Recipe]:
    """The recipes for `convert` of this model: one recipe, or with `edge` a mapping for `stem`,
    `head` and the rest.

    With edge="e6m9" and fp8_wang2018 this is the exception of Wang et al. 2018 (arXiv 1812.08011):
    the images enter the first layer in 16 bits, because 8 bits have too few levels for them, and
    the operands of the last layer have 16 bits, because softmax is sensitive to its input; the
    accumulators stay those of the other layers. A layer named in `layer_accs` has its own, and
    those of `torch_layers` have none.

    Raises: ValueError: `edge` for a model without a `stem` or a `head`.
    """
    kept = dict.fromkeys(filter(None, map(str.strip, config.torch_layers.split(","))), TORCH)
    if config.policy:
        return {**kept, **named_policy(config.policy)}
    body = body_recipe(config)
    if not config.edge and not config.layer_accs and not kept:
        return body
    operands = ("input", "weight", "bias", "grad_output")
    ends = {"stem": operands[:1], "head": operands} if config.edge else {}
    edges = {name: _replace_operands(body, config.edge, fields) for name, fields in ends.items()}
    recipes: dict[Any, Recipe] = {**kept}
    for layer, *sums in config.layer_accs:
        fprop, dgrad, wgrad = (as_accumulator(name) for name in sums)
        base = edges.get(layer.rpartition(".")[2], body)
        recipes[layer] = dataclasses.replace(base, fprop=fprop, dgrad=dgrad, wgrad=wgrad)
    names = [name for name, _ in model.named_modules()]
    for name, recipe in edges.items():
        # A network within the model, as a GAN's, has a first and a last layer too.
        globs = [g for g in (name, f"*.{name}") if any(fnmatchcase(each, g) for each in names)]
        if not globs:
            raise ValueError(
                f"edge: the model has no layer {name!r}; its first layer must be named 'stem' and "
                "its last 'head'. Leave edge away, or give a policy instead"
            )
        for glob in globs:
            recipes.setdefault(glob, recipe)
    return {**recipes, "*": body}


def body_recipe(config: ArithmeticConfig) -> Recipe:
    """The recipe of the layers between the first and the last."""
    if config.policy:
        return named_policy(config.policy)["*"]
    body = as_recipe(config.recipe)
    if config.operands:
        operands = as_quantizer(config.operands)
        body = _replaced(body, input=operands, weight=operands)
    if config.grads:
        body = dataclasses.replace(body, grad_output=as_quantizer(config.grads))
    if not config.acc:
        return body
    acc = as_accumulator(config.acc)
    if config.chunk or config.acc_rounding != "nearest_even":
        acc = Accumulator(config.acc, config.acc_rounding, chunk=config.chunk or None)
    return dataclasses.replace(body, fprop=acc, dgrad=acc, wgrad=acc)


def _replace_operands(recipe: Recipe, fmt: str, fields: tuple[str, ...]) -> Recipe:
    """`recipe` with the format `fmt` in each of `fields` that it quantises at all."""
    changes: dict[str, Any] = {}
    for name in fields:
        old = getattr(recipe, name)
        if old is not None:
            changes[name] = Quantizer(fmt, old.rounding)
    return _replaced(recipe, **changes)


def _replaced(recipe: Recipe, **changes: Any) -> Recipe:
    """`recipe` with these changes, without a running range where its input takes none, and without
    delayed scales, which are for formats of its own."""
    fmt = changes["input"].fmt if "input" in changes else None
    if fmt is not None and (not isinstance(fmt, AffineFormat) or fmt.axis is not None):
        changes["input_range"] = None
    if changes:
        changes["scaling"] = None
    return dataclasses.replace(recipe, **changes)
