"""The backward pass of a user's torch.autograd.Function, in the mode in which its forward ran.

torch runs backward when the model's forward is over, so its products would be torch's own. The
nodes of such Functions in the graph of a module's result are therefore given an attribute `apply`,
which torch calls for the backward pass: it enters the mode, whatever thread runs it, and leaves it
after an error too. The attribute goes with the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import is_dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

# torch calls one of them for the backward pass; the second since torch 2.13, where a Function asks
# for its gradients in a list.
_METHODS = [name for name in ("apply", "apply_boxed") if hasattr(BackwardCFunction, name)]
Mode = Callable[[], AbstractContextManager[Any]]


class Start(NamedTuple):
    """Where the graph of a module's forward begins.

    Attributes:
        number: that of the first node which this thread makes in it.
        nodes: of the arguments, which another thread may have made.
    """

    number: int
    nodes: set[Any]


def start(*arguments: Any) -> Start:
    """The start of a forward with these arguments, which is about to run."""
    return Start(torch.autograd._get_sequence_nr(), set(_nodes(arguments)))


def enter_in_backward(mode: Mode, result: Any, begin: Start) -> None:
    """Every user's Function between begin and result runs its backward inside mode(), unless a
    module within has said in which."""
    waiting, seen = list(_nodes(result)), set(begin.nodes)
    while waiting:
        node = waiting.pop()
        if node in seen or node._sequence_nr() < begin.number:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction) and "apply" not in vars(node):
            if _runs_users_code(node):
                for name in _METHODS:
                    # A reference to the node itself would keep the graph from being freed.
                    setattr(node, name, partial(_inside, mode, name, weakref.ref(node)))
        waiting += [after for after, _ in node.next_functions if after is not None]


def _inside(mode: Mode, name: str, reference: Callable[[], Any], *gradients: Any) -> Any:
    node = reference()
    with mode():
        return getattr(type(node), name)(node, *gradients)


def _runs_users_code(node: Any) -> bool:
    """torch's and our own Functions do not, but for reentrant checkpointing."""
    home = str(type(node)._forward_cls.__module__)
    return home.partition(".")[0] not in ("torch", "lpkernels") or home == "torch.utils.checkpoint"


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
