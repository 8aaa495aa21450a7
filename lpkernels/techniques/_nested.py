"""The tensors inside nested tuples, lists and mappings, replaced in the order of `all_tensors`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def changed(value: Any, change: Callable[[int, Tensor], Tensor]) -> Any:
    """value with change(number, tensor) for each tensor; containers without changes stay."""
    numbers = itertools.count()

    def walk(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(next(numbers), value)
        if isinstance(value, Mapping):
            fields = {key: walk(field) for key, field in value.items()}
            if all(fields[key] is field for key, field in value.items()):
                return value
            if type(value) is dict or not all(isinstance(key, str) for key in fields):
                return fields
            return type(value)(**fields)
        if isinstance(value, list | tuple):
            items = [walk(item) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    return walk(value)
