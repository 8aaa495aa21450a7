"""The classes that emulate torch.nn's, and the change of a module's class in place.

A module changes its arithmetic by changing its class, as torch.nn.utils.parametrize and torch.nn's
lazy modules do: the object, its parameters, buffers, hooks and every reference to it stay.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrize

from lpkernels.arithmetic import TORCH
from lpkernels.nn.calls import EmulatesCalls, is_users, wrapped_forward
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.layers import LAYERS, TransposedLinear
from lpkernels.nn.torch_functions import show_to_compiler

# The methods in which a layer computes.
_FORWARDS = ("forward", "_conv_forward")
_SETTERS = ("set_precision", "set_accumulator")
_REPLACED = "its forward was replaced on the object"
# Their forward is a graph, which no class can change.
TRACED = torch.jit.ScriptModule | torch.fx.GraphModule
_TORCH = {emulated: plain for plain, emulated in LAYERS.items()}


def _current_class(module: torch.nn.Module) -> Any:
    """The module's class, without the one that torch.nn.utils.parametrize puts in front of it."""
    cls = type(module)
    return cls.__bases__[0] if parametrize.is_parametrized(module) else cls


def plain_class(module: torch.nn.Module) -> Any:
    """The class that decides what a module is: without parametrizations, and without a shield."""
    cls = _current_class(module)
    return vars(cls)["_original"] if vars(cls).get("_shields") else cls


class Kind(NamedTuple):
    """How `convert` treats a module, emulated or not.

    Attributes:
        emulating: the class that emulates the layer of torch.nn that its class is or derives from;
            None of every other module.
        why_not: why the layer cannot be emulated, "" if it can; None if there is no layer.
        multiplies: whether it is a layer with products; an embedding has none.
        by_class_alone: whether it is a norm or softmax, converted only by its class.
        calls_functions: whether its forward is a user's own, which may call products as functions.
    """

    emulating: Any
    why_not: str | None
    multiplies: bool
    by_class_alone: bool
    calls_functions: bool


def kind_of(module: torch.nn.Module) -> Kind:
    """What the module is by its class, without parametrizations and shields."""
    cls = plain_class(module)
    plain = torch_base(cls)
    is_transposed = (cls.__module__, cls.__name__) == ("transformers.pytorch_utils", "Conv1D")
    emulating = TransposedLinear if is_transposed else LAYERS.get(plain)
    # MultiheadAttention's out_proj only holds parameters; it is never called.
    is_called = not issubclass(cls, NonDynamicallyQuantizableLinear)
    forwards = [getattr(cls, name, None) for name in _FORWARDS]
    if issubclass(cls, Emulated) or is_transposed:
        why_not: str | None = ""
    elif plain is None or not is_called:
        why_not = None
    elif forwards != [getattr(plain, name, None) for name in _FORWARDS]:
        why_not = f"{cls.__name__} has its own forward"
    else:
        why_not = why_not_calls(module)
    return Kind(
        emulating,
        why_not,
        emulating is not None and is_called and emulating._has_products,
        emulating is not None and emulating._by_class_alone,
        not (issubclass(cls, Emulated | TRACED) or is_transposed) and is_users(forwards),
    )


def why_not_calls(module: torch.nn.Module) -> str:
    """Why the calls of a module with a forward of its own cannot be emulated; "" if they can."""
    return _REPLACED if "forward" in vars(module) else ""


