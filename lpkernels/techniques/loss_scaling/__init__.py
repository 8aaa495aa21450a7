"""Mixed precision: scales of the loss, masters of the weights, and the diagnosis of lost values.

Source: Micikevicius et al. 2017, "Mixed precision training", arXiv 1710.03740.
"""

from lpkernels.techniques.loss_scaling.diagnosis import Report, diagnose
from lpkernels.techniques.loss_scaling.masters.master_weights import MasterWeights
from lpkernels.techniques.loss_scaling.scaler import LossScaler

__all__ = [
    "LossScaler",
    "MasterWeights",
    "Report",
    "diagnose",
]
