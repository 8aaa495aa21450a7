"""Loss scaling: small gradients stay representable, and an update that overflowed is skipped.

Source: Micikevicius et al. 2017, "Mixed precision training", arXiv 1710.03740.
"""

from lpkernels.techniques.loss_scaling._record import StepRecord
from lpkernels.techniques.loss_scaling.layers import LayerScales, layer_scales
from lpkernels.techniques.loss_scaling.scaler import LossScaler

__all__ = ["LayerScales", "LossScaler", "StepRecord", "layer_scales"]
