"""What a step costs by the number of bits that are multiplied: a model, no measurement."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from lpkernels.arithmetic import Accumulator, as_accumulator
from lpkernels.formats import FixedFormat, FloatFormat

# A float32 operand has 32 bits; a step has three products: fprop, dgrad and wgrad.
_FP32 = 3 * 32**2
# The significand of float32, its hidden bit included.
_FP32_SIGNIFICAND = 24


def bitops(forward_bits: int, backward_bits: int, *, weight_bits: int | None = None) -> float:
    """The multiplied bits of a training step, relative to one in float32.

    (b^2 + 2 b g) / (3 * 32^2) with b forward and g backward bits: fprop multiplies b by b bits,
    dgrad and wgrad b by g. Weights with bits of their own w count as w in fprop and dgrad.

    Layers in float32 and additions are not counted. It counts multiply-accumulate bits: no
    speed-up of a GPU follows from it.

    Reference: the code of Fu et al. 2021, arXiv 2101.09868.
    """
    b, g = forward_bits, backward_bits
    w = b if weight_bits is None else weight_bits
    return (w * b + w * g + b * g) / _FP32


def adder_bits(accumulator: Accumulator | str) -> float:
    """The significand bits that one addition of an accumulator handles, relative to float32's 24.

    The inner sums' format alone counts, not an outer one; a fixed-point format counts its word.
    """
    return _adder_bits(as_accumulator(accumulator))


@lru_cache
def _adder_bits(accumulator: Accumulator) -> float:
    fmt = accumulator.fmt
    if isinstance(fmt, FixedFormat):
        return fmt.word_bits / _FP32_SIGNIFICAND
    assert isinstance(fmt, FloatFormat)
    return (fmt.man_bits + 1) / _FP32_SIGNIFICAND


def saving(cost: float, static: float) -> float:
    """The share that a schedule of mean cost `cost` saves against a constant `static`."""
    return 1 - cost / static


def occupancy(plan: np.ndarray) -> Mapping[int, float]:
    """The share of the steps of a plan, (steps,) int64, at each of its bits, ascending."""
    found, counts = np.unique(plan, return_counts=True)
    return {int(b): int(n) / len(plan) for b, n in zip(found, counts, strict=True)}
