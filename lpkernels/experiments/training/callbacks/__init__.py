"""The callbacks of lpkernels: importing this package registers them in CALLBACKS."""

from lpkernels.experiments.training.callback import CALLBACKS
from lpkernels.experiments.training.callbacks import (
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

__all__ = [
    "CALLBACKS",
    "assignment",
    "diagnosis",
    "every_tensor",
    "layer_errors",
    "log",
    "loss_scale",
    "master_weights",
    "precision_schedule",
    "weight_update",
]
