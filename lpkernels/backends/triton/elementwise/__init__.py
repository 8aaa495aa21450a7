"""Kernels of whole tensors: quantizing, counting, codes, optimizers' steps."""
