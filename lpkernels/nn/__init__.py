"""Drop-in layers: torch.nn's modules under a Recipe.

The conversion of whole models is public as ``lpkernels.convert`` and its neighbours.
"""

from lpkernels._first_use import on_first_use
from lpkernels.nn import layers as _layers
from lpkernels.nn.convert import convert as convert
from lpkernels.nn.convert import revert as revert
from lpkernels.nn.convert import set_precision as set_precision
from lpkernels.nn.convert import set_recipe as set_recipe
from lpkernels.nn.layers import *  # noqa: F403
from lpkernels.nn.policies import Policy
from lpkernels.nn.selecting import FIRST, FUNCTIONS, GATES, LAST, NotEmulatedWarning
from lpkernels.nn.summary import Summary, summary

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
    "Summary",
    "summary",
]

__getattr__, __dir__ = on_first_use(__name__, ("observing",), _SCALING)
