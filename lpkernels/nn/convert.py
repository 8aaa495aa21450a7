"""Change how a model computes, in place: ``convert``, ``set_recipe``, ``revert``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from torch.nn import Module

from lpkernels.arithmetic import TORCH, Recipe
from lpkernels.arithmetic.precisions import checked_bits, checked_forward_bits, rounds
from lpkernels.formats import FormatLike
from lpkernels.nn._classes import (
    calling_class,
    change_class,
    emulated_class,
    restore,
    shielded_class,
    to_be_shielded,
)
from lpkernels.nn._fast_paths import set_fast_paths
from lpkernels.nn.calls import EmulatesCalls
from lpkernels.nn.emulated import Emulated, set_widths
from lpkernels.nn.layers import MultiheadAttention
from lpkernels.nn.policies import Policy, method
from lpkernels.nn.selecting import (
    Layer,
    Patterns,
    Recipes,
    Selection,
    check_model,
    layers_with_recipes,
    named,
    selection,
    warn_of_torchs_own,
)

M = TypeVar("M", bound=Module)


def convert(
    model: M,
    recipe: Recipes,
    *,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    functions: bool = True,
) -> M:
    """Make the layers of a model compute as the recipe says, and the products it calls, in place.

    It converts the layers that have a namesake in ``lpkernels.nn``, subclasses that inherit
    ``forward``, and transformers' Conv1D; norms and Softmax, whose sums are no products, only
    where a pattern is their class. Only the class of a layer changes: its object stays, with
    parameters, hooks, parametrizations and whatever refers to it. A layer that is converted already
    gets the new recipe. The model itself may be such a layer.

    With ``functions``, a module with a forward of its own (a class not of torch.nn) computes the
    products that it calls by its recipe: docs/layers.md, "Products called as functions", lists the
    functions and says what stays torch's own. A call belongs to the innermost such module, which is
    selected as a layer is; a module that is not selected keeps its products torch's own, also
    inside one that is. Float64 operands of such calls are refused with a RuntimeError.
    ``lpkernels.nn.summary`` shows which products of a model are emulated.

    The recipe of torch.nn.MultiheadAttention is that of out_proj's product and of the two products
    between its projections too, unless a key before is ``FUNCTIONS`` or ``"<name>.attention"``.

    Args:
        model: any module.
        recipe: the name of a published method, which treats norms, embeddings, the first and the
            last layer as its source does (``lpkernels.policy(name)``); or a Recipe, for every layer
            alike; or a mapping {pattern: Recipe or its name}: the first pattern that matches a
            layer gives its recipe, and a layer that none matches stays as it is. A name without a
            policy, and any name where the model itself is one layer, is the recipe of every layer.
        include: only these layers: a pattern or several; None is all.
        exclude: never these: a pattern or several.
        functions: whether products called as functions are emulated too.

    A pattern is a glob over the layer's full name (``"layer1.*"``; ``*`` also spans dots; the
    model's own name is ""), a class, one of the places that ``lpkernels.nn.FIRST`` tells of, or a
    function of (name, module) that returns a bool. One of several names of a layer is enough.

    Returns: the model.

    Warns:
        lpkernels.nn.NotEmulatedWarning: layers stay torch's own though nobody left them out, or no
            product is emulated.

    Raises:
        TypeError: model is no Module, functions no bool, a recipe or pattern of the wrong type, a
            class that cannot be derived from.
        ValueError: nothing matched; a glob that fits the name of no module; a pattern that matches
            modules but none that can be emulated (in a mapping, unless they are excluded or get
            torch's own recipe); a key of the mapping behind a wider one; a traced graph with
            products; a format along an axis that a layer's tensor lacks; an unknown name of a
            recipe or policy. Nothing is converted then.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> lp.convert(model, lp.recipe("fp8_wang2018"), exclude=lp.nn.LAST)
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=True, recipe=fp8_wang2018)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=2, bias=True)
    )
    """
    check_model("convert", model)
    if not isinstance(functions, bool):
        raise TypeError(f"convert: functions must be True or False, got {functions!r}")
    recipe = method(recipe, model)
    choice = selection("convert", recipe, include, exclude)
    pairs = layers_with_recipes(choice, model, functions)
    able = [(layer, layer_recipe) for layer, layer_recipe in pairs if not layer.why_not]
    of_all = isinstance(recipe, Policy) or not isinstance(recipe, Mapping)
    warn_of_torchs_own(choice, pairs, whole=of_all and include is None and exclude is None)
    with _all_or_nothing(model):
        for layer, layer_recipe in able:
            _change_class(layer.module, calling_class if layer.calls else emulated_class)
            cast(Emulated, layer.module).recipe = layer_recipe
        _set_attention(able, choice)
        if any(isinstance(module, EmulatesCalls) for module in model.modules()):
            # Where calls are emulated, the modules that stay as they are keep their own products.
            for module in to_be_shielded(model):
                _change_class(module, shielded_class)
    set_fast_paths(model)
    return model


def set_recipe(model: M, recipe: Recipes) -> M:
    """Give the layers of ``lpkernels.nn`` in a model another recipe, in place.

    Args:
        model: any module.
        recipe: as in ``convert``; with a mapping, a layer that no pattern matches keeps its recipe.

    Returns: the model.

    Raises:
        TypeError, ValueError: as in ``convert``, also for a graph traced from a converted model. No
            recipe is changed then.

    >>> model = lp.convert(torch.nn.Linear(4, 8), "fp16_mixed")
    >>> lp.set_recipe(model, "bf16_mixed")
    Linear(in_features=4, out_features=8, bias=True, recipe=bf16_mixed)
    """
    check_model("set_recipe", model)
    choice = selection("set_recipe", method(recipe, model))
    pairs = layers_with_recipes(choice, model, functions=True)
    for layer, layer_recipe in pairs:
        cast(Emulated, layer.module).recipe = layer_recipe
    _set_attention(pairs, choice)
    return model


def set_precision(
    model: M,
    forward_bits: int | tuple[int | None, int | None] | None,
    backward_bits: int | None,
    *,
    formats: Mapping[int, FormatLike] | None = None,
) -> M:
    """Give the quantizers of the layers of ``lpkernels.nn`` in a model other widths, in place.

    Layers without a quantizer that is to change stay as they are.

    Args:
        model: any module.
        forward_bits, backward_bits, formats: as in ``lpkernels.nn.Linear.set_precision``.

    Returns: the model.

    Raises:
        TypeError, ValueError: model is no Module; no layer rounds what is to be changed; as there.
            No layer is changed then.

    >>> model = lp.convert(torch.nn.Linear(4, 8), "cpt_fu2021")
    >>> model.precision
    Precision(forward=8, backward=8)
    >>> lp.set_precision(model, 4, 8).precision
    Precision(forward=4, backward=8)
    """
    check_model("set_precision", model)
    forward = checked_forward_bits(forward_bits)
    backward = checked_bits("backward_bits", backward_bits)
    able = {
        f"{type(layer).__name__} {names[0]!r}": layer
        for names, layer in named(model)
        if isinstance(layer, Emulated) and rounds(layer.recipe, forward, backward)
    }
    if not able:
        raise ValueError(
            "set_precision: the model has no layer of lpkernels.nn whose recipe rounds what is to "
            f"be changed (forward_bits={forward_bits!r}, backward_bits={backward_bits!r}); "
            "lp.convert gives layers a recipe"
        )
    set_widths(able, forward, backward, formats)
    return model


def revert(model: M) -> M:
    """Turn every layer of ``lpkernels.nn`` in a model back into torch.nn's, in place.

    A converted module gets its own class back; a module built from ``lpkernels.nn`` gets the class
    of torch.nn. A class that the user derived from one of ``lpkernels.nn`` stays, with the recipe
    "fp32", torch's own arithmetic.

    Args:
        model: any module.

    Returns: the model.

    Raises: TypeError: model is no Module.

    >>> layer = lp.convert(torch.nn.Linear(4, 8), "fp16_mixed")
    >>> lp.revert(layer)
    Linear(in_features=4, out_features=8, bias=True)
    """
    check_model("revert", model)
    for module in model.modules():
        if not restore(module):
            cast(Emulated, module).recipe = TORCH
    set_fast_paths(model)
    return model


def _set_attention(pairs: list[tuple[Layer, Recipe]], choice: Selection) -> None:
    """Gives the attention in the chosen layers the recipe of another rule, if there is one."""
    for layer, layer_recipe in pairs:
        if isinstance(layer.module, MultiheadAttention):
            inner = choice.attention_of(layer)
            if inner is not None and inner != layer_recipe:
                layer.module.attention_recipe = inner


@contextmanager
def _all_or_nothing(model: Module) -> Iterator[None]:
    """After an error every module has the class and the attributes it had."""
    before = []
    for module in model.modules():
        # Buffers and modules may join their dicts.
        dicts = {"_buffers": dict(module._buffers), "_modules": dict(module._modules)}
        before.append((module, type(module), vars(module) | dicts))
    try:
        yield
    except BaseException:
        for module, cls, attributes in before:
            module.__class__ = cls
            vars(module).clear()
            vars(module).update(attributes)
        raise


def _change_class(module: Module, maker: Callable[[Any], Any]) -> None:
    try:
        change_class(module, maker)
    except TypeError as error:
        raise TypeError(
            f"convert: the class {type(module).__name__} cannot be derived from: {error}. Nothing "
            "was converted; exclude it, and with functions=False if it must stay as it is"
        ) from error
