"""The one place that counts the elements of a tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lpkernels.formats import FP32, FloatFormat
from lpkernels.functional.count import counting_to_nearest
from lpkernels.techniques.loss_scaling.diagnosis.histograms import BINS

#: Overflow, underflow, zeros, nonfinite; then a bin for each exponent.
EVENTS = 4
WIDTH = EVENTS + BINS

# Together these vectors take 32 kB.
_MANY = 16


def counting(fmt: FloatFormat | None) -> Callable[[Tensor, Tensor], None]:
    """A function that adds the counts of a tensor's elements to a vector on its device, where
    nothing waits.

    The tensor: floating point, dense, any shape and strides. The vector: (260,) int64: overflow,
    underflow, zeros, nonfinite, and a `histograms.Histogram`.

    fmt: the format to whose values elements are rounded to nearest even, to see which over- and
        underflow; None: a format without a range of its own, in which no element does.
    """
    return counting_to_nearest(FP32 if fmt is None else fmt)


class Vectors:
    """New vectors of counts, all zero. Many are made at a time, which takes as long as one."""

    def __init__(self) -> None:
        self._waiting: dict[torch.device, list[Tensor]] = {}

    def take(self, device: torch.device) -> Tensor:
        waiting = self._waiting.get(device)
        if not waiting:
            # Counting goes on in inference mode and outside of it.
            with torch.inference_mode(False):
                made = torch.zeros((_MANY, WIDTH), dtype=torch.int64, device=device)
                waiting = self._waiting[device] = list(made.unbind())
        return waiting.pop()
