"""An optimizer's step of parameters in one pass over each."""

from lpkernels.ops import UpdateTensors, update

__all__ = ["UpdateTensors", "update"]
