"""Named policies: which layer of a model has which recipe, each with its source and departures.

A recipe is the arithmetic of one layer, a policy the arithmetic of a whole model. Neither reaches
beyond layers: loss scaling, master weights and the rounding of the update belong to the training
loop, and the loss is torch's own, in float32.

A file of a policy is JSON, with names and texts alone: kind, schema, the version that wrote it, and
rules in order, each with the layers that it means, by name, class or position, and the fields of
their recipe that differ from torch's own arithmetic.
"""

from __future__ import annotations

import inspect
import json
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from lpkernels import _build, schemas
from lpkernels._table import Tabular, TextTable
from lpkernels.arithmetic import (
    NAMED_ACCUMULATORS,
    PRODUCTS,
    QUANTIZERS,
    TORCH,
    UNITS,
    Recipe,
    accumulator,
)
from lpkernels.arithmetic.text import field_names
from lpkernels.formats import BlockFormat
from lpkernels.formats.elsewhere import nearest
from lpkernels.nn._classes import kind_of, torch_base
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.layers import MultiheadAttention
from lpkernels.nn.selecting import (
    FIRST,
    FUNCTIONS,
    GATES,
    LAST,
    NO_ARITHMETIC,
    Pattern,
    Position,
    Recipes,
    attention_names,
    candidates,
    checked,
    escaped,
    show,
)
from lpkernels.recipes import as_recipe, recipe, recipes
from lpkernels.recipes import describe as describe_recipe

__all__ = ["Policy", "describe", "load_policy", "policies", "policy", "save_policy"]

_KIND = "policy"

_FORM = "expected a policy that lp.save_policy wrote"
_GLOB = "write a glob over the names of the layers that are meant, or save the converted model"
_LAYER = '{"name": "layer1.*"}, {"class": "LayerNorm"} or {"position": "LAST"}'

#: Layers that reduce: mean and variance, or the sum of exponentials.
REDUCING: tuple[type[Module], ...] = (
    *(getattr(torch.nn, f"BatchNorm{n}d") for n in (1, 2, 3)),
    torch.nn.LayerNorm,
    torch.nn.GroupNorm,
    torch.nn.RMSNorm,
    torch.nn.Softmax,
)
# Layers whose weight is (in_channels, out_channels, ...).
_TRANSPOSED = [getattr(torch.nn, f"ConvTranspose{n}d") for n in (1, 2, 3)]
_CONVOLUTIONS = [*(getattr(torch.nn, f"Conv{n}d") for n in (1, 2, 3)), *_TRANSPOSED]
# Layers that most policies leave to torch. This is written out, so that it can be edited, and for
# models that were converted otherwise before.
_OTHERS: dict[Pattern, Recipe] = dict.fromkeys((torch.nn.Embedding, *REDUCING), TORCH)


class Policy(UserDict[Pattern, Recipe], Tabular):
    """The recipes of a whole model, {pattern: Recipe} in order: the first key that matches wins.

    It is a mapping for ``convert`` and ``set_recipe``, and is edited like a dict. ``policy[key] =
    recipe`` changes the recipe of a key it has; a new key belongs before "*", and ``{key: recipe} |
    policy`` puts it first. ``del policy[key]`` leaves the layers of that key to the keys behind it.
    ``print`` shows a table: a line for each key, "-" where a tensor stays as it is and "native"
    where sums are torch's own, in float32.

    In a model a glob must fit the name of some module; a class or a function may match nothing.
    The arguments, ``dict`` and ``kwargs``, are the items, as of a dict.

    Raises:
        TypeError: a key that is no pattern, a value that is no Recipe and no name of one.
        ValueError: an unknown recipe name.
    """

    def __setitem__(self, key: Pattern, recipe: Recipe | str) -> None:
        self.data[checked("Policy: a key", key)] = as_recipe(recipe)

    def __ior__(self, other: Any) -> Policy:  # type: ignore[override, misc]
        self.update(other)
        return self

    def __repr__(self) -> str:
        return str(self._table())

    def _table(self) -> TextTable:
        others = [x for x in field_names(Recipe) if x not in (*QUANTIZERS, *PRODUCTS)]
        fields = [
            name
            for name in (*QUANTIZERS, *PRODUCTS, *others)
            if name in PRODUCTS
            or any(getattr(r, name) != getattr(TORCH, name) for r in self.values())
        ]
        lines = [("layers", *fields)]
        lines += [(show([key]), *_cells(recipe, fields)) for key, recipe in self.items()]
        return TextTable(lines, range(len(lines[0])), rule=True)


