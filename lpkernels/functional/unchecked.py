"""Rounding, and an optimizer's step, for callers that check their arguments once and have many
tensors a step."""

from __future__ import annotations

from torch import Tensor

from lpkernels import ops
from lpkernels.functional._checks import axis as check_axis
from lpkernels.functional.seeds import seed_for
from lpkernels.ops import Ints, UpdateTensors, records, update
from lpkernels.rng import SITE_QUANTIZE, Role

__all__ = [
    "UpdateTensors",
    "check_axis",
    "packed",
    "records",
    "rounded",
    "unpacked",
    "update",
]


def rounded(
    x: Tensor, quantizer: Ints, stochastic: bool, counts: Tensor | None, out: Tensor | None
) -> Tensor:
    """`quantize` of a floating tensor that needs no gradient, without its checks.

    counts: int64, 4 elements on x's device, to which the call adds; out may be x.
    """
    seed = seed_for(stochastic, None)
    call = (seed, Role.DIRECT, SITE_QUANTIZE, "auto")
    if out is not None:
        ops.quantize_counting_out(x, out, quantizer, counts, None, *call)
        return out
    if counts is None:
        return ops.quantize(x, quantizer, *call)
    return ops.quantize_counting(x, quantizer, counts, None, *call)


def packed(x: Tensor, fmt: Ints) -> Tensor:
    """`pack` of a tensor without gradient, without its checks.

    Raises: ValueError: a value without a code.
    """
    return ops.pack(x, fmt)


def unpacked(codes: Tensor, fmt: Ints, numel: int) -> Tensor:
    """`unpack` of codes that `packed` made, without its checks."""
    return ops.unpack(codes, fmt, (numel,))
