"""The operators that round whole tensors and count what rounding does; some round to a given
range."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import Quantizer
from lpkernels.ops import _checks
from lpkernels.ops._operator import as_ints, define, is_plain, without_grad
from lpkernels.ops._quantize import guard, guard_out, quantized_like, write_into
from lpkernels.ops._rows import Ints
from lpkernels.rng import SITE_QUANTIZE


def _operation(quantizer: Ints) -> str:
    """What `Backend.unsupported` calls counting roundings to a format; to one with scales it has
    the name of rounding."""
    known = _checks.rounds(quantizer)
    plain = known.op.removesuffix("_table") == "quantize"
    return known.op.replace("quantize", "quantize_counting") if plain else known.op


def _rounded(x: Tensor, quantizer: Ints, *call: Any) -> Tensor:
    out = quantized_like(x, quantizer)
    _run(x, out, quantizer, *call)
    return out


def _round_into(x: Tensor, out: Tensor, *call: Any) -> None:
    write_into(out, x, lambda target: _run(x, target, *call))


def _guard(x: Tensor, quantizer: Ints, counts: Tensor | None, limits: Any, *call: Any) -> None:
    guard(x, quantizer, *call)
    _checks.counting(x, quantizer, counts, limits)


def _guard_out(x: Tensor, out: Tensor, quantizer: Ints, *call: Any) -> None:
    _guard(x, quantizer, *call)
    guard_out(x, out, quantizer)


def _run(
    x: Tensor,
    out: Tensor | None,
    quantizer: Ints,
    counts: Tensor | None,
    limits: Tensor | None,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str,
) -> None:
    chosen = backends.select(backend, _operation(quantizer), x.device)
    if x.numel() == 0:
        return
    x, out = without_grad(x), without_grad(out)
    if x.dim() == 0:
        x, out = x.view(1), None if out is None else out.view(1)
    chosen.quantize_counting(x, tuple(quantizer), seed, role, site, out, counts, limits)
    if counts is not None:
        torch.autograd.graph.increment_version(counts)


_CALL = "Tensor? limits, Tensor? seed, int role, int site, str backend"
_quantize_counting = define(
    f"_quantize_counting(Tensor x, int[] quantizer, Tensor(a!) counts, {_CALL}) -> Tensor",
    lambda x, quantizer, *call: quantized_like(x, quantizer),
    _rounded,
    _guard,
)
_quantize_counting_out = define(
    "_quantize_counting_out(Tensor x, Tensor(a!) out, int[] quantizer, Tensor(b!) counts,"
    f" {_CALL}) -> ()",
    lambda x, out, quantizer, *call: None,
    _round_into,
    _guard_out,
)
# Without counts, for compilers that take no missing tensor where one is changed (inductor 2.13).
_quantize_ranged = define(
    f"_quantize_ranged(Tensor x, int[] quantizer, {_CALL}) -> Tensor",
    lambda x, quantizer, *call: quantized_like(x, quantizer),
    lambda x, quantizer, *call: _rounded(x, quantizer, None, *call),
    lambda x, quantizer, *call: _guard(x, quantizer, None, *call),
)
_quantize_ranged_out = define(
    f"_quantize_ranged_out(Tensor x, Tensor(a!) out, int[] quantizer, {_CALL}) -> ()",
    lambda x, out, quantizer, *call: None,
    lambda x, out, quantizer, *call: _round_into(x, out, quantizer, None, *call),
    lambda x, out, quantizer, *call: _guard_out(x, out, quantizer, None, *call),
)
_count = define(
    f"_count(Tensor x, int[] quantizer, Tensor(a!) counts, {_CALL}) -> ()",
    lambda x, quantizer, *call: None,
    lambda x, quantizer, *call: _run(x, None, quantizer, *call),
    _guard,
)


def quantize_counting(
    x: Tensor,
    quantizer: Quantizer | Ints,
    counts: Tensor | None,
    limits: Tensor | None,
    seed: Tensor | None,
    role: int,
    site: int = SITE_QUANTIZE,
    backend: str = "auto",
) -> Tensor:
    """`quantize` that counts too, and takes the ends of an affine format's slices.

    counts: int64, contiguous, 4 or 4 + 256 elements on x's device; None: not counted. limits:
    float64, contiguous, (2, slices) on x's device, NaN for slices without ends; None: the tensor's.
    """
    call = (limits, seed, int(role), site, backend)
    if counts is None:
        return _quantize_ranged(x, as_ints(quantizer), *call)
    return _quantize_counting(x, as_ints(quantizer), counts, *call)


def quantize_counting_out(
    x: Tensor,
    out: Tensor,
    quantizer: Quantizer | Ints,
    counts: Tensor | None,
    limits: Tensor | None,
    seed: Tensor | None,
    role: int,
    site: int = SITE_QUANTIZE,
    backend: str = "auto",
) -> None:
    """`quantize_counting` into out, which may share memory with x."""
    call = (limits, seed, int(role), site, backend)
    if not torch.compiler.is_compiling() and out.is_neg():
        out.copy_(quantize_counting(x, quantizer, counts, *call))
    elif counts is None:
        _quantize_ranged_out(x, out, as_ints(quantizer), *call)
    else:
        _quantize_counting_out(x, out, as_ints(quantizer), counts, *call)


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
    _count(x, as_ints(quantizer), counts, limits, seed, int(role), site, backend)


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
        if not is_plain(x) or x.dim() == 0 or x.numel() == 0:
            return count(x, self._ints, counts, None, None, 0)
        chosen = self._backend
        if chosen is None:
            chosen = self._backend = backends.select("auto", _operation(self._ints), x.device)
        chosen.quantize_counting(x, self._ints, None, 0, SITE_QUANTIZE, None, counts, None)
