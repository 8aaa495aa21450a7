"""Training under an assignment."""

from lpkernels.techniques.assignment.running._keeping import Memory
from lpkernels.techniques.assignment.running._table import Count
from lpkernels.techniques.assignment.running.assigned import Assigned, assign

__all__ = ["Assigned", "Count", "Memory", "assign"]
