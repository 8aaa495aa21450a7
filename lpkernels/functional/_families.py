"""Functions that differ in their first argument alone: conv1d, conv2d and conv3d, and others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

_First = TypeVar("_First")
_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")


def member(
    name: str, common: Callable[Concatenate[_First, _Rest], _Result], first: _First
) -> Callable[_Rest, _Result]:
    """The function `common` with this first argument, under a name and a signature of its own.

    Its docstring is that of `common`, in which NAME stands for the name.
    """

    def function(*args: _Rest.args, **kwargs: _Rest.kwargs) -> _Result:
        return common(first, *args, **kwargs)

    signature = inspect.signature(common)
    parameters = list(signature.parameters.values())[1:]
    function.__name__ = function.__qualname__ = name
    function.__module__ = common.__module__
    function.__doc__ = (common.__doc__ or "").replace("NAME", name)
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    types = {**common.__annotations__}
    del types[next(iter(signature.parameters))]
    function.__annotations__ = types
    return function
