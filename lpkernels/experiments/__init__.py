"""Models, data sets, the trainer and the runs of the command line and the examples."""

from lpkernels.experiments.frames import frame

__all__ = ["frame"]
