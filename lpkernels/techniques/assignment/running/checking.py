"""Checks before training starts: that an object was made by `assign`, and fits a batch."""

from __future__ import annotations

from typing import Any

from lpkernels.techniques.assignment.running.assigned import Assigned


def check_assigned(function: str, assigned: Any) -> None:
    """Raises: TypeError: it is not what `assign` makes; `function` is whose argument it is."""
    if not isinstance(assigned, Assigned):
        raise TypeError(
            f"{function}: expected what assign(model, loss, assignment) makes, got "
            f"{type(assigned).__name__}"
        )


def check_batch(assigned: Assigned, input: Any, target: Any) -> None:
    """Finds what the first call of `assigned` finds out about its batch, without a step.

    Afterwards batches of other sizes may come first, as they do where a run is resumed.

    Raises: ValueError: the assignment is of another model, loss or batch.
    """
    assigned._check_there()
    assigned._plan(assigned.loss, input, target)
