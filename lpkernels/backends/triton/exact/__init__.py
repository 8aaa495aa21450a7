"""Kernels of every sum, whatever its operands hold."""
