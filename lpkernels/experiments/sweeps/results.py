"""The results of the cells of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Result:
    """One cell: an arm, the values of the axes, a seed, and the result of its run.

    status: "finished", "diverged" (a run whose loss is not finite at its end, or whose every last
        update was skipped: a result too) or "failed" (an error, twice).
    values: the fields of the record of its last epoch; a figure that is not finite is None.
        seconds: of the whole run.  Empty where it failed.
    cell: the name of its folder.  error: the last line of the error of one that failed.
    """

    arm: str
    axes: tuple[tuple[str, Any], ...]
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
            names = ", ".join(map(repr, known))
            raise ValueError(f"without: expected one of the arms {names}, got {arm!r}")
    return [result for result in results if result.arm not in arms]
