"""The cost of each group's demotion, and assignments that need to know it."""

from lpkernels.techniques.assignment.scoring.scoring import requested, score

__all__ = ["requested", "score"]
