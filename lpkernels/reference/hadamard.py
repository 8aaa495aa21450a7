"""Hadamard transforms with random signs, rounded to bfloat16.

Every run of ``size`` values along an axis becomes x D H / sqrt(size). D is the diagonal of signs, H
is Sylvester's matrix, and H[i, j] is -1 where i & j has an odd number of bits, else 1. Each result
is the exact quotient, rounded once to bfloat16, to nearest even.

An exact quotient of 0 is +0. A run with NaN is all NaN. A sum with infinities of one sign is that
infinity, and a sum with infinities of both signs is NaN.

Reference: NVIDIA, "Pretraining Large Language Models with NVFP4" (2025, arXiv 2509.25149), section
4.2. Differs: TransformerEngine rounds a sum in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import BF16
from lpkernels.reference.values import Float32, Float64, narrow, widen
from lpkernels.rounding import round_array, round_scalar

# float16 and float32 hold multiples of 2^-149, and twice a middle between two bfloat16 values is a
# multiple of 2^-133.
_UNIT, _PLACE = 149, 160
# Bits of a float64, and of a float32.
_DOUBLE, _SINGLE = 53, 24


def hadamard(x: NDArray[np.floating], size: int, signs: Sequence[int], axis: int) -> Float32:
    """The transform by sums in float64. Runs are made anew with integers where the sums' errors
    leave open how a quotient is rounded.

    Args:
        x:     float16 or float32, of a length along axis that size divides.
        size:  a power of two.
        signs: size numbers 1 or -1.
    """
    moved = np.moveaxis(widen(x), axis, -1)
    runs = moved.reshape(-1, size)
    with np.errstate(invalid="ignore"):
        runs = runs * np.asarray(signs, np.float64)
        # A sum of negative zeros is +0.
        y = _sylvester(runs) / math.sqrt(size) + 0.0
        bound = _error(runs) / math.sqrt(size)
        if math.isqrt(size) ** 2 != size:
            # The root and the quotient are rounded.
            bound = bound + np.abs(y) * 2.0**-51
        low, high = (round_array(y + error, BF16, "nearest_even") for error in (-bound, bound))
        undecided = (low != high) | ((np.abs(y) <= bound) & (bound > 0))
    inexact = undecided.any(axis=-1) & np.isfinite(runs).all(axis=-1)
    # Python's integers, in units of 2^-149.
    units = [int(math.ldexp(v, _UNIT)) for v in runs[inexact].reshape(-1)]
    sums = _sylvester(np.array(units, dtype=object).reshape(-1, size))
    quotients = [_quotient(total, size) for total in sums.reshape(-1)]
    results = np.where(np.isfinite(y), low, y)
    results[inexact] = np.array(quotients, np.float64).reshape(-1, size)
    return narrow(np.moveaxis(results.reshape(moved.shape), -1, axis))


def _quotient(total: int, size: int) -> float:
    """total 2^-149 / sqrt(size) in bfloat16.

    The quotient is a multiple of 2^-160, or it is replaced by the middle between two of them, which
    rounds alike.
    """
    square = total * total << 2 * (_PLACE - _UNIT)
    steps = math.isqrt(square // size)
    magnitude = Fraction(2 * steps + (steps * steps * size != square), 2 ** (_PLACE + 1))
    return round_scalar(-magnitude if total < 0 else magnitude, BF16, "nearest_even")


def _sylvester(runs: NDArray[Any]) -> NDArray[Any]:
    """runs (n, size) times H, step by step: pairs of numbers whose places differ in one bit."""
    count, size = runs.shape
    half = 1
    while half < size:
        pairs = runs.reshape(count, size // (2 * half), 2, half)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        runs = np.stack((low + high, low - high), axis=2).reshape(count, size)
        half *= 2
    return runs


def _error(runs: Float64) -> Float64:
    """What the sums of every run (n, 1) may be wrong by: 0 where float64 holds all of them.

    A sum is a multiple of the last place of the smallest float32, and below size times the power of
    two above the largest. Each step is wrong by at most 2^-53 times the sum of all magnitudes.
    """
    magnitude = np.abs(runs)
    present = (magnitude > 0) & np.isfinite(magnitude)
    exponent = np.frexp(np.where(present, magnitude, 1.0))[1]
    largest = np.where(present, exponent, -200).max(axis=-1, keepdims=True, initial=-200)
    # Subnormals share their last place with the smallest normal values.
    smallest = np.where(present, np.maximum(exponent, -125), 200)
    steps = runs.shape[-1].bit_length() - 1
    bits = largest + steps - (smallest.min(axis=-1, keepdims=True, initial=200) - _SINGLE)
    return np.where(bits <= _DOUBLE, 0.0, np.ldexp(1.0, largest + 2 * steps - _DOUBLE + 1))
