"""Training techniques built on emulated arithmetic: one paper, one module."""

from lpkernels.techniques import accumulation, assignment, cpt, loss_scaling, pareto

__all__ = ["accumulation", "assignment", "cpt", "loss_scaling", "pareto"]
