"""The range of an operand's values as far as its format tells it, before there is an operand."""

from __future__ import annotations

import math
from typing import NamedTuple

from lpkernels.formats import FixedFormat, FloatFormat, format_from_ints

#: Operands are taken to lie from 2^-16 to 2^4, as far as their format goes: activations behind a
#: norm, weights, gradients under a loss scale. Wider ones may need another kernel.
LEAST, MOST = -16, 4

Ints = tuple[int, ...]


class Range(NamedTuple):
    """Finite elements of at most `width` significant bits, multiples of 2^lowest, below 2^highest
    in magnitude. It is the OperandRange of csrc/common/certificate.h, of values that are never
    special."""

    width: int
    lowest: int
    highest: int


#: The range of an operand that no quantizer narrows.
FLOAT32 = Range(24, LEAST - 23, MOST)
#: The range of a row of ones: the gradient of a bias is a product with it.
ONES = Range(1, 0, 1)


def range_of(quantizer: Ints) -> Range:
    """The range of an operand, by the integers of the quantizer that a product applies to it; ()
    for none."""
    if not quantizer:
        return FLOAT32
    fmt = format_from_ints(quantizer[:-4])
    if isinstance(fmt, FloatFormat):
        lowest = max(emin(fmt) - fmt.man_bits, LEAST - fmt.man_bits)
        return Range(fmt.man_bits + 1, lowest, min(MOST, top(fmt) + 1))
    if isinstance(fmt, FixedFormat):
        return Range(fmt.word_bits, -fmt.frac_bits, min(MOST, math.frexp(fmt.max)[1]))
    raise TypeError(f"range_of: expected a float or a fixed format, got {fmt}")


def product_of(left: Range, right: Range) -> Range:
    """The range of exact products."""
    return Range(*(a + b for a, b in zip(left, right, strict=True)))


def emin(fmt: FloatFormat) -> int:
    """The exponent of the smallest normal value."""
    return 1 - fmt.bias


def top(fmt: FloatFormat) -> int:
    """floor(log2 max)."""
    return math.frexp(fmt.max)[1] - 1
