"""The one place that counts the elements of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.formats import FP32, FloatFormat
from lpkernels.functional.quantize import quantize
from lpkernels.techniques.loss_scaling.diagnosis.histograms import BINS

#: Overflow, underflow, zeros, nonfinite; then a bin for each exponent.
EVENTS = 4
WIDTH = EVENTS + BINS


def counted(x: Tensor, fmt: FloatFormat | None, into: Tensor) -> None:
    """Adds the counts of x's elements to `into`, on x's device, where nothing waits.

    x: floating point, dense, any shape and strides.
    fmt: to whose values elements are rounded to nearest even, to see what over- and underflows;
        None: float32's, of which no float32 element does.
    into: (260,) int64: overflow, underflow, zeros, nonfinite, and a `histograms.Histogram`.
    """
    fmt = FP32 if fmt is None else fmt
    x = x.detach().float().reshape(-1)
    q = quantize(x, fmt).float()
    finite = x.isfinite()
    events = (
        finite & ((~q.isfinite()) | (x.abs() > fmt.max) & (q.abs() >= fmt.max)),
        (x != 0) & (q == 0),
        x == 0,
        ~finite,
    )
    into[:EVENTS] += torch.stack([e.sum() for e in events])
    into[EVENTS:] += torch.bincount(((x.view(torch.int32) >> 23) & 255).long(), minlength=BINS)
