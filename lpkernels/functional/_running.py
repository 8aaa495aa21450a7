"""A layer's input rounded in a range: of its batch in training, of an average in evaluation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Quantizer, RunningRange
from lpkernels.functional import _checks
from lpkernels.functional._autograd import apply
from lpkernels.functional._layer import widened
from lpkernels.functional.seeds import seed_for
from lpkernels.ops import Ints
from lpkernels.rng import SITE_QUANTIZE, Role


class Average(NamedTuple):
    """What a layer keeps: the average range (2,), and the weight () of the batches in it."""

    range: Tensor
    weight: Tensor


def rounded_input(
    function: str, x: Tensor, quantizer: Quantizer, its: RunningRange, kept: Average, training: bool
) -> Tensor:
    """x as the quantizer gives it in the range that belongs to it, straight-through, float32.

    In training that is the batch's, over all ranks, which goes into kept; in evaluation the
    average, or, where there was no batch yet, that of x.
    """
    _checks.operands(function, x=x)
    seed = seed_for(quantizer.is_stochastic, None)
    with torch.no_grad():
        if training:
            ends = ops.update_range(x, kept.range, kept.weight, its.momentum)
        else:
            average = kept.range / kept.weight if its.debiased else kept.range
            ends = torch.where(kept.weight > 0, average, ops.finite_range(x))
    return _in_range(widened(x), quantizer, ends, seed)


def _in_range(x: Tensor, quantizer: Quantizer, ends: Tensor, seed: Tensor | None) -> Tensor:
    return apply(_InRange, (x,), quantizer.to_ints(), ends, seed)


class _InRange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ints: Ints, ends: Tensor, seed: Tensor | None) -> Tensor:
        # The ends stand behind the values, none of which lies outside, and make the range.
        flat = torch.cat([torch.clamp(x.reshape(-1), *ends), ends])
        flat = ops.quantize(flat, ints, seed, Role.INPUT, SITE_QUANTIZE)
        return flat[:-2].reshape(x.shape).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, None, None, None