def to_be_shielded(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that stay as they are in a model but could call a product inside another module's
    forward."""
    modules = list(model.modules())
    lists = [m for m in modules if isinstance(m, parametrize.ParametrizationList)]
    inside = {module for modules_of_one in lists for module in modules_of_one}
    return [module for module in modules if _may_call(module, module in inside)]


def _may_call(module: torch.nn.Module, parametrizes: bool) -> bool:
    cls, kind = _current_class(module), kind_of(module)
    if issubclass(cls, Emulated | TRACED) or vars(cls).get("_shields") or why_not_calls(module):
        return False
    is_layer = kind.emulating is not None and not kind.by_class_alone
    return parametrizes or kind.calls_functions or is_layer


def change_class(module: torch.nn.Module, maker: Callable[[Any], Any]) -> None:
    """Give the module the class that `emulated_class`, `calling_class` or `shielded_class` makes of
    its own; a module that is emulated already stays."""
    cls = plain_class(module)
    if not issubclass(cls, Emulated):
        _set_class(module, maker(cls))


def restore(module: torch.nn.Module) -> bool:
    """Give a module its own class back; False for a user's subclass of lpkernels.nn's."""
    cls = _current_class(module)
    original = _TORCH.get(cls) or vars(cls).get("_original")
    if original is None:
        return not issubclass(cls, Emulated)
    if isinstance(module, Emulated):
        module._forget()
    _set_class(module, original)
    return True


@functools.cache
def emulated_class(original: Any) -> Any:
    """The class in lpkernels.nn, or for a subclass of torch's layer one that is both."""
    if original in LAYERS:
        return LAYERS[original]
    plain = torch_base(original)
    # The original comes first: its attributes win, and its forward is the inherited one unless it
    # is Conv1D's.
    bases = (TransposedLinear, original) if plain is None else (original, LAYERS[plain])
    return _derived("emulated_class", original, bases)


@functools.cache
def calling_class(original: Any) -> Any:
    """original with a forward that emulates, by the module's recipe, the products that it calls. If
    original has a set_precision of its own, that stays."""
    show_to_compiler()
    forward = wrapped_forward(original, lambda module: module._arithmetic)
    setters = {name: getattr(original, name) for name in _SETTERS if hasattr(original, name)}
    return _derived(
        "calling_class", original, (EmulatesCalls, original), forward=forward, **setters
    )


@functools.cache
def shielded_class(original: Any) -> Any:
    """original with a forward whose products stay torch's own, whoever calls it."""
    forward = wrapped_forward(original, lambda module: TORCH)
    return _derived("shielded_class", original, (original,), forward=forward, _shields=True)


def _plain_init(original: Any) -> Any:
    """original's __init__, after which a module built anew has torch's own arithmetic."""

    @functools.wraps(original.__init__)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original.__init__(self, *args, **kwargs)
        self.recipe = TORCH

    return __init__


def _derived(maker: str, original: Any, bases: tuple[type, ...], **attributes: Any) -> Any:
    """A class with the name of the original; it remembers the original, and the function that made
    it."""
    namespace: dict[str, Any] = {
        "__module__": original.__module__,
        "__doc__": original.__doc__,
        "__reduce_ex__": _reduce,
        "_original": original,
        "_maker": maker,
        **attributes,
    }
    if any(issubclass(base, Emulated) for base in bases):
        namespace["__init__"] = _plain_init(original)
    if issubclass(original, LazyModuleMixin) and original.cls_to_become is not None:
        namespace["cls_to_become"] = _MAKERS[maker](original.cls_to_become)
    return type(original)(original.__name__, bases, namespace)


_MAKERS: dict[str, Any] = {
    maker.__name__: maker for maker in (emulated_class, calling_class, shielded_class)
}


def torch_base(cls: Any) -> Any:
    """The emulated layer of torch.nn that a class is or derives from."""
    return next((base for base in cls.__mro__ if base in LAYERS), None)


def _set_class(module: torch.nn.Module, cls: type) -> None:
    if parametrize.is_parametrized(module):
        # The properties of the parametrized tensors live in a class of this one module.
        namespace = {
            k: v for k, v in vars(type(module)).items() if k not in ("__dict__", "__weakref__")
        }
        cls = type(f"Parametrized{cls.__name__}", (cls,), namespace)
    module.__class__ = cls


def _blank(maker: str, original: type) -> torch.nn.Module:
    cls = _MAKERS[maker](original)
    return cls.__new__(cls)


def _reduce(self: torch.nn.Module, protocol: int) -> tuple[Any, ...]:
    """Pickles a class that cannot be found by a name: as the original, and the function that makes
    it."""
    if parametrize.is_parametrized(self):
        # torch's own refusal, with its advice to save the state_dict.
        return object.__reduce_ex__(self, protocol)  # type: ignore[return-value]
    attributes = vars(type(self))
    return _blank, (attributes["_maker"], attributes["_original"]), self.__dict__
