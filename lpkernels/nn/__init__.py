"""Drop-in layers: torch.nn's modules under a Recipe, and the conversion of whole models."""

from lpkernels.nn.conv import Conv1d, Conv2d, Conv3d
from lpkernels.nn.convert import convert, revert, set_recipe
from lpkernels.nn.linear import Linear

__all__ = ["Conv1d", "Conv2d", "Conv3d", "Linear", "convert", "revert", "set_recipe"]
