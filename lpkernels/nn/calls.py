"""Products that a model calls as functions, emulated while a module's forward runs.

Each module with a forward of its own enters `Calls` in its forward. So nothing outside the model is
changed, threads do not see each other's mode, and a caller that runs one module alone (activation
checkpointing, FSDP) finds the same arithmetic. torch.compile traces through it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lpkernels.arithmetic import Recipe
from lpkernels.functional.torch_calls import is_dense, own, own_instead
from lpkernels.nn._called_products import EMULATIONS, Emulation, emulation_of
from lpkernels.nn._users_functions import enter_in_backward, start
from lpkernels.nn.emulated import Emulated

PRODUCTS = frozenset(str(function.__name__) for function in EMULATIONS)
"""The names of these functions."""


def emulates(func: Any) -> bool:
    """Whether `Calls` computes products of this function of torch."""
    return emulation_of(func) is not None


class Calls(TorchFunctionMode):
    """Inside this mode the products of `EMULATIONS` are computed by the recipe, or, where the
    recipe is torch's own arithmetic, by torch, whatever mode is entered around it."""

    def __init__(self, recipe: Recipe, *, tells_functions: bool = True) -> None:
        """tells_functions: whether who enters the mode tells the users' Functions that run in it
        their recipe."""
        super().__init__()
        self.recipe, self.tells_functions = recipe, tells_functions

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        emulation = emulation_of(func)
        if emulation is None:
            return func(*args, **options)
        options = {k: v for k, v in options.items() if v is not None or k not in _WHEREABOUTS}
        if self.recipe.is_torch or not _is_emulated(func, emulation, args, options):
            return own(func, *args, **options)
        return own_instead(func, emulation.compute, args, {**options, "recipe": self.recipe})


# Where a result goes, which is no part of the product.
_WHEREABOUTS = ("out", "out_dtype")
# Tensors of integers beside the operands.
_NO_OPERANDS = ("offs", "target")


def _is_emulated(
    func: Any, emulation: Emulation, args: tuple[Any, ...], options: Mapping[str, Any]
) -> bool:
    """Whether this call has a meaning under a recipe: dense floating operands, a new result of its
    dtype.

    Raises: RuntimeError: an operand is float64. (Python hides a TypeError raised inside ``@``.)
    """
    named = [v for k, v in options.items() if k not in _NO_OPERANDS and "mask" not in k]
    values = _flat((*args[: emulation.operands], *named))
    if "out" in options or any([isinstance(x, torch.dtype) for x in _flat(args) + values]):
        return False
    tensors = [x for x in values if isinstance(x, Tensor)]
    if not all([x.dtype.is_floating_point and is_dense(x) for x in tensors]):
        return False
    if emulation.takes is not None and not emulation.takes(args, options):
        return False
    if any([x.dtype == torch.float64 for x in tensors]):
        raise RuntimeError(
            f"{getattr(func, '__name__', func)}: an operand is float64, but emulated arithmetic "
            "takes float32, bfloat16 or float16 operands; convert it with .float(), or exclude the "
            "module that makes this call from lp.convert"
        )
    return True


def _flat(values: Iterable[Any]) -> list[Any]:
    """The values, with the elements of lists in place of the lists."""
    flat: list[Any] = []
    for value in values:
        flat += value if isinstance(value, list | tuple) else [value]
    return flat


class EmulatesCalls(Emulated):
    """Mixin of the classes that `convert` gives to modules with a forward of their own."""

    # Such a module may call no product; a call of one is refused.
    _takes_scaling = True


def is_users(methods: Iterable[Any]) -> bool:
    """Whether one of these methods comes from elsewhere than torch and lpkernels.nn."""
    homes = [getattr(method, "__module__", None) or "" for method in methods if method is not None]
    return any(home.partition(".")[0] != "torch" and not _is_own(home) for home in homes)


def _is_own(home: str) -> bool:
    return home == "lpkernels.nn" or home.startswith("lpkernels.nn.")


def wrapped_forward(original: Any, recipe_of: Callable[[Any], Recipe]) -> Callable[..., Any]:
    """original's forward inside `Calls`; its signature stays the original's."""

    @functools.wraps(original.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        recipe = recipe_of(self)
        if not _has_backward_of_its_own(recipe):
            with Calls(recipe):
                return original.forward(self, *args, **kwargs)
        begin = start(args, kwargs)
        with Calls(recipe):
            result = original.forward(self, *args, **kwargs)
        enter_in_backward(partial(Calls, recipe, tells_functions=False), result, begin)
        return result

    return forward


def _has_backward_of_its_own(recipe: Recipe) -> bool:
    """Whether Functions that run now need to be told their recipe: it is not that of the module
    around, which tells them."""
    # torch.compile traces the backward of a Function with its forward, in the same mode.
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    for i in reversed(range(torch._C._len_torch_function_stack())):
        mode = torch._C._get_function_stack_at(i)
        if isinstance(mode, Calls) and mode.tells_functions:
            return mode.recipe is not recipe and mode.recipe != recipe
    return not recipe.is_torch