def _cells(recipe: Recipe, fields: list[str]) -> list[str]:
    values = [getattr(recipe, name) for name in fields]
    return ["-" if value is None else _short(value) for value in values]


def _short(value: Any) -> str:
    """The text of a value, or an accumulator's name where that is shorter."""
    names = [name for name in NAMED_ACCUMULATORS if accumulator(name) == value]
    return min([str(value), *names], key=len)


def policies() -> list[str]:
    """The names :func:`policy` knows; the recipe of a policy's layers has the policy's name."""
    return [*POLICIES, *SCALED]


def policy(name: str) -> Policy:
    """The policy called `name`, a mapping that ``convert`` takes: print it, edit it.

    ``lpkernels.nn.policies.describe(name)`` tells its source and its departures from the source. A
    policy selects modules. A product that a forward calls as a function has the recipe of the
    calling module. Norms, softmax and activations called as functions, the softmax within
    attention, additions and losses stay torch's own, in float32.

    Raises:  TypeError: not a str.  ValueError: no such policy.

    >>> policy = lp.policy("fp8_wang2018")
    >>> print(policy["*"].input, policy["*"].fprop)
    e5m2 e6m9_chunk64
    >>> policy["*"] = "hfp8_sun2019"
    """
    _check_name(name)
    return POLICIES[name]() if name in POLICIES else _scaled(name)


def method(value: Recipes, model: Module | None = None) -> Recipes:
    """What ``convert`` takes as a recipe, with the policy in place of a method's name.

    A name without a policy, and any name where the model itself is one layer, is the recipe of
    every layer, as a Recipe is.
    """
    if not isinstance(value, str) or value not in policies():
        return value
    alone = model is not None and kind_of(model).emulating is not None
    return recipe(value) if alone else policy(value)


def describe(name: str) -> str:
    """The description of the policy called `name`: recipes, source, and every departure from it.

    Raises:  TypeError: not a str.  ValueError: no such policy.
    """
    _check_name(name)
    if name in POLICIES:
        return inspect.getdoc(POLICIES[name]) or ""
    convolutions = _NO_CONVOLUTIONS if _runs_along_k(name) else ""
    return f"{describe_recipe(name)}\n\n{_APART}{convolutions}{SCALED[name]}"


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"policy: the name must be a str, got {name!r} ({type(name).__name__})")
    if name in policies():
        return
    if name in [*recipes(), *UNITS]:
        raise ValueError(
            f"policy: {name!r} is a recipe without a policy, for every layer alike: "
            f"lp.recipe({name!r}) or lp.convert(model, {name!r})"
        )
    near = nearest(name, policies(), "lp.policies() lists all")
    raise ValueError(f"policy: unknown name {name!r}; expected one of {near}")


def fp16_mixed() -> Policy:
    """All layers in fp16, their sums in fp32; norms and softmax read and write fp16, compute fp32.

    Source: Micikevicius et al. 2018, "Mixed precision training", arXiv 1710.03740, section 3.3:
    products of vectors are summed in fp32 and rounded to fp16 when written; reductions (batch
    norm's statistics, softmax) are in fp32, in layers that read and write fp16; point-wise
    operations may be either. Our reading: layer, group and RMS norm are as batch norm; the
    parameters of norms and their gradients stay fp32; no layer is kept apart, and an embedding is
    rounded as any weight. Differs: point-wise operations, losses and softmax that is no module stay
    fp32, and the next layer rounds what it reads. Master weights and loss scaling are the training
    loop's.
    """
    return _mixed("fp16_mixed", "fp16")


def bf16_mixed() -> Policy:
    """All layers in bf16, their sums in fp32; norms and softmax read and write bf16, compute fp32.

    Source: Kalamkar et al. 2019, "A study of BFLOAT16 for deep learning training", arXiv
    1905.12322, for the layers. Our reading: norms, softmax and the rest are as in fp16_mixed, with
    bf16 in place of fp16. Needs no loss scaling; master weights are the training loop's.
    """
    return _mixed("bf16_mixed", "bf16")


