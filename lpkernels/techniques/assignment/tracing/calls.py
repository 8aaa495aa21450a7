"""The calls of functions that a trace met, so that a later run can meet the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor

from lpkernels.nn.observing import tensors
from lpkernels.techniques.assignment.tracing.flow import Maker, Step

Place = Literal["result", "argument"]


class Made(NamedTuple):
    """A step's values: tensor `number` of the call's result, or of its arguments, in place."""

    step: Step
    place: Place
    number: int


@dataclass(eq=False)
class Met:
    """One call.

    reads: who made each of the tensors among its arguments, in the order of `all_tensors`.
    passes: whether each of them, of one element, gets the gradient of its result or minus that.
    parts: the steps of a call that is several, by their names within it.
    """

    operation: str
    function: Callable[..., Any]
    reads: list[Maker | None]
    passes: bool
    made: list[Made] = field(default_factory=list)
    parts: Mapping[str, Step] | None = None


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
