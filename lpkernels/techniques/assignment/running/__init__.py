"""Training under an assignment."""

from lpkernels.techniques.assignment.running._rounding import Count
from lpkernels.techniques.assignment.running.assigned import Assigned, assign
from lpkernels.techniques.assignment.running.keeping import Memory
from lpkernels.techniques.assignment.running.loop import StepResult, train_with_assignment

__all__ = [
    "Assigned",
    "Count",
    "Memory",
    "StepResult",
    "assign",
    "train_with_assignment",
]
