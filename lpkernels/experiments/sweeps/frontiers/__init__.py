"""Frontiers of memory and error: the runs of a study, the choice of measurements, the
predictions."""
