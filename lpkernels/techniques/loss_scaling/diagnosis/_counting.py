"""The one place that counts the elements of a tensor."""

from __future__ import annotations

from torch import Tensor

from lpkernels.formats import FP32, FloatFormat
from lpkernels.functional.count import count_to_nearest
from lpkernels.techniques.loss_scaling.diagnosis.histograms import BINS

#: Overflow, underflow, zeros, nonfinite; then a bin for each exponent.
EVENTS = 4
WIDTH = EVENTS + BINS


def counted(x: Tensor, fmt: FloatFormat | None, into: Tensor) -> None:
    """Adds the counts of x's elements to `into`, on x's device, where nothing waits.

    x: floating point, dense, any shape and strides.
    fmt: to whose values elements are rounded to nearest even, to see what over- and underflows;
        None: of a format without a range of its own, of which no element does.
    into: (260,) int64: overflow, underflow, zeros, nonfinite, and a `histograms.Histogram`.
    """
    count_to_nearest(x, FP32 if fmt is None else fmt, into)
