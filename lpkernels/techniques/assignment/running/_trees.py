"""Tensors in nested lists, tuples and mappings, in the order in which a trace numbers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

Change = Callable[[int, Tensor], Tensor]


def changed(value: Any, change: Change) -> Any:
    """value with change(number, tensor) for each tensor; containers without changes stay."""
    return _Walk(change).of(value)


class _Walk:
    def __init__(self, change: Change) -> None:
        self._change = change
        self._number = -1

    def of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            self._number += 1
            return self._change(self._number, value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            found = [self.of(each) for each in value]
            if all(new is old for new, old in zip(found, value, strict=True)):
                return value
            if hasattr(value, "_fields"):
                return type(value)(*found)
            return type(value)(found)
        return value

    def _mapping(self, value: Mapping[Any, Any]) -> Mapping[Any, Any]:
        found = {key: self.of(each) for key, each in value.items()}
        if all(found[key] is value[key] for key in found):
            return value
        return found if type(value) is dict else type(value)(**found)
