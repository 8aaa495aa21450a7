"""The operators on whole tensors: rounding to values, to codes with scales, and to counts of what
rounding does; Hadamard transforms; the ends of a tensor's finite values, and their average."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import Quantizer, quantizer_from_ints
from lpkernels.arithmetic.hadamard import (
    check_transform,
    signs_of,
    transform_from_int,
    transform_to_int,
)
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends import Parts, Rounding, new_parts
from lpkernels.formats import (
    BlockFormat,
    FixedFormat,
    FloatFormat,
    TableFormat,
    table_of_handle,
)
from lpkernels.formats.integers import BLOCK, KIND, TENSOR, InBlock, InTable, Ints, element
from lpkernels.ops import _checks
from lpkernels.ops._descriptions import has_every_code, require, rounds, select
from lpkernels.ops._operator import (
    as_ints,
    define,
    is_direct,
    is_in_cpu_memory,
    refuse_mapped,
    without_grad,
)
from lpkernels.rng import SITE_QUANTIZE, Role

_INFINITY = float("inf")
_TRANSFORMED = (torch.float32, torch.float16, torch.bfloat16)
_WIDTHS = {torch.float16: (5, 10), torch.bfloat16: (8, 7)}


def result_dtype(dtype: torch.dtype, quantizer: Ints) -> torch.dtype:
    """The dtype of quantize's result: x's where it holds every value of the format, or float32."""
    if dtype is torch.float32:
        return dtype
    fmt = quantizer_from_ints(tuple(quantizer)).fmt
    if dtype == torch.float64:
        return dtype if isinstance(fmt, FloatFormat | TableFormat) else torch.float32
    return dtype if dtype in _WIDTHS and fmt.fits_in(*_WIDTHS[dtype]) else torch.float32


def _new_result(x: Tensor, quantizer: Ints) -> Tensor:
    return torch.empty_like(x, dtype=result_dtype(x.dtype, quantizer))


def carry_out(rounding: Rounding, backend: str) -> None:
    """A rounding by a backend. Its tensors may be empty or scalars and require gradients, out may
    be x itself where no scale follows from the values, and out may be None where there are counts.
    """
    x, quantizer, _, _, _, out, counts, limits, parts = rounding
    description = rounds(quantizer)
    if parts is not None:
        op = description.scaled_op
    else:
        op = description.op if counts is None and limits is None else description.counting_op
    chosen = select(backend, op, x.device)
    if x.numel() == 0:
        return
    recorded = x.requires_grad or (out is not None and out.requires_grad)
    if recorded and torch.is_grad_enabled():
        rounding = rounding._replace(x=without_grad(x), out=without_grad(out))
    if x.dim() == 0:
        # A scalar is a vector of one element, which has an axis for formats that need one.
        vector = None if rounding.out is None else rounding.out.view(1)
        rounding = rounding._replace(x=rounding.x.view(1), out=vector)
    chosen.quantize(rounding)
    if counts is not None:
        torch.autograd.graph.increment_version(counts)


def quantize_directly(
    x: Tensor,
    quantizer: Ints,
    seed: Tensor | None = None,
    role: int = Role.DIRECT,
    site: int = SITE_QUANTIZE,
    backend: str = "auto",
    limits: Tensor | None = None,
    counts: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The work of `quantize`, by a backend, in one pass."""
    if out is None:
        y = torch.empty_like(x) if x.dtype is torch.float32 else _new_result(x, quantizer)
        carry_out(Rounding(x, quantizer, seed, role, site, y, counts, limits), backend)
        return y
    # Values, and what a scale is taken from, are read while the result is written.
    target = torch.empty_like(out) if _may_overlap(x, out) else out
    carry_out(Rounding(x, quantizer, seed, role, site, target, counts, limits), backend)
    if target is not out:
        out.detach().copy_(target)
    # Backends write through pointers, so autograd learns of the change only here.
    torch.autograd.graph.increment_version(out)
    return out


def _may_overlap(x: Tensor, out: Tensor) -> bool:
    """Whether their storages share memory; views of one numpy array have storages of their own."""
    one, other = x.untyped_storage(), out.untyped_storage()
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes() and second < first + one.nbytes()


def _counted(a: Any) -> Tensor:
    counts = a.x.new_zeros(a.length, dtype=torch.int64)
    rounding = Rounding(a.x, a.quantizer, a.seed, a.role, a.site, None, counts, a.limits)
    carry_out(rounding, a.backend)
    return counts


def _guard_count(a: Any) -> None:
    lengths = (backends.COUNTS, backends.COUNTS + backends.BINS)
    require(a.length in lengths, "count", f"one of {lengths} counts", a.length)


