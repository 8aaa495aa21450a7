"""The parts that a run may have: importing this package registers those of lpkernels."""

from lpkernels.experiments.training.parts import (
    diagnosis,
    every_tensor,
    loss_scale,
    master_weights,
    precision_schedule,
    weight_update,
)
from lpkernels.experiments.training.parts.part import PARTS, Context, Part, PartConfig, register

__all__ = [
    "PARTS",
    "Context",
    "Part",
    "PartConfig",
    "diagnosis",
    "every_tensor",
    "loss_scale",
    "master_weights",
    "precision_schedule",
    "register",
    "weight_update",
]
