"""Training techniques built on emulated arithmetic: one paper, one module."""

from lpkernels.techniques import accumulation, loss_scaling, pareto

__all__ = ["accumulation", "loss_scaling", "pareto"]
