"""What tests of the CPU's kernels get: instruction sets and threads."""

from tests.support.processor import isas, threads

__all__ = ["isas", "threads"]
