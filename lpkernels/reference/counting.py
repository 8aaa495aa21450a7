"""Counts of what rounding does to an array; this file defines them for every backend.

The counts of an array's values, in this order:

    overflow    finite, and beyond the format once rounded as if its exponent had no bound, whatever
                then becomes of it; fixed: beyond either end; affine: outside of the range; block:
                beyond the largest element of its block's scale
    underflow   finite and not zero, counted in no overflow, and zero once rounded
    zeros       zero before
    nonfinite   an infinity or NaN before

A value is counted at most once, except a zero outside of a given range, which is both an overflow
and a zero. In a block that becomes NaN only zeros and values that are not finite are counted.
Behind them, if asked for, the biased exponent fields of the values as float32, 256 bins: zeros and
subnormals in bin 0, infinities and NaN in 255, a float64 value beyond float32's ends in 0 or 254.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Quantizer
from lpkernels.reference.quantize import quantize
from lpkernels.reference.values import Float32, Float64, widen
from lpkernels.rng import SITE_QUANTIZE

COUNTS = ("overflow", "underflow", "zeros", "nonfinite")
BINS = 256

_BIAS_DIFFERENCE = 1023 - 127


def quantize_counting(
    x: NDArray[np.floating],
    quantizer: Quantizer,
    *,
    seed: int = 0,
    site: int = SITE_QUANTIZE,
    limits: Float64 | None = None,
) -> tuple[Float32, NDArray[np.int64]]:
    """`quantize`, and the int64 counts, `COUNTS` and then the bins; arguments as there."""
    overflowed = np.zeros(x.size, dtype=np.bool_)
    result = quantize(x, quantizer, seed=seed, site=site, limits=limits, overflowed=overflowed)
    bits = widen(x).reshape(-1).view(np.uint64)
    zeros = (bits << np.uint64(1)) == 0
    fields = (bits >> np.uint64(52)).astype(np.int64) & 0x7FF
    nonfinite = fields == 0x7FF
    vanished = (result.reshape(-1).view(np.uint32) << np.uint32(1)) == 0
    underflowed = vanished & ~zeros & ~overflowed & ~nonfinite
    bins = np.where(nonfinite, BINS - 1, np.clip(fields - _BIAS_DIFFERENCE, 0, BINS - 2))
    counts = [np.count_nonzero(mask) for mask in (overflowed, underflowed, zeros, nonfinite)]
    histogram = np.bincount(bins, minlength=BINS)
    return result, np.concatenate([counts, histogram]).astype(np.int64)
