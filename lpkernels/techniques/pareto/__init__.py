"""Which precision is worth its memory: the frontier of a new task from a few measurements.

Source: Yang, Wu, Chakraborty, Udell, De Sa 2021, "How low can we go: trading memory for error in
low-precision training" (PEPPP).
"""

from lpkernels.techniques.pareto.completion import complete, embed
from lpkernels.techniques.pareto.prediction import (
    choose,
    convergence,
    hyperdiff,
    hypervolume,
    leave_one_out,
    pareto_front,
    predict,
)
from lpkernels.techniques.pareto.selection import select
from lpkernels.techniques.pareto.spaces import (
    ErrorMatrix,
    FormatSpace,
    TrainingRecipe,
    count_tensors,
    training_memory,
)

__all__ = [
    "ErrorMatrix",
    "FormatSpace",
    "TrainingRecipe",
    "choose",
    "complete",
    "convergence",
    "count_tensors",
    "embed",
    "hyperdiff",
    "hypervolume",
    "leave_one_out",
    "pareto_front",
    "predict",
    "select",
    "training_memory",
]
