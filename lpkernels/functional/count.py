"""Counts of what rounding a tensor to a format would do."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Quantizer
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.formats import FloatFormat
from lpkernels.functional import _checks
from lpkernels.functional._limits import RangeLike, limits_of
from lpkernels.functional.quantize import FormatLike, lowered
from lpkernels.functional.seeds import seed_for
from lpkernels.rng import SITE_QUANTIZE, Role

__all__ = ["count"]


def count(
    x: Tensor,
    fmt: FormatLike,
    rounding: str = "nearest_even",
    *,
    random_bits: int | None = None,
    generator: torch.Generator | Tensor | None = None,
    counts: Tensor | None = None,
    histogram: bool = False,
    range: RangeLike | None = None,
    backend: str = "auto",
) -> Tensor:
    """Counts what `quantize` with the same arguments would do to x, and writes nothing but the
    counts.

    The counts are those of `quantize`'s counts=, and, with a histogram, the numbers of elements
    with each of the 256 exponent fields of float32. Stochastic rounding counts what its draws would
    do. Nothing is recorded for gradients.

    Args:
        x, fmt, rounding, random_bits, generator, range, backend: as for `quantize`.
        counts: the tensor to add to, as for `quantize`; None: a new one.
        histogram: whether a new tensor has the 256 bins too.

    Returns: counts, or a new int64 tensor of 4 or 260 elements on x's device.
    Raises: as `quantize`; ValueError: histogram with counts that have no bins.

    >>> lp.count(torch.tensor([0.0, 1e-9, 1.0, 1e9]), "e4m3fn")
    tensor([1, 1, 1, 0])
    """
    _checks.floating("count", x=x)
    quantizer, stochastic = lowered("count", fmt, rounding, random_bits)
    _checks.axis("count", "x", x.shape, quantizer[InQuantizer.FORMAT])
    _checks.countable("count", quantizer[InQuantizer.FORMAT])
    _checks.call("count", backend, generator)
    if counts is not None:
        _checks.counts("count", counts, x)
        if histogram and counts.numel() == ops.COUNTS:
            raise ValueError(
                f"count: histogram=True needs counts of {ops.COUNTS + ops.BINS} elements, got "
                f"{ops.COUNTS}; leave counts or histogram away"
            )
    limits = limits_of("count", x, quantizer, range)
    seed = seed_for(stochastic, generator)
    if counts is None:
        length = ops.COUNTS + (ops.BINS if histogram else 0)
        counts = torch.zeros(length, dtype=torch.int64, device=x.device)
    ops.count(x.detach(), quantizer, counts, limits, seed, Role.DIRECT, SITE_QUANTIZE, backend)
    return counts


def counting_to_nearest(fmt: FloatFormat) -> ops.Counting:
    """`count` to nearest even, for callers that know their arguments: nothing is checked, which for
    a small tensor takes as long as counting it."""
    return ops.Counting(Quantizer(fmt))
