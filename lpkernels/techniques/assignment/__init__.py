"""Precision assignments: which tensors of training are in low precision, for a budget of memory.

Source: Lee, Sharma, Aiken 2023, "Training with Mixed-Precision Floating-Point Assignments",
arXiv 2301.13464.
"""

from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.baselines import amp_like, operator_based, uniform
from lpkernels.techniques.assignment.curve import Point, curve
from lpkernels.techniques.assignment.demotion import demote
from lpkernels.techniques.assignment.grouping import Group, TensorSpec, group
from lpkernels.techniques.assignment.keeping import kept_memory
from lpkernels.techniques.assignment.ops import Kept, Op
from lpkernels.techniques.assignment.pins import Pins
from lpkernels.techniques.assignment.precisions import PAPER, Formats
from lpkernels.techniques.assignment.promotion import Promoter, Promotion
from lpkernels.techniques.assignment.running import (
    Assigned,
    Audit,
    Count,
    Memory,
    StepResult,
    assign,
    audit,
    train_with_assignment,
)
from lpkernels.techniques.assignment.scoring import score
from lpkernels.techniques.assignment.sensitivity import Scores
from lpkernels.techniques.assignment.tracing import trace

__all__ = [
    "PAPER",
    "Assigned",
    "Assignment",
    "Audit",
    "Count",
    "Formats",
    "Group",
    "Kept",
    "Memory",
    "Op",
    "Pins",
    "Point",
    "Promoter",
    "Promotion",
    "Scores",
    "StepResult",
    "TensorSpec",
    "amp_like",
    "assign",
    "audit",
    "curve",
    "demote",
    "group",
    "kept_memory",
    "operator_based",
    "score",
    "trace",
    "train_with_assignment",
    "uniform",
]
