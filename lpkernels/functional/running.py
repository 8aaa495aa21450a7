"""Ranges and scales that a layer keeps of earlier tensors, and tensors rounded with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import DelayedScaling, Quantizer, RunningRange
from lpkernels.formats import AffineFormat
from lpkernels.functional import _checks
from lpkernels.functional._limits import checked_on_device
from lpkernels.functional.dtypes import widened
from lpkernels.functional.quantize import straight_through
from lpkernels.functional.seeds import seed_for
from lpkernels.rng import SITE_QUANTIZE, Role


class Average(NamedTuple):
    """The running average of a layer: the range (2,), and the weight () of the batches in it."""

    range: Tensor
    weight: Tensor


def rounded_input(
    function: str,
    x: Tensor,
    quantizer: Quantizer,
    rule: RunningRange,
    mean: Average,
    training: bool,
) -> Tensor:
    """x as the quantizer gives it in the range that belongs to it, straight-through, float32.

    In training this is the batch's range, over all ranks, which goes into mean. In evaluation it is
    the average, or, where there was no batch yet, the range of x. A quantizer in fp32 takes no
    range, and in training the batch's goes into mean all the same.
    """
    _checks.operands(function, x=x)
    seed = seed_for(quantizer.is_stochastic, None)
    with torch.no_grad():
        if training:
            ends = ops.update_range(x, mean.range, mean.weight, rule.momentum)
        else:
            average = mean.range / mean.weight if rule.debiased else mean.range
            ends = torch.where(mean.weight > 0, average, ops.finite_range(x))
        limits = checked_on_device(ends.reshape(2, 1))
    if not isinstance(quantizer.fmt, AffineFormat):
        return widened(x)
    ints, site = quantizer.to_ints(), SITE_QUANTIZE
    return straight_through(widened(x), ints, seed, Role.INPUT, site, "auto", limits)


class Delayed(NamedTuple):
    """The delayed scale of a layer's tensor in one call: S, and the history that notes the tensor's
    largest magnitude, None where it does not (`lpkernels.DelayedScaling`)."""

    scale: Tensor
    history: Tensor | None

    def parts(
        self, x: Tensor, quantizer: ops.Ints, seed: Tensor | None, role: int, backend: str
    ) -> ops.Parts:
        """x as codes and scales, as `ops.scaled` gives them; notes the largest magnitude."""
        notes = self.history is not None
        codes, scale, largest = ops.delayed(
            x, self.scale, quantizer, seed, role, SITE_QUANTIZE, notes, backend
        )
        if self.history is not None:
            note(self.history, largest)
        return codes, scale.reshape((1,) * x.dim()), torch.ones_like(scale)


def largest(x: Tensor) -> Tensor:
    """The largest magnitude of x, as `Delayed.parts` notes it."""
    return ops.largest(x)


def note(history: Tensor, largest: Tensor) -> None:
    """h[0] = max(h[0], largest); NaN stays."""
    first = history[:1]
    first.copy_(torch.maximum(first, largest))


class Scales(NamedTuple):
    """The delayed scales of a layer in one call; None: of a tensor that its recipe does not round.

    after_backward: called as the backward pass reads the output gradient.
    """

    input: Delayed | None
    weight: Delayed | None
    grad_output: Delayed | None
    after_backward: Callable[[], None] | None = None

    def of_backward(self) -> Scales:
        """For operands that backward rounds again: with the scales of the forward pass, also after
        an update, and noted once."""
        input, weight = (
            None if delayed is None else Delayed(delayed.scale.clone(), None)
            for delayed in (self.input, self.weight)
        )
        return self._replace(input=input, weight=weight)

    def again(self) -> Scales:
        """For an output gradient that second derivatives round again: with its scale of now, and
        not noted again."""
        again = self.grad_output and Delayed(self.grad_output.scale.clone(), None)
        return self._replace(grad_output=again, after_backward=None)


def next_scales(
    histories: Tensor, scales: Tensor, most: Tensor, scaling: DelayedScaling
) -> tuple[Tensor, Tensor]:
    """(rows, history) and (rows,) after the update of DelayedScaling, as new tensors.

    most: (rows,), M 2^-margin of the rows' formats, float32.
    """
    newest = histories[:, 0]
    ran = newest != 0
    largest = histories.amax(1) if scaling.algorithm == "max" else newest
    fitting = ran & (largest > 0) & largest.isfinite()
    updated = (most / largest).clamp(max=torch.finfo(torch.float32).max)
    rolled = histories.roll(-1, 1)
    rolled[:, 0] = 0
    after = torch.where(ran[:, None], rolled, histories)
    return after, torch.where(fitting, updated, scales)
