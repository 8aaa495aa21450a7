"""What the demotion of each group costs, from one forward and one backward pass."""

from lpkernels.techniques.assignment.scoring.requested import requested
from lpkernels.techniques.assignment.scoring.scoring import score

__all__ = ["requested", "score"]
