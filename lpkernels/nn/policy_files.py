"""Policies in files: the recipes of a whole model as JSON, which holds names and texts alone.

A file is one object: kind, schema, the version that wrote it, and rules in order, each with the
layers that it means, by name, class or position, and the fields of their recipe that differ from
torch's own arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from lpkernels import _build, schemas
from lpkernels.arithmetic import TORCH, Recipe
from lpkernels.nn._classes import torch_base
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.layers import MultiheadAttention
from lpkernels.nn.policies import Policy, method
from lpkernels.nn.selecting import (
    Pattern,
    Position,
    Recipes,
    attention_names,
    candidates,
    escaped,
    show,
)

KIND = "policy"

_FORM = "expected a policy that lp.save_policy wrote"
_GLOB = "write a glob over the names of the layers that are meant, or save the converted model"
_LAYER = '{"name": "layer1.*"}, {"class": "LayerNorm"} or {"position": "LAST"}'


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
    return {"kind": KIND, "schema": schemas.SCHEMA, "version": version, "rules": rules}


def policy_of(values: Any, where: str) -> Policy:
    """The policy of a file's contents; where names the file. Errors as in `load_policy`."""
    if not isinstance(values, dict):
        raise ValueError(f"{where}: {_FORM}, got {type(values).__name__}")
    if values.get("kind") != KIND:
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
