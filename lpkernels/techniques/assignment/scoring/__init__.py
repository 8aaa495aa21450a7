"""What the demotion of each group costs, and assignments that need to know it."""

from lpkernels.techniques.assignment.scoring.scoring import requested, score

__all__ = ["requested", "score"]
