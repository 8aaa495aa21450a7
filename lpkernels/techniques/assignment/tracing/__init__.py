"""From a model that runs to the operations of its training, as data."""

from lpkernels.techniques.assignment.tracing.tracing import trace

__all__ = ["trace"]
