"""Training techniques built on emulated arithmetic: one paper, one module."""

from lpkernels.techniques import accumulation, cpt, loss_scaling

__all__ = ["accumulation", "cpt", "loss_scaling"]
