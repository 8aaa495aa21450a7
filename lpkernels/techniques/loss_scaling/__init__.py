"""Mixed precision: masters of the weights, and scales of the loss.

Micikevicius et al. 2017, "Mixed Precision Training", arXiv 1710.03740.
"""

from lpkernels.techniques.loss_scaling.master_weights import MasterWeights, Stagnation
from lpkernels.techniques.loss_scaling.memory import MemoryRow, memory

__all__ = ["MasterWeights", "MemoryRow", "Stagnation", "memory"]
