"""The operators that round whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import Quantizer, quantizer_from_ints
from lpkernels.formats import FloatFormat, TableFormat
from lpkernels.ops import _checks
from lpkernels.ops._operator import as_ints, define
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


def quantized_like(x: Tensor, quantizer: Ints) -> Tensor:
    return torch.empty_like(x, dtype=result_dtype(x.dtype, quantizer))


def rounded(
    x: Tensor,
    quantizer: Ints,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str,
) -> Tensor:
    """The work of the operator: a new tensor, written by a backend."""
    if x.dtype is torch.float32:
        out = torch.empty_like(x)
    else:
        out = quantized_like(x, quantizer)
    round_into(out, x, quantizer, seed, role, site, backend)
    return out


def write_into(out: Tensor, x: Tensor, write: Callable[[Tensor], None]) -> None:
    """Writes x, rounded, to out by `write(out)`; out may be x itself or share memory with it."""
    if may_overlap(x, out):
        # Values, and what a scale is taken from, are read while out is written.
        target = torch.empty_like(out)
        write(target)
        out.detach().copy_(target)
    else:
        write(out)
    # Backends write through pointers, so autograd learns of the change only here.
    torch.autograd.graph.increment_version(out)


def may_overlap(x: Tensor, out: Tensor) -> bool:
    """Whether their storages share memory; views of one numpy array have storages of their own."""
    one, other = x.untyped_storage(), out.untyped_storage()
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes() and second < first + one.nbytes()


def round_into(
    out: Tensor,
    x: Tensor,
    quantizer: Ints,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str,
) -> None:
    """Writes x, rounded, to out, which may be x itself where no scale follows from the values."""
    known = _checks.rounds(quantizer)
    chosen = backends.select(backend, known.op, x.device)
    if x.numel() == 0:
        return
    if x.requires_grad or out.requires_grad:
        x, out = x.detach(), out.detach()
    if x.dim() == 0:
        # A scalar is a vector of one element, which has an axis for formats that need one.
        x, out = x.view(1), out.view(1)
    chosen.quantize(x, known.ints, seed, role, site, out)


def guard(x: Tensor, quantizer: Ints, *call: Any) -> None:
    """Refuses a call that rounds x; call ends in seed, role, site and backend."""
    _checks.quantizer("quantize", quantizer, x, *call[-4:-1])


def guard_out(x: Tensor, out: Tensor, quantizer: Ints, *call: Any) -> None:
    """Refuses an out into which x cannot be rounded."""
    _checks.written(x, out, result_dtype(x.dtype, quantizer))


def _guard_both(x: Tensor, out: Tensor, *call: Any) -> None:
    guard(x, *call)
    guard_out(x, out, *call)


_quantize = define(
    "_quantize(Tensor x, int[] quantizer, Tensor? seed, int role, int site, str backend) -> Tensor",
    lambda x, quantizer, *call: quantized_like(x, quantizer),
    rounded,
    guard,
)
_quantize_out = define(
    "_quantize_out(Tensor x, Tensor(a!) out, int[] quantizer, Tensor? seed, int role, int site,"
    " str backend) -> ()",
    lambda x, out, quantizer, *call: None,
    lambda x, out, *call: write_into(out, x, lambda target: round_into(target, x, *call)),
    _guard_both,
)


def quantize(
    x: Tensor,
    quantizer: Quantizer | Ints,
    seed: Tensor | None,
    role: int,
    site: int = SITE_QUANTIZE,
    backend: str = "auto",
) -> Tensor:
    """Every value of x rounded by quantizer, in a new tensor of `result_dtype`."""
    return _quantize(x, as_ints(quantizer), seed, int(role), site, backend)


def quantize_out(
    x: Tensor,
    out: Tensor,
    quantizer: Quantizer | Ints,
    seed: Tensor | None,
    role: int,
    site: int = SITE_QUANTIZE,
    backend: str = "auto",
) -> None:
    """`quantize` into out, which may share memory with x."""
    if not torch.compiler.is_compiling() and out.is_neg():
        # A view with its sign bit set apart, which the dispatcher resolves of inputs alone.
        out.copy_(quantize(x, quantizer, seed, role, site, backend))
        return
    _quantize_out(x, out, as_ints(quantizer), seed, int(role), site, backend)
