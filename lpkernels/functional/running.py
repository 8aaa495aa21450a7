"""A layer's input rounded in a range: of its batch in training, of an average in evaluation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Quantizer, RunningRange
from lpkernels.functional import _checks
from lpkernels.functional._limits import checked_on_device
from lpkernels.functional.layer import widened
from lpkernels.functional.quantize import straight_through_in
from lpkernels.functional.seeds import seed_for
from lpkernels.rng import SITE_QUANTIZE, Role


class Average(NamedTuple):
    """The running average of a layer: the range (2,), and the weight () of the batches in it."""

    range: Tensor
    weight: Tensor


def rounded_input(
    function: str, x: Tensor, quantizer: Quantizer, its: RunningRange, kept: Average, training: bool
) -> Tensor:
    """x as the quantizer gives it in the range that belongs to it, straight-through, float32.

    In training this is the batch's range, over all ranks, which goes into kept. In evaluation it is
    the average, or, where there was no batch yet, the range of x.
    """
    _checks.operands(function, x=x)
    seed = seed_for(quantizer.is_stochastic, None)
    with torch.no_grad():
        if training:
            ends = ops.update_range(x, kept.range, kept.weight, its.momentum)
        else:
            average = kept.range / kept.weight if its.debiased else kept.range
            ends = torch.where(kept.weight > 0, average, ops.finite_range(x))
        limits = checked_on_device(ends.reshape(2, 1))
    call = (limits, seed, Role.INPUT, SITE_QUANTIZE, "auto")
    return straight_through_in(widened(x), quantizer.to_ints(), *call)
