"""The commands of `lpkernels`: each parses options and calls; the work is done in experiments and
report. `lpkernels_command`, outside the package, imports a command's module when it is called."""

from lpkernels_command import application, main

__all__ = ["app", "main"]

app = application()
