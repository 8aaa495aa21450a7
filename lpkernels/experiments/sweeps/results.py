"""The results of the cells of a sweep: by arm and by the values of its axes, and their figures."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lpkernels.formats.elsewhere import nearest

Axes = tuple[tuple[str, Any], ...]
#: The values of the axes, as a key.
Place = tuple[tuple[str, str], ...]
#: A place and an arm; the seeds repeat it.
Cell = tuple[Place, str]

_LARGEST = 1e150
_STATUSES = ("finished", "diverged", "failed")


@dataclass(frozen=True)
class Result:
    """One cell: an arm, the values of the axes, a seed, and the result of its run.

    status: "finished", "diverged" (the loss is not finite at the end, or every update of the last
        epoch was skipped: a result too) or "failed" (an error, twice).
    values: the fields of the record of its last epoch; a figure that is not finite is None.
        seconds: of the whole run.  Empty where it failed.
    cell: the name of its folder.  error: the last line of the error of one that failed.
    """

    arm: str
    axes: Axes
    seed: int
    status: str
    values: dict[str, Any] = field(default_factory=dict)
    cell: str = ""
    error: str = ""


def without(results: Sequence[Result], arms: Sequence[str]) -> list[Result]:
    """The results of the other arms.

    Raises: ValueError: there is no such arm.
    """
    known = list(dict.fromkeys(result.arm for result in results))
    for arm in arms:
        if arm not in known:
            names = nearest(arm, known, "`lpkernels sweep table` lists all", shown=repr)
            raise ValueError(f"without: expected one of the arms {names}, got {arm!r}")
    return [result for result in results if result.arm not in arms]


def grouped(results: Sequence[Result]) -> dict[Cell, list[Result]]:
    """Results by (values of the axes, arm), both in the order they appear, sorted by seed.

    Raises: ValueError: none, a status that means nothing, or two results of one cell.
    """
    if not results:
        raise ValueError("expected the results of at least one cell, got none; run the sweep first")
    groups: dict[Cell, list[Result]] = {}
    for place in dict.fromkeys(place_of(result.axes) for result in results):
        for arm in dict.fromkeys(result.arm for result in results):
            groups[place, arm] = []
    for result in results:
        if result.status not in _STATUSES:
            raise ValueError(
                f"{result.arm}, seed {result.seed}: expected a status of "
                f"{', '.join(_STATUSES)}, got {result.status!r}"
            )
        groups[place_of(result.axes), result.arm].append(result)
    for group in groups.values():
        group.sort(key=lambda result: result.seed)
        for one, other in itertools.pairwise(group):
            if one.seed == other.seed:
                raise ValueError(
                    f"expected one result a cell, got two of arm {one.arm!r} at {dict(one.axes)}, "
                    f"seed {one.seed}: {one.cell or '?'} and {other.cell or '?'}; keep one of them"
                )
    return {key: group for key, group in groups.items() if group}


def place_of(axes: Axes) -> Place:
    """The values of the axes as a key: lists may be among them, and their order means nothing."""
    return tuple(sorted((name, repr(value)) for name, value in axes))


def figure_of(result: Result, field: str) -> float | None:
    """The figure of a result; None where it has no figure, or where the figure's square is not
    finite.

    Raises: ValueError: the field does not hold a number.
    """
    value = result.values.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected numbers in field {field!r}, got {value!r} in {result.arm!r}")
    return float(value) if abs(value) < _LARGEST else None
