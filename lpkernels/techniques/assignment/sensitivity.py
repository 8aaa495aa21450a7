"""Scores of groups: what the demotion of each one costs, kept to be used for every budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lpkernels.schemas import schema
from lpkernels.techniques.assignment import _saving
from lpkernels.techniques.assignment.grouping import Group

_WHAT = "lpkernels assignment's scores"


@dataclass(frozen=True)
class Scores:
    """What the demotion of each group costs, in any unit: least is demoted first. Ours.

    scores: by the index of the group, finite and at least 0.
    numels: the elements of each group, by which another model or batch is found out.
    """

    scores: Mapping[int, float]
    numels: Mapping[int, int]

    @classmethod
    def of(cls, groups: Sequence[Group], scores: Mapping[int, float]) -> Scores:
        """Scores of these groups.

        Raises: ValueError: one is missing, of no group, or no finite number of at least 0.
        """
        checked = _checked(groups, scores)
        return cls(checked, {group.index: group.numel for group in groups})

    def save(self, path: str | Path) -> None:
        """Writes them as JSON."""
        rows = [[index, self.scores[index], self.numels[index]] for index in sorted(self.scores)]
        _saving.write(path, {"what": _WHAT, "schema": schema(_WHAT), "groups": rows})

    @classmethod
    def load(cls, path: str | Path, groups: Sequence[Group]) -> Scores:
        """Reads what `save` wrote.

        Raises: ValueError: no such file, or scores of other groups.
        """
        rows = _saving.read(path, _WHAT)["groups"]
        found = cls({row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows})
        found.check(groups)
        return found

    def check(self, groups: Sequence[Group]) -> None:
        """Raises: ValueError: the scores are of other groups."""
        now = {group.index: group.numel for group in groups}
        if now != dict(self.numels):
            raise ValueError(
                f"scores: they are of another model, batch or tying: of {len(self.numels)} groups "
                f"with {sum(self.numels.values()):,} elements, got {len(now)} with "
                f"{sum(now.values()):,}; score these groups"
            )


def scores_of(scores: Scores | Mapping[int, float], groups: Sequence[Group]) -> Mapping[int, float]:
    """Checked, by group."""
    if isinstance(scores, Scores):
        scores.check(groups)
        return scores.scores
    return _checked(groups, scores)


def _checked(groups: Sequence[Group], scores: Mapping[int, float]) -> dict[int, float]:
    indices = {group.index for group in groups}
    if set(scores) != indices:
        raise ValueError(
            f"scores: expected one for each of the groups {sorted(indices)}, missing "
            f"{sorted(indices - set(scores))}, of no group {sorted(set(scores) - indices)}"
        )
    for index, score in scores.items():
        if not (math.isfinite(score) and score >= 0):
            raise ValueError(
                f"scores: expected finite numbers of at least 0, got {score} for group {index}"
            )
    return dict(scores)