def fp8_wang2018() -> Policy:
    """FP8 operands, except in e6m9 the input of the first layer and the operands of the last one.

    Source: Wang et al. 2018, "Training deep neural networks with 8-bit floating point numbers",
    arXiv 1812.08011. The images enter the first layer in 16 bits, because 8 bits have too few
    levels for them; the operands of the last layer have 16 bits, because softmax is sensitive to
    its input. All sums, of these two as well, are in e6m9 by chunks of 64. Our reading: a model's
    single layer is its last; an embedding, which multiplies nothing, stays fp32. Norms, softmax,
    activations and losses stay torch's own, fp32. Weight updates rounded stochastically to e6m9 and
    loss scaling are the training loop's. Else as the recipe fp8_wang2018.
    """
    body = recipe("fp8_wang2018")
    first = _with(body, input="e6m9")
    return _with_ends(_with(first, weight="e6m9", grad_output="e6m9"), first, body)


def hfp8_sun2019() -> Policy:
    """Hybrid FP8 operands; the first and the last layer have 16-bit operands.

    Source: Sun et al. 2019, "Hybrid 8-bit floating point (HFP8) training and inference for deep
    neural networks", NeurIPS, which keeps the first and last layer apart. Our reading: these two
    have the operands fp_6_9_0 and gradients fp_6_9_0_backward, 16-bit formats that reserve no code
    as the 8-bit ones do (named as in Lee, Sharma, Aiken 2023, arXiv 2301.13464), and the sums of
    the other layers, e6m9 by chunks of 64; an embedding, which multiplies nothing, stays fp32.
    Norms, softmax, activations and losses stay torch's own, fp32. Loss scaling and weight updates
    are the training loop's. Else as the recipe hfp8_sun2019.
    """
    body = recipe("hfp8_sun2019")
    end = _with(body, input="fp_6_9_0", weight="fp_6_9_0", grad_output="fp_6_9_0_backward")
    return _with_ends(end, end, body)


def cpt_fu2021() -> Policy:
    """Integer quantizers in all layers but the last, to be put on a schedule; all sums in fp32.

    Source: Fu et al. 2021, "CPT: Efficient deep neural network training via cyclic precision",
    arXiv 2101.09868: in its networks for CIFAR every convolution is quantised, the first and the
    1x1 shortcuts among them, and the last linear layer is fp32, as norms, activations and sums are.
    Our reading: the last layer is the model's last one with products, of whatever kind; transposed
    convolutions have a range for each slice of axis 1, their output channels, those at the same
    place in all groups together; an embedding, which multiplies nothing, stays fp32. In its
    networks for ImageNet the first convolution and the shortcuts stay fp32 too: put their names
    before. Attention, recurrent layers and products called as functions take the range of each
    tensor in evaluation as well, not a running one. Else as the recipe cpt_fu2021.
    """
    body = recipe("cpt_fu2021")
    by_channel = _with(body, weight="affine8_axis1")
    transposed = dict.fromkeys(_TRANSPOSED, by_channel)
    return Policy({LAST: TORCH, **_OTHERS, **transposed, "*": body})


#: By name; `SCALED` has those of scaled formats.
POLICIES: dict[str, Callable[[], Policy]] = {
    build.__name__: build
    for build in (fp16_mixed, bf16_mixed, fp8_wang2018, hfp8_sun2019, cpt_fu2021)
}


def _mixed(name: str, fmt: str) -> Policy:
    norm = Recipe(input=fmt, output=fmt, grad_output=fmt, grad_input=fmt)
    reducing: dict[Pattern, Recipe] = dict.fromkeys(REDUCING, norm)
    return Policy({**reducing, "*": recipe(name)})


def _with_ends(last: Recipe, first: Recipe, body: Recipe) -> Policy:
    # LAST comes first: in a single layer all operands are 16-bit, among them what enters it.
    return Policy({LAST: last, FIRST: first, **_OTHERS, "*": body})


def _with(recipe: Recipe, **formats: Any) -> Recipe:
    return replace(recipe, **formats)


