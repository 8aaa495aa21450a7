"""From a model and its loss to operations as data."""

from lpkernels.techniques.assignment.tracing.following import trace

__all__ = ["trace"]
