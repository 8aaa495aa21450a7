"""Precision assignments: which tensors of training are in low precision, for a budget of memory.

Source: Lee, Sharma, Aiken 2023, "Training with Mixed-Precision Floating-Point Assignments",
arXiv 2301.13464.
"""

from lpkernels.techniques.assignment.graph import Assignment, Formats, Op, Pins, TensorSpec, group
from lpkernels.techniques.assignment.rules import (
    Promoter,
    demote,
    operator_based,
    uniform,
)
from lpkernels.techniques.assignment.running import Assigned, assign
from lpkernels.techniques.assignment.tracing import trace

__all__ = [
    "Assigned",
    "Assignment",
    "Formats",
    "Op",
    "Pins",
    "Promoter",
    "TensorSpec",
    "assign",
    "demote",
    "group",
    "operator_based",
    "trace",
    "uniform",
]