_HEAD = " The last layer, a language model's head, stays torch's own too, as in the source."
#: The policies of scaled formats: what each says behind the text of its recipe. Recipes that are
#: formats alone keep no layer with products apart.
SCALED = {
    "mxfp8": _HEAD,
    "mxfp8_ocp": "",
    "mxfp6": "",
    "mxfp4": "",
    "mxfp4_sr": "",
    "nvfp4": "",
    "nvfp4_46": _HEAD,
    "nvfp4_row": _HEAD,
    "nvfp4_46_rl": _HEAD,
    "nvfp4_46_pretraining": _HEAD,
    "nvfp4_pretraining": _HEAD
    + " The source keeps about 15% of the linear layers in bf16 besides, most of them at the end, "
    "and in a model of 12 billion parameters the first two and the last eight blocks: put their "
    'names before, as `{"blocks.0.*": "fp32"} | policy`.',
    "deepseek_v3": _HEAD + " So do the gates that choose experts (lp.nn.GATES).",
    "te_block": _HEAD,
    "te_current": _HEAD,
    "te_delayed": _HEAD
    + " torch.nn.MultiheadAttention keeps no scales for its projections and stays torch's own.",
    "fp8_rowwise": "",
    "int8_training": "",
}
_APART = (
    "Our reading: embeddings, norms, softmax and the products that a forward calls as functions, "
    "attention's among them, stay torch's own, float32; so do the products between the projections "
    "of torch.nn.MultiheadAttention, whose projections are linear layers."
)
_NO_CONVOLUTIONS = (
    " Convolutions stay torch's own: no blocks run along the sums of overlapping windows."
)


def _scaled(name: str) -> Policy:
    body = recipe(name)
    head: list[Pattern] = [LAST] if _HEAD in SCALED[name] else []
    gates: list[Pattern] = [GATES] if "GATES" in SCALED[name] else []
    # Projections have no place for scales of their own.
    lacking: list[Pattern] = [torch.nn.MultiheadAttention] if body.scaling else []
    lacking += _CONVOLUTIONS if _runs_along_k(name) else ()
    first = {**dict.fromkeys([*head, *gates], TORCH), FUNCTIONS: NO_ARITHMETIC, **_OTHERS}
    return Policy({**first, **dict.fromkeys(lacking, NO_ARITHMETIC), "*": body})


def _runs_along_k(name: str) -> bool:
    fmt = getattr(recipe(name).input, "fmt", None)
    return isinstance(fmt, BlockFormat) and fmt.axis == "k"


