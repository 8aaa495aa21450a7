"""Which precision is worth its memory: the frontier of a new task from a few measurements.

Source: Yang, Wu, Chakraborty, Udell, De Sa 2021, "How low can we go: trading memory for error in
low-precision training" (PEPPP).
"""

from lpkernels.techniques.pareto.cold_start import ColdStart, cold_start, expected_gain, fit_grid
from lpkernels.techniques.pareto.completion import Completion, complete, embed, predict
from lpkernels.techniques.pareto.errors import ErrorMatrix
from lpkernels.techniques.pareto.evaluation import averages, compare, leave_one_out, noise_floor
from lpkernels.techniques.pareto.frontier import (
    choose,
    convergence,
    hyperdiff,
    hypervolume,
    pareto_front,
)
from lpkernels.techniques.pareto.recipes import TrainingRecipe, count_tensors, training_memory
from lpkernels.techniques.pareto.selection import select
from lpkernels.techniques.pareto.spaces import FormatSpace
from lpkernels.techniques.pareto.uncertainty import (
    FrontierBand,
    frontier_band,
    held_out_residuals,
    hopeful,
)

__all__ = [
    "ColdStart",
    "Completion",
    "ErrorMatrix",
    "FormatSpace",
    "FrontierBand",
    "TrainingRecipe",
    "averages",
    "choose",
    "cold_start",
    "compare",
    "complete",
    "convergence",
    "count_tensors",
    "embed",
    "expected_gain",
    "fit_grid",
    "frontier_band",
    "held_out_residuals",
    "hopeful",
    "hyperdiff",
    "hypervolume",
    "leave_one_out",
    "noise_floor",
    "pareto_front",
    "predict",
    "select",
    "training_memory",
]
