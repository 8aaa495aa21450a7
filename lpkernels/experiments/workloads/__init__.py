"""Workloads: data, model, loss and metric, by name or by a function of the user's."""
