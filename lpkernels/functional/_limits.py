"""Limits that a caller gives in place of a tensor's own, as float64 tensors for the kernels: the
range of an affine format, and the largest magnitude of a block format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.formats import format_from_ints
from lpkernels.formats.grids import tensor_scale_shape
from lpkernels.formats.integers import AFFINE, KIND, takes_amax
from lpkernels.formats.integers import axis as axis_of
from lpkernels.functional import _checks

RangeLike: TypeAlias = Tensor | Sequence[float | Tensor]


def limits_of(
    function: str, x: Tensor, quantizer: tuple[int, ...], ends: RangeLike | None
) -> Tensor | None:
    """ends as (2, slices) float64 on x's device, NaN for a slice without valid ends; None for None.

    Nothing waits for the device: ends that are tensors are checked on the device.
    """
    if ends is None:
        return None
    if quantizer[KIND] != AFFINE:
        raise ValueError(
            f"{function}: range= is the range of an AffineFormat, but the format is another one, "
            "whose values do not depend on a range; leave range away or pass such as 'affine8'"
        )
    axis = axis_of(quantizer)
    slices = 1 if axis is None else x.shape[axis]
    expected = "" if axis is None else f" for all slices, or {slices} along axis {axis}"
    if isinstance(ends, Tensor):
        _check(function, "range", ends, x)
        if ends.shape not in ((2,), (2, slices)):
            raise ValueError(
                f"{function}: range has shape {tuple(ends.shape)}, expected (2,){expected}: the "
                "low ends, then the high ones"
            )
        return checked_on_device(ends.detach().reshape(2, -1).expand(2, slices))
    if not isinstance(ends, Sequence) or isinstance(ends, str) or len(ends) != 2:
        raise TypeError(
            f"{function}: range must be (lo, hi), two numbers or tensors, or one tensor of both, "
            f"got {ends!r}"
        )
    lo, hi = ends
    rows = [
        _values(function, name, end, x, slices, expected)
        for name, end in (("range's lo", lo), ("range's hi", hi))
    ]
    if isinstance(lo, Tensor) or isinstance(hi, Tensor):
        return checked_on_device(torch.stack(rows))
    if not 0 <= hi - lo < math.inf:
        raise ValueError(
            f"{function}: range=({lo}, {hi}) must be finite with lo <= hi; (hi, lo) would be "
            "another range, and (0.0, 0.0) is one of a single value"
        )
    return torch.stack(rows)


def amax_of(
    function: str, x: Tensor, quantizer: tuple[int, ...], amax: float | Tensor | None
) -> Tensor | None:
    """amax as a float64 tensor (1,) on x's device, (lines,) where each line has a scale; None for
    None. Nothing waits for the device."""
    if amax is None:
        return None
    if not takes_amax(quantizer):
        raise ValueError(
            f"{function}: amax= is the largest magnitude of a whole tensor, but "
            f"{format_from_ints(quantizer[InQuantizer.FORMAT])} has no scale of the tensor; leave "
            "amax away, or use a format with tensor_scale=True or block_size='tensor'"
        )
    shape = tensor_scale_shape(x.shape, quantizer)
    hint = f", or {shape}; use .abs().amax()" if shape else "; use .amax()"
    if isinstance(amax, Tensor) and amax.shape == shape:
        amax = amax.reshape(-1)
    return _values(function, "amax", amax, x, math.prod(shape), hint).contiguous()


def _widened(x: Tensor) -> Tensor:
    """x in float64, also where the processor flushes subnormals of float32."""
    if x.dtype == torch.float64:
        return x
    bits = x.float().view(torch.int32)
    magnitude = (bits & 0x7FFFFF).to(torch.float64) * 2.0**-149
    subnormal = torch.where(bits < 0, -magnitude, magnitude)
    return torch.where(bits & 0x7F800000 == 0, subnormal, x.to(torch.float64))


def _values(
    function: str, name: str, value: float | Tensor, x: Tensor, slices: int, hint: str
) -> Tensor:
    """A number or a tensor of one value, or of one for each slice, as (slices,) float64."""
    _check(function, name, value, x)
    if not isinstance(value, Tensor):
        return x.new_full((slices,), float(value), dtype=torch.float64)
    if value.numel() != 1 and value.shape != (slices,):
        shape = tuple(value.shape)
        raise ValueError(f"{function}: {name} has shape {shape}, expected one element{hint}")
    return _widened(value.detach()).reshape(-1).expand(slices)


def checked_on_device(limits: Tensor) -> Tensor:
    """limits, with NaN where they are not finite or the wrong way round."""
    limits = limits.to(torch.float64)
    span = limits[1] - limits[0]
    return torch.where((span >= 0) & (span < math.inf), limits, math.nan).contiguous()


def _check(function: str, name: str, end: object, x: Tensor) -> None:
    """end is a number, or a floating tensor on x's device."""
    if not isinstance(end, Tensor):
        if isinstance(end, bool) or not isinstance(end, int | float):
            raise TypeError(
                f"{function}: {name} must be a number or a tensor, got {type(end).__name__}"
            )
    elif end.dtype not in _checks.FLOATING:
        raise TypeError(
            f"{function}: {name} must be of a floating dtype, got {end.dtype}; use .double()"
        )
    elif end.device != x.device:
        raise ValueError(
            f"{function}: {name} is on {end.device} but x on {x.device}; move it with "
            ".to(x.device), or pass numbers"
        )
