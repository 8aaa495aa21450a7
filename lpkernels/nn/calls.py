"""Products that a model calls as functions, emulated while a module's forward runs.

Each module with a forward of its own enters `Calls` in its forward. So nothing outside the model is
changed, threads do not see each other's mode, and a caller that runs one module alone (activation
checkpointing, FSDP) finds the same arithmetic. torch.compile traces through it.

The backward pass of a user's torch.autograd.Function runs when the forward is over. The nodes of
such Functions in the graph of a module's result are therefore given an attribute `apply`, which
torch calls for the backward pass: it enters the mode in which the forward ran, whatever thread runs
it, and leaves it after an error too. The attribute goes with the graph.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from lpkernels.arithmetic import Recipe
from lpkernels.functional.torch_calls import is_dense, own, own_instead
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.torch_functions import Emulation, emulation_of


class Calls(TorchFunctionMode):
    """Inside this mode the products that `torch_functions` lists are computed by the recipe, or,
    where the recipe is torch's own arithmetic, by torch, whatever mode is entered around it."""

    def __init__(
        self,
        recipe: Recipe,
        functions: Mapping[Any, Callable[..., Any]] | None = None,
        *,
        tells_functions: bool = True,
    ) -> None:
        """functions: of a layer, the functions of torch that its forward calls, and in their place
            the functions of the same arguments and `recipe`; no others are emulated.
        tells_functions: whether who enters the mode tells the users' Functions that run in it their
            recipe."""
        super().__init__()
        self.recipe, self.functions = recipe, functions
        self.tells_functions = tells_functions and functions is None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            _unrecorded.calls += 1
        options = dict(kwargs or {})
        if self.functions is not None:
            if func not in self.functions:
                return func(*args, **options)
            options["recipe"] = self.recipe
            return own_instead(func, self.functions[func], args, options)
        emulation = emulation_of(func)
        if emulation is None:
            if isinstance(func, torch._ops.HigherOrderOperator) and not self.recipe.is_torch:
                _refuse_in_transforms(func, args)
            return func(*args, **options)
        options = {k: v for k, v in options.items() if v is not None or k not in _WHEREABOUTS}
        if self.recipe.is_torch or not _is_emulated(func, emulation, args, options):
            return own(func, *args, **options)
        return own_instead(func, emulation.emulated, args, {**options, "recipe": self.recipe})


# Where a result goes, which is no part of the product.
_WHEREABOUTS = ("out", "out_dtype")
# Tensors of integers beside the operands.
_NO_OPERANDS = ("offs",)


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
        first, before = torch.autograd._get_sequence_nr(), set(_nodes((args, kwargs)))
        unrecorded = _unrecorded.calls
        with Calls(recipe):
            result = original.forward(self, *args, **kwargs)
        if _unrecorded.calls > unrecorded or _has_users_class(torch.autograd.Function):
            _enter_in_backward(partial(Calls, recipe, tells_functions=False), result, first, before)
        return result

    return forward


def _has_backward_of_its_own(recipe: Recipe) -> bool:
    """Whether Functions that run now need to be told their recipe: it is not that of the module
    around, which tells them."""
    # torch.compile traces the backward of a Function with its forward, in the same mode.
    if torch.compiler.is_compiling():
        return False
    if not torch.is_grad_enabled():
        _unrecorded.calls += 1
        return False
    for i in reversed(range(torch._C._len_torch_function_stack())):
        mode = torch._C._get_function_stack_at(i)
        if isinstance(mode, Calls) and mode.tells_functions:
            return mode.recipe is not recipe and mode.recipe != recipe
    return not recipe.is_torch


class _Unrecorded(threading.local):
    """How many calls this thread has made inside emulated modules while autograd recorded nothing:
    reentrant checkpointing makes them, and repeats them in the backward pass of its Function."""

    calls = 0


_unrecorded = _Unrecorded()


def _has_users_class(function: type) -> bool:
    """Whether a subclass of function, which is a class of autograd Functions, is a user's. Most
    programs have none, and a search through the graph of a result takes a twentieth of a step."""
    kinds: list[type] = type.__subclasses__(function)
    for kind in kinds:
        if kind.__module__.partition(".")[0] not in _HOMES or _has_users_class(kind):
            return True
    return False


def _refuse_in_transforms(operator: Any, args: tuple[Any, ...]) -> None:
    """Raises NotImplementedError: torch.func applies a user's Function, whose products it hides."""
    if operator.name() != "custom_function_call" or args[0].__module__.split(".")[0] in _HOMES:
        return
    raise NotImplementedError(
        f"lpkernels: the products of {args[0].__name__}, a torch.autograd.Function of yours, are "
        "not emulated inside torch.func's transforms (grad, vjp, jacrev, vmap); take gradients "
        "with torch.autograd, or exclude the module that applies it from lp.convert"
    )


# The packages whose Functions run no product of a user's.
_HOMES = ("torch", "lpkernels")

# torch calls one of them for the backward pass; the second since torch 2.13, where a Function asks
# for its gradients in a list.
_METHODS = [name for name in ("apply", "apply_boxed") if hasattr(BackwardCFunction, name)]


def _enter_in_backward(
    mode: Callable[[], Calls], result: Any, first: int, before: set[Any]
) -> None:
    """Every user's Function in the graph of a module's result runs its backward inside mode(),
    unless a module within has said in which.

    first: the number of the first node that this thread made in the module's forward.
    before: the nodes of the module's arguments, which another thread may have made.
    """
    waiting, visited = list(_nodes(result)), before
    while waiting:
        node = waiting.pop()
        if node in visited or node._sequence_nr() < first:
            continue
        visited.add(node)
        if isinstance(node, BackwardCFunction) and "apply" not in vars(node):
            if _runs_users_code(node):
                for name in _METHODS:
                    # A reference to the node itself would keep the graph from being freed.
                    setattr(node, name, partial(_inside, mode, name, weakref.ref(node)))
        waiting += [after for after, _ in node.next_functions if after is not None]


def _inside(
    mode: Callable[[], Calls], name: str, reference: Callable[[], Any], *gradients: Any
) -> Any:
    node = reference()
    with mode():
        return getattr(type(node), name)(node, *gradients)


def _runs_users_code(node: Any) -> bool:
    """torch's and our own Functions do not, but for reentrant checkpointing."""
    home = str(type(node)._forward_cls.__module__)
    return home.partition(".")[0] not in _HOMES or home == "torch.utils.checkpoint"


def _nodes(value: Any) -> Iterator[Any]:
    """The nodes that made the tensors in a nested value."""
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            yield value.grad_fn
        return
    if is_dataclass(value) and not isinstance(value, Mapping):
        value = vars(value)
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set):
        return
    for element in value:
        yield from _nodes(element)
