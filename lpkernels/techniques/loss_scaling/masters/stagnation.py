"""Updates that changed nothing."""

from __future__ import annotations

from typing import NamedTuple


class Stagnation(NamedTuple):
    """Updates of a parameter's elements: how many were asked for, and how many changed nothing."""

    asked: int
    unchanged: int

    @property
    def share(self) -> float:
        """The part of the updates asked for that changed nothing; 0 if none was asked for."""
        return self.unchanged / self.asked if self.asked else 0.0
