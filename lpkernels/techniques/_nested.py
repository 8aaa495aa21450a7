"""The tensors inside nested tuples, lists and mappings: found by name, and replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from lpkernels.nn.observing import tensors


def all_tensors(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """As `tensors`, inside mappings too (a model's output may be one)."""
    found: dict[str, Tensor] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= all_tensors({f"{name}.{key}": each for key, each in value.items()})
        elif isinstance(value, list | tuple):
            found |= all_tensors({f"{name}.{i}": each for i, each in enumerate(value)})
        else:
            found |= tensors({name: value})
    return found


def changed(value: Any, change: Callable[[int, Tensor], Tensor]) -> Any:
    """value with change(number, tensor) for each tensor; containers without changes stay."""
    return _Walk(change).of(value)


class _Walk:
    def __init__(self, change: Callable[[int, Tensor], Tensor]) -> None:
        self._change = change
        self._number = -1
        # Tensors so far that became another one.
        self._others = 0

    def of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            self._number += 1
            new = self._change(self._number, value)
            self._others += new is not value
            return new
        if isinstance(value, Mapping):
            before = self._others
            found = {key: self.of(each) for key, each in value.items()}
            if self._others == before:
                return value
            if type(value) is dict or not all(isinstance(key, str) for key in found):
                return found
            return type(value)(**found)
        if isinstance(value, list | tuple):
            before = self._others
            listed = [self.of(each) for each in value]
            if self._others == before:
                return value
            return type(value)(*listed) if hasattr(value, "_fields") else type(value)(listed)
        return value