_quantize = define(
    "_quantize(x, quantizer, limits, seed, role, site, backend) -> Tensor",
    lambda a: _new_result(a.x, a.quantizer),
    lambda a: quantize_directly(a.x, a.quantizer, a.seed, a.role, a.site, a.backend, a.limits),
)
_count = define(
    "_count(x, quantizer, limits, seed, role, site, backend, int length) -> Tensor",
    lambda a: a.x.new_zeros(a.length, dtype=torch.int64),
    _counted,
    _guard_count,
)


def quantize(
    x: Tensor,
    quantizer: Quantizer | Ints,
    seed: Tensor | None,
    role: int,
    site: int = SITE_QUANTIZE,
    backend: str = "auto",
    limits: Tensor | None = None,
    counts: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Every value of x rounded by quantizer, in a new tensor of `result_dtype` or in out.

    limits: the limits of a `Rounding`. counts: int64, contiguous, `COUNTS` or `COUNTS` + `BINS`
    elements on x's device, to which the counts are added. out: of x's shape, in `result_dtype` or
    float32; it may share memory with x.
    """
    ints = as_ints(quantizer)
    if counts is None and out is None:
        return _quantize(x, ints, limits, seed, int(role), site, backend)
    refuse_mapped(x, counts, out)
    if is_direct(x, limits, seed, counts, out):
        return quantize_directly(x, ints, seed, role, site, backend, limits, counts, out)
    # The operators change no argument, so that compilers can trace them.
    y = _quantize(without_grad(x), ints, limits, seed, int(role), site, backend)
    if counts is not None:
        count(x, ints, counts, limits, seed, role, site, backend)
    if out is None:
        return y
    out.detach().copy_(y)
    return out


def count(
    x: Tensor,
    quantizer: Quantizer | Ints,
    counts: Tensor,
    limits: Tensor | None,
    seed: Tensor | None,
    role: int,
    site: int = SITE_QUANTIZE,
    backend: str = "auto",
) -> None:
    """Adds to counts what `quantize` would do to x, which stays."""
    refuse_mapped(x, counts)
    x, ints = without_grad(x), as_ints(quantizer)
    if is_direct(x, limits, seed, counts):
        carry_out(Rounding(x, ints, seed, role, site, None, counts, limits), backend)
    else:
        length = counts.numel()
        counts.add_(_count(x, ints, limits, seed, int(role), site, backend, length))


def count_quietly(x: Tensor, quantizer: Ints, counts: Tensor) -> None:
    """`count` without draws or limits. A tensor in the memory of the CPU goes to the kernel past
    torch's dispatcher, so modes and profilers do not see it; any other one takes the operator."""
    if is_in_cpu_memory(x):
        carry_out(Rounding(x, quantizer, counts=counts), "auto")
    else:
        count(x, quantizer, counts, None, None, 0)


def scaled_directly(
    x: Tensor,
    quantizer: Ints,
    amax: Tensor | None,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str,
) -> Parts:
    """The work of the operator."""
    # A scalar is a vector of one element, which has an axis.
    parts = new_parts(x.shape or (1,), quantizer, x.device)
    carry_out(Rounding(x, quantizer, seed, role, site, None, None, amax, parts), backend)
    values, scale, tensor_scale = parts
    codes = rounds(quantizer).codes
    if codes is not None and codes.without_zero:
        # The codes of a block that is NaN are 0, or the least value where 0 is none.
        values.clamp_(min=table_of_handle(element(quantizer)[InTable.HANDLE]).min)
    if x.dim():
        return parts
    return values.view(()), scale.view(()), tensor_scale.view(())


_scaled = define(
    "_scaled(x, quantizer, limits, seed, role, site, backend) -> (Tensor, Tensor, Tensor)",
    lambda a: new_parts(a.x.shape, tuple(a.quantizer), a.x.device),
    lambda a: scaled_directly(*a),
    lambda a: require(a.quantizer[KIND] == BLOCK, "scaled", "a block format", a.quantizer),
)


def scaled(
    x: Tensor,
    quantizer: Ints,
    amax: Tensor | None,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str = "auto",
) -> Parts:
    """x in a block format: codes of x's shape, the scales of its blocks on their grid, and the
    scale of the tensor or those of its lines, all float32.

    amax: one float64 element on x's device, in place of the tensor's largest finite magnitude, or
    one for each line.
    """
    return _scaled(without_grad(x), quantizer, amax, seed, int(role), site, backend)


class _DelayedCodes(NamedTuple):
    """How codes are made; most: the largest magnitude that rounding gets, None where it saturates
    there itself."""

    quantizer: Ints
    most: float | None
    one_zero: bool
    has_nan: bool


@lru_cache(maxsize=1024)
def _delayed_codes(quantizer: Ints) -> _DelayedCodes:
    fmt = quantizer_from_ints(quantizer).fmt
    assert isinstance(fmt, BlockFormat)
    number, integers, most = fmt.element, isinstance(fmt.element, FixedFormat), fmt.largest
    # A target above the largest integer lets the one below the least in.
    clamps = integers or most < number.max
    if isinstance(number, TableFormat):
        ints, clamps = number.to_ints(), True
    else:
        ints = replace(number, overflow="saturate").to_ints()
    of_codes = ints + quantizer[InQuantizer.MODE]
    return _DelayedCodes(of_codes, most if clamps else None, integers, has_every_code(ints))


def _delayed_directly(a: Any) -> Parts:
    x, encode = without_grad(a.x), without_grad(a.encode)
    how = _delayed_codes(a.quantizer)
    codes = x.float() * encode
    if how.most is not None:
        codes.clamp_(-how.most, how.most)
    # In place: every value is rounded by itself, and one of the format stays.
    carry_out(Rounding(codes, how.quantizer, a.seed, a.role, a.site, codes), a.backend)
    if how.one_zero:
        codes += 0.0
    seen = largest(x) if a.notes or not how.has_nan else torch.zeros_like(encode)
    scale = 1 / encode
    if not how.has_nan:
        # As in other block formats the scale alone says NaN.
        codes.nan_to_num_(0.0)
        scale = torch.where(seen.isnan(), seen, scale)
    return codes, scale, seen


def _delayed_result(a: Any) -> Parts:
    one = a.x.new_empty((), dtype=torch.float32)
    return torch.empty_like(a.x, dtype=torch.float32), one, torch.empty_like(one)


def _guard_delayed(a: Any) -> None:
    of_tensor = a.quantizer[KIND] == BLOCK and a.quantizer[InBlock.LINES] == TENSOR
    require(of_tensor, "delayed", "one scale a tensor", a.quantizer)
    _checks.tensor("delayed", "scale", a.encode, (), torch.float32, a.x.device)


_delayed = define(
    "_delayed(x, Tensor encode, quantizer, seed, role, site, bool notes, backend)"
    " -> (Tensor, Tensor, Tensor)",
    _delayed_result,
    _delayed_directly,
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


def _new_float32(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=torch.float32, device=x.device)


def _transformed(a: Any) -> Tensor:
    chosen = select(a.backend, "hadamard", a.x.device)
    if a.x.numel() == 0:
        return _new_float32(a.x)
    size, signs = transform_from_int(a.transform)
    assert size is not None
    return chosen.hadamard(without_grad(a.x), size, signs_of(size, signs), a.axis % a.x.dim())


def _check_hadamard(x: Tensor, transform: int, axis: int) -> None:
    size, signs = transform_from_int(transform)
    check_transform("lpkernels::_hadamard", size, signs)
    require(x.dtype in _TRANSFORMED, "hadamard", "float16, bfloat16 or float32", x.dtype)
    require(-x.dim() <= axis < x.dim(), "hadamard", f"an axis of {x.dim()} dimensions", axis)
    expected = f"a length along axis {axis} that {size} divides"
    require(x.shape[axis] % (size or 1) == 0, "hadamard", expected, tuple(x.shape))


_hadamard = define(
    "_hadamard(x, int transform, int axis, backend) -> Tensor",
    lambda a: _new_float32(a.x),
    _transformed,
    lambda a: _check_hadamard(a.x, a.transform, a.axis),
)


def hadamard(x: Tensor, size: int, signs: str | int, axis: int, backend: str = "auto") -> Tensor:
    """Every run of size values along axis as x D H / sqrt(size), rounded once to bfloat16.

    Args:
        x:    float16, bfloat16 or float32, of any shape and strides.
        size: 16, 32, 64 or 128; it divides x's length along axis.
        signs: D: "te" or a seed, as a Quantizer takes it.
    Returns:  a new contiguous float32 tensor of x's shape. `reference.hadamard` says what becomes
        of zeros, infinities and NaN.
    Raises:  TypeError, ValueError: another size, signs, dtype or axis, or a length that size does
        not divide.
    """
    transform = transform_to_int(*check_transform("hadamard", size, signs))
    _check_hadamard(x, transform, axis)
    return _hadamard(x, transform, axis, backend)


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


def _updated_range(a: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, average, weight, momentum = a
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
    "_update_range(x, Tensor average, Tensor weight, float momentum) -> (Tensor, Tensor, Tensor)",
    lambda a: (
        a.x.new_empty(2, dtype=torch.float32), torch.empty_like(a.average),
        torch.empty_like(a.weight),
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


def largest(x: Tensor) -> Tensor:
    """The largest magnitude of a tensor's values, 0-d float32: NaN if one is NaN, 0 of none."""
    if not x.numel():
        return x.new_zeros((), dtype=torch.float32)
    low, high = torch.aminmax(x)
    return torch.maximum(low.abs(), high.abs()).float()
