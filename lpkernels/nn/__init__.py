"""Drop-in layers: torch.nn's modules under a Recipe, and the conversion of whole models."""

from lpkernels._first_use import on_first_use
from lpkernels.nn import layers as _layers
from lpkernels.nn._refusals import NotEmulatedWarning
from lpkernels.nn.convert import convert, revert, set_precision, set_recipe
from lpkernels.nn.layers import *  # noqa: F403
from lpkernels.nn.policies import Policy
from lpkernels.nn.selecting import FIRST, FUNCTIONS, GATES, LAST
from lpkernels.nn.summary import Row, Summary, summary

_SCALING = {"calibrate": "scaling", "update_scales": "scaling"}
__all__ = [
    *_layers.__all__,
    *_SCALING,
    "FIRST",
    "FUNCTIONS",
    "GATES",
    "LAST",
    "NotEmulatedWarning",
    "Policy",
    "Row",
    "Summary",
    "convert",
    "revert",
    "set_precision",
    "set_recipe",
    "summary",
]

__getattr__, __dir__ = on_first_use(__name__, ("observing",), _SCALING)
