"""The operators of ranges and scales that layers keep: the ends of a tensor's finite values, their
average, and a tensor rounded with the scale of earlier tensors."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from lpkernels.arithmetic import quantizer_from_ints
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends import Parts
from lpkernels.formats import BlockFormat, FixedFormat, TableFormat
from lpkernels.formats.integers import BLOCK, KIND, TENSOR, InBlock
from lpkernels.ops import _checks
from lpkernels.ops._checks import has_every_code
from lpkernels.ops._operator import define, is_direct, refuse_mapped, without_grad
from lpkernels.ops._quantize import round_into
from lpkernels.ops._rows import Ints

_INFINITY = float("inf")


def finite_range(x: Tensor) -> Tensor:
    """(lowest, highest) of the finite values of x as (2,) float32; (inf, -inf) if there is none."""
    x = without_grad(x)
    if not x.numel():
        return x.new_tensor([_INFINITY, -_INFINITY], dtype=torch.float32)
    # Reading the flag would wait for another device; such a device looks at every value instead.
    if is_direct(x) and x.is_cpu:
        ends = torch.stack(torch.aminmax(x)).float()
        if ends.isfinite().all():
            return ends
    finite = x.isfinite()
    low, high = torch.where(finite, x, _INFINITY), torch.where(finite, x, -_INFINITY)
    return torch.stack([low.amin(), high.amax()]).float()


def _updated_range(
    x: Tensor, average: Tensor, weight: Tensor, momentum: float
) -> tuple[Tensor, Tensor, Tensor]:
    ends = finite_range(x)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        ends[1].neg_()
        dist.all_reduce(ends, dist.ReduceOp.MIN)
        ends[1].neg_()
    # Where no value is finite there is no range to learn of.
    seen = ends[0] <= ends[1]
    new_average = torch.where(seen, average * momentum + ends * (1 - momentum), average)
    return ends, new_average, torch.where(seen, weight * momentum + (1 - momentum), weight)


# Compilers would contract the products and sums of an average.
_update_range = define(
    "_update_range(Tensor x, Tensor average, Tensor weight, float momentum)"
    " -> (Tensor, Tensor, Tensor)",
    lambda x, average, weight, momentum: (
        x.new_empty(2, dtype=torch.float32), torch.empty_like(average), torch.empty_like(weight),
    ),
    _updated_range,
)  # fmt: skip


def update_range(x: Tensor, average: Tensor, weight: Tensor, momentum: float) -> Tensor:
    """`finite_range` of x, or of the x of all ranks where torch.distributed is initialised. It is
    taken into the average range (2,) and its weight (), unless no value is finite."""
    refuse_mapped(x, average, weight)
    ends, new_average, new_weight = _update_range(without_grad(x), average, weight, momentum)
    average.copy_(new_average)
    weight.copy_(new_weight)
    return ends


class _Codes(NamedTuple):
    """How codes are made; most: the largest magnitude that rounding gets, None where it saturates
    there itself."""

    quantizer: Ints
    most: float | None
    one_zero: bool
    has_nan: bool


@lru_cache(maxsize=1024)
def _codes(quantizer: Ints) -> _Codes:
    fmt = quantizer_from_ints(quantizer).fmt
    assert isinstance(fmt, BlockFormat)
    element, integers = fmt.element, isinstance(fmt.element, FixedFormat)
    most = fmt.largest
    # A target above the largest integer lets the one below the least in.
    clamps = integers or most < element.max
    if isinstance(element, TableFormat):
        ints, clamps = element.to_ints(), True
    else:
        ints = replace(element, overflow="saturate").to_ints()
    of_codes = ints + quantizer[InQuantizer.MODE]
    return _Codes(of_codes, most if clamps else None, integers, has_every_code(ints))


def _delayed_impl(
    x: Tensor,
    encode: Tensor,
    quantizer: Ints,
    seed: Tensor | None,
    role: int,
    site: int,
    notes: bool,
    backend: str,
) -> Parts:
    x, encode = without_grad(x), without_grad(encode)
    how = _codes(tuple(quantizer))
    codes = x.float() * encode
    if how.most is not None:
        codes.clamp_(-how.most, how.most)
    # In place: every value is rounded by itself, and one of the format stays.
    round_into(codes, codes, how.quantizer, seed, role, site, backend)
    if how.one_zero:
        codes += 0.0
    seen = largest(x) if notes or not how.has_nan else torch.zeros_like(encode)
    scale = 1 / encode
    if not how.has_nan:
        # As in other block formats the scale alone says NaN.
        codes.nan_to_num_(0.0)
        scale = torch.where(seen.isnan(), seen, scale)
    return codes, scale, seen


def largest(x: Tensor) -> Tensor:
    """The largest magnitude of a tensor's values, 0-d float32: NaN if one is NaN, 0 of none."""
    if not x.numel():
        return x.new_zeros((), dtype=torch.float32)
    low, high = torch.aminmax(x)
    return torch.maximum(low.abs(), high.abs()).float()


def _delayed_fake(x: Tensor, *rest: object) -> Parts:
    one = x.new_empty((), dtype=torch.float32)
    return torch.empty_like(x, dtype=torch.float32), one, torch.empty_like(one)


def _guard_delayed(x: Tensor, encode: Tensor, quantizer: Ints, *call: Any) -> None:
    _checks.quantizer("delayed", quantizer, x, *call[:3])
    of_tensor = quantizer[KIND] == BLOCK and quantizer[InBlock.LINES] == TENSOR
    _checks.require(of_tensor, "delayed", "one scale a tensor", quantizer)
    given = (tuple(encode.shape), encode.dtype, encode.device)
    _checks.require(given == ((), torch.float32, x.device), "delayed", "a 0-d scale", given)


_delayed = define(
    "_delayed(Tensor x, Tensor encode, int[] quantizer, Tensor? seed, int role, int site,"
    " bool notes, str backend) -> (Tensor, Tensor, Tensor)",
    _delayed_fake,
    _delayed_impl,
    _guard_delayed,
)


def delayed(
    x: Tensor,
    encode: Tensor,
    quantizer: Ints,
    seed: Tensor | None,
    role: int,
    site: int,
    notes: bool,
    backend: str = "auto",
) -> Parts:
    """Codes of x, their scale 1 / encode, and the largest magnitude of x (0 unless it notes), all
    float32.

    The codes are round(clamp(x * encode, -M, M)), of x's shape; the others are 0-d. encode: 0-d
    float32 on x's device. NaN stays NaN in the codes, and is the largest magnitude of its tensor;
    where the element has no code for it, its code is 0 and the scale is NaN.
    """
    return _delayed(x.detach(), encode, quantizer, seed, int(role), site, notes, backend)