def save_policy(what: Recipes | Module, path: str | Path) -> None:
    """Write the recipes of a whole model to a JSON file, which `load_policy` reads.

    Args:
        what: a recipe argument of ``convert`` for a whole model: the name of a published method, a
            Recipe, or a mapping with keys that are globs, classes of torch.nn,
            ``lpkernels.nn.FIRST``, ``LAST``, ``GATES`` or ``FUNCTIONS``. Or a converted model: the
            file then has the names of its modules with their present recipes, but no weights, and
            no table of formats that `set_precision` was given.
        path: the file, which is replaced.

    Raises:
        TypeError: something else; a key that is a function, or a class that is not torch.nn's. A
            file holds no code: use a glob.
        ValueError: an unknown name of a recipe or policy; a model without a converted module. The
            file is as it was then.
    """
    text = json.dumps(policy_values(what), indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")


def load_policy(path: str | Path) -> Policy:
    """The policy in the file at `path`, which `save_policy` wrote: ``lpkernels.convert`` takes it.

    Nothing that the file names is imported or called. A name that fits no module of a model is an
    error of ``convert``.

    Raises:
        FileNotFoundError: no such file.
        TypeError, ValueError: no policy, a policy of another schema, a class that torch.nn does not
            have, a recipe that this version cannot read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lp.save_policy(lp.convert(torch.nn.Linear(4, 8), "fp16_mixed"), folder + "/policy.json")
    ...     print(lp.load_policy(folder + "/policy.json")[""].input)
    ...
    e5m10
    """
    text = Path(path).read_bytes()
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: {_FORM}, in JSON: {error}") from error
    return policy_of(values, str(path))


def policy_values(what: Recipes | Module) -> dict[str, Any]:
    """The contents of a file of this policy, as plain values; errors as in `save_policy`."""
    recipes: Any = _of_model(what) if isinstance(what, Module) else method(what)
    policy = Policy(recipes if isinstance(recipes, Mapping) else {"*": recipes})
    rules = [
        {"layers": [_layer(pattern) for pattern, _ in pairs], "recipe": _fields(recipe)}
        for recipe, pairs in groupby(policy.items(), key=lambda pair: pair[1])
    ]
    version = _build.version()
    return {"kind": _KIND, "schema": schemas.SCHEMA, "version": version, "rules": rules}


def policy_of(values: Any, where: str) -> Policy:
    """The policy of a file's contents; where names the file. Errors as in `load_policy`."""
    if not isinstance(values, dict):
        raise ValueError(f"{where}: {_FORM}, got {type(values).__name__}")
    if values.get("kind") != _KIND:
        raise ValueError(f"{where}: {_FORM}, got a file of kind {values.get('kind')!r}")
    rules = schemas.check(values, where).get("rules")
    if not isinstance(rules, list):
        raise ValueError(f"{where}: expected a list of rules, got {rules!r}")
    policy = Policy()
    for number, rule in enumerate(rules, start=1):
        try:
            if not isinstance(rule, dict) or rule.keys() != {"layers", "recipe"}:
                raise ValueError(f"expected layers and recipe, got {rule!r}")
            recipe = Recipe.from_dict(rule["recipe"])
            if not isinstance(rule["layers"], list):
                raise ValueError(f"expected a list of layers, got {rule['layers']!r}")
            for pattern in map(_pattern, rule["layers"]):
                if pattern in policy:
                    raise ValueError(f"{show([pattern])} stands in a rule before; write it once")
                policy[pattern] = recipe
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: rule {number}: {error}") from error
    return policy


def _of_model(model: Module) -> dict[Pattern, Recipe]:
    """A key for each converted module, by its first name; modules of one recipe together."""
    layers = [layer for layer in candidates(model, False) if isinstance(layer.module, Emulated)]
    converted: list[tuple[str, Any]] = [(layer.names[0], layer.module) for layer in layers]
    if not converted:
        raise ValueError(
            f"the policy of a {type(model).__name__}: it has no converted module; lp.convert makes "
            "them"
        )
    order = list(dict.fromkeys(module.recipe for _, module in converted))
    converted.sort(key=lambda pair: order.index(pair[1].recipe))
    # The first match wins, and the name of a layer means its attention too.
    attention: dict[Pattern, Recipe] = {
        escaped(attention_names([name])[0]): x.attention_recipe
        for name, x in converted
        if isinstance(x, MultiheadAttention) and x.attention_recipe != x.recipe
    }
    # `convert` selects a norm by its name only where some key is its class.
    norms = [torch_base(type(layer.module)) for layer in layers if layer.by_class_alone]
    keys: dict[Pattern, Recipe] = {escaped(name): x.recipe for name, x in converted}
    return attention | keys | dict.fromkeys(norms, TORCH)


def _layer(pattern: Pattern) -> dict[str, str]:
    if isinstance(pattern, Position):
        return {"position": pattern.name}
    if isinstance(pattern, str):
        return {"name": pattern}
    name = show([pattern])
    if not isinstance(pattern, type):
        raise TypeError(
            f"save_policy: a key is the function {name!r}, and a policy file holds no code; {_GLOB}"
        )
    if _torch_class(name) is not pattern:
        raise TypeError(
            f"save_policy: a key is the class {name!r}, which is not torch.nn's; {_GLOB}"
        )
    return {"class": name}


def _pattern(layer: Any) -> Pattern:
    (kind, text), *more = layer.items() if isinstance(layer, dict) and layer else [("", None)]
    if more or not isinstance(text, str) or kind not in ("name", "class", "position"):
        raise ValueError(f"expected a layer like {_LAYER}, got {layer!r}")
    if kind == "name":
        return text
    pattern = _torch_class(text) if kind == "class" else Position.__members__.get(text)
    if pattern is None:
        of_kind = "a class of torch.nn" if kind == "class" else " or ".join(Position.__members__)
        raise ValueError(f"expected {of_kind}, got {text!r}")
    return pattern


def _torch_class(name: str) -> type[Module] | None:
    """torch.nn's class of that name, looked up among the modules that are imported already."""
    cls = vars(torch.nn).get(name)
    return cls if isinstance(cls, type) and issubclass(cls, Module) else None


def _fields(recipe: Recipe) -> dict[str, Any]:
    default = TORCH.to_dict()
    return {name: value for name, value in recipe.to_dict().items() if value != default[name]}
