"""The parts that a run may have: importing this package registers those of lpkernels."""

from lpkernels.experiments.training.parts import (
    assignment,
    diagnosis,
    every_tensor,
    layer_errors,
    log,
    loss_scale,
    master_weights,
    precision_schedule,
    weight_update,
)
from lpkernels.experiments.training.parts.part import (
    PARTS,
    Context,
    Part,
    PartConfig,
    loss_of,
    register,
)

__all__ = [
    "PARTS",
    "Context",
    "Part",
    "PartConfig",
    "assignment",
    "diagnosis",
    "every_tensor",
    "layer_errors",
    "log",
    "loss_of",
    "loss_scale",
    "master_weights",
    "precision_schedule",
    "register",
    "weight_update",
]
