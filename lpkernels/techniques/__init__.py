"""Training techniques built on emulated arithmetic: one paper, one module."""

from lpkernels.techniques import accumulation

__all__ = ["accumulation"]
