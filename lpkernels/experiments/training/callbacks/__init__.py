"""The callbacks of lpkernels: importing this package registers them in CALLBACKS."""

from lpkernels.experiments.training.callback import CALLBACKS
from lpkernels.experiments.training.callbacks import (  # noqa: F401
    assignment,
    diagnosis,
    loss_scale,
    master_weights,
    precision_schedule,
    weight_update,
)

__all__ = ["CALLBACKS"]
