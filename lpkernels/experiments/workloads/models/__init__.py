"""Networks by name, in torch.nn alone: each file of this folder holds families and registers them.

All name their first layer `stem` and their last `head`, so that a recipe can treat these two apart.
"""

from lpkernels.experiments.workloads.models import (  # noqa: F401
    plain,
    residual,
    transformer,
    unet,
)
from lpkernels.experiments.workloads.models.family import FAMILIES, Task, build_model, family

__all__ = ["FAMILIES", "Task", "build_model", "family"]
