"""What `assign` takes, checked; and what tells two batches apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from torch import Tensor

from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.promotion import Promoter

FanOut = Literal["sum", "branches"]


def kind_of(value: Any) -> Any:
    """What decides on the operations: sizes and types of tensors, and what else is given."""
    if isinstance(value, Tensor):
        return (value.shape, value.dtype)
    if isinstance(value, Mapping):
        return tuple((key, kind_of(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(kind_of(each) for each in value)
    return repr(value) if isinstance(value, bool | int | float | str) else type(value)


def promoter_of(assignment: Any, promote: Any, counts: Any) -> Promoter:
    if not isinstance(assignment, Assignment):
        raise TypeError(
            f"assign: expected an Assignment, such as demote(...), got {type(assignment).__name__}"
        )
    if promote is not None and counts is False:
        raise ValueError(
            "assign: promotion needs counts; give promote=None, or leave counts=False away"
        )
    if not isinstance(promote, Promoter):
        return Promoter(assignment, promote)
    if promote.assignment != assignment:
        raise ValueError(
            "assign: the Promoter is of another assignment; make it of the one that is given"
        )
    if promote.measures_error:
        raise ValueError(
            "assign: rounding errors are not measured, so the Promoter's error= would never count; "
            "make it without"
        )
    return promote


def check_options(fan_out: Any, pack: Any, counts: Any) -> None:
    if fan_out not in get_args(FanOut):
        raise ValueError(
            f"assign: fan_out must be one of {', '.join(get_args(FanOut))}; got {fan_out!r}"
        )
    for name, value in {"pack": pack, "counts": counts}.items():
        if not isinstance(value, bool):
            raise TypeError(f"assign: {name} must be True or False, got {value!r}")
