"""The operators that round whole tensors, some to limits, and count what rounding does."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import Quantizer, quantizer_from_ints
from lpkernels.backends import Rounding
from lpkernels.formats import FloatFormat, TableFormat
from lpkernels.ops import _checks
from lpkernels.ops._operator import (
    as_ints,
    define,
    is_direct,
    is_in_cpu_memory,
    refuse_mapped,
    without_grad,
)
from lpkernels.ops._rows import Ints
from lpkernels.rng import SITE_QUANTIZE

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


def quantize_directly(
    x: Tensor,
    quantizer: Ints,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str,
    limits: Tensor | None = None,
    counts: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The work of `quantize`, by a backend, in one pass."""
    call = (quantizer, seed, role, site, backend, limits, counts)
    if out is None:
        out = torch.empty_like(x) if x.dtype is torch.float32 else _new_result(x, quantizer)
        round_into(out, x, *call)
        return out
    if _may_overlap(x, out):
        # Values, and what a scale is taken from, are read while out is written.
        target = torch.empty_like(out)
        round_into(target, x, *call)
        out.detach().copy_(target)
    else:
        round_into(out, x, *call)
    # Backends write through pointers, so autograd learns of the change only here.
    torch.autograd.graph.increment_version(out)
    return out


def _may_overlap(x: Tensor, out: Tensor) -> bool:
    """Whether their storages share memory; views of one numpy array have storages of their own."""
    one, other = x.untyped_storage(), out.untyped_storage()
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes() and second < first + one.nbytes()


def round_into(
    out: Tensor | None,
    x: Tensor,
    quantizer: Ints,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str,
    limits: Tensor | None = None,
    counts: Tensor | None = None,
) -> None:
    """Writes x, rounded, to out, which may be x itself where no scale follows from the values, and
    adds to counts, if there are any. Without out it counts alone."""
    rounds = _checks.rounds(quantizer)
    values_alone = counts is None and limits is None
    op = rounds.op if values_alone else rounds.counting_op
    chosen = backends.select(backend, op, x.device)
    if x.numel() == 0:
        return
    if x.requires_grad or (out is not None and out.requires_grad):
        x, out = x.detach(), without_grad(out)
    if x.dim() == 0:
        # A scalar is a vector of one element, which has an axis for formats that need one.
        x, out = x.view(1), None if out is None else out.view(1)
    chosen.quantize(Rounding(x, rounds.ints, seed, role, site, out, counts, limits))
    if counts is not None:
        torch.autograd.graph.increment_version(counts)


def _guard(
    x: Tensor, quantizer: Ints, limits: Tensor | None, seed: Tensor | None, role: int, site: int,
    backend: str, length: int = backends.COUNTS,
) -> None:  # fmt: skip
    _checks.quantizer("quantize", quantizer, x, seed, role, site)
    _checks.limits(x, quantizer, limits)
    lengths = (backends.COUNTS, backends.COUNTS + backends.BINS)
    _checks.require(length in lengths, "count", f"one of {lengths} counts", length)


def _counted(
    x: Tensor, quantizer: Ints, limits: Tensor | None, seed: Tensor | None, role: int, site: int,
    backend: str, length: int,
) -> Tensor:  # fmt: skip
    counts = _new_counts(x, length)
    round_into(None, x, quantizer, seed, role, site, backend, limits, counts)
    return counts


def _new_counts(x: Tensor, length: int) -> Tensor:
    return x.new_zeros(length, dtype=torch.int64)


_ARGUMENTS = (
    "Tensor x, int[] quantizer, Tensor? limits, Tensor? seed, int role, int site, str backend"
)
_quantize = define(
    f"_quantize({_ARGUMENTS}) -> Tensor",
    lambda x, quantizer, *rest: _new_result(x, quantizer),
    lambda x, quantizer, limits, seed, role, site, backend: quantize_directly(
        x, quantizer, seed, role, site, backend, limits
    ),
    _guard,
)
_count = define(
    f"_count({_ARGUMENTS}, int length) -> Tensor",
    lambda x, *rest: _new_counts(x, rest[-1]),
    _counted,
    _guard,
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
    x, call = without_grad(x), (ints, limits, seed, int(role), site, backend)
    y = _quantize(x, *call)
    if counts is not None:
        counts.add_(_count(x, *call, counts.numel()))
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
    call = (as_ints(quantizer), limits, seed, int(role), site, backend)
    if is_direct(x, limits, seed, counts):
        round_into(None, x, call[0], *call[2:], limits, counts)
    else:
        counts.add_(_count(x, *call, counts.numel()))


class Counting:
    """`count` of many tensors to one format, without draws or limits. The backend of "auto" and the
    like are looked up once, not in every call.

    A tensor in the memory of the CPU goes to the kernel past torch's dispatcher, so modes and
    profilers do not see it; any other one takes the operator.
    """

    def __init__(self, quantizer: Quantizer | Ints) -> None:
        self._ints = as_ints(quantizer)
        self._backend: backends.Backend | None = None

    def __call__(self, x: Tensor, counts: Tensor) -> None:
        if not is_in_cpu_memory(x) or x.dim() == 0 or x.numel() == 0:
            return count(x, self._ints, counts, None, None, 0)
        chosen = self._backend
        if chosen is None:
            op = _checks.rounds(self._ints).counting_op
            chosen = self._backend = backends.select("auto", op, x.device)
        chosen.quantize(Rounding(x, self._ints, counts=counts))
