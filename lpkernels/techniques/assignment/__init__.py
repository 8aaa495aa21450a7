"""Precision assignments: which tensors of training are in low precision, for a budget of memory.

Source: Lee, Sharma, Aiken 2023, "Training with Mixed-Precision Floating-Point Assignments",
arXiv 2301.13464.
"""

from lpkernels.techniques.assignment.asking import amp_like, operator_based, uniform
from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.demotion import demote
from lpkernels.techniques.assignment.memory import kept_memory
from lpkernels.techniques.assignment.operations import Group, Op, TensorSpec, group
from lpkernels.techniques.assignment.precisions import PAPER, Formats, Pins
from lpkernels.techniques.assignment.promotion import Promoter, Promotion
from lpkernels.techniques.assignment.running import (
    Assigned,
    Count,
    Memory,
    StepResult,
    assign,
    train_with_assignment,
)
from lpkernels.techniques.assignment.tracing import trace

__all__ = [
    "PAPER",
    "Assigned",
    "Assignment",
    "Count",
    "Formats",
    "Group",
    "Memory",
    "Op",
    "Pins",
    "Promoter",
    "Promotion",
    "StepResult",
    "TensorSpec",
    "amp_like",
    "assign",
    "demote",
    "group",
    "kept_memory",
    "operator_based",
    "trace",
    "train_with_assignment",
    "uniform",
]
