"""Networks by name, in torch.nn alone: each file of this folder holds families and registers them.

All name their first layer `stem` and their last `head`, so that a recipe can treat these two apart.
"""

import importlib
import pkgutil

from lpkernels.experiments.workloads.models.convolutional import PlainCNN, SignalCNN
from lpkernels.experiments.workloads.models.family import (
    FAMILIES,
    Task,
    build_model,
    family,
    model_builder,
    parse_model,
)
from lpkernels.experiments.workloads.models.residual import ResNet, ResNet18

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "FAMILIES",
    "PlainCNN",
    "ResNet",
    "ResNet18",
    "SignalCNN",
    "Task",
    "build_model",
    "family",
    "model_builder",
    "parse_model",
]
