"""Rounding, counting, packing and an optimizer's step, for callers that check their arguments once
and have many tensors a step: for a small tensor a check takes as long as the work."""

from __future__ import annotations

from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Quantizer
from lpkernels.formats import FloatFormat
from lpkernels.functional._checks import axis as check_axis
from lpkernels.functional.seeds import seed_for
from lpkernels.ops import Ints, UpdateTensors, pack, packed_bytes, records, unpack, update
from lpkernels.rng import SITE_QUANTIZE, Role

__all__ = [
    "UpdateTensors",
    "check_axis",
    "count_to_nearest",
    "pack",
    "packed_bytes",
    "records",
    "rounded",
    "unpack",
    "update",
]


def rounded(
    x: Tensor, quantizer: Ints, stochastic: bool, counts: Tensor | None, out: Tensor | None
) -> Tensor:
    """`quantize` of a floating tensor that needs no gradient, without its checks.

    counts: int64, 4 elements on x's device, to which the call adds; out may be x.
    """
    seed = seed_for(stochastic, None)
    role, site = Role.DIRECT, SITE_QUANTIZE
    return ops.quantize(x, quantizer, seed, role, site, "auto", None, counts, out)


def count_to_nearest(x: Tensor, fmt: FloatFormat, counts: Tensor) -> None:
    """`count` to nearest even; modes and profilers do not see it of a tensor on the CPU."""
    ops.count_quietly(x, Quantizer(fmt).to_ints(), counts)
