"""The places of the integers of `Quantizer.to_ints` and `Accumulator.to_ints`, for code that only
reads them: quantizer[InQuantizer.ROUNDING], acc[InAccumulator.CHUNK].
"""

from typing import TypeAlias

Ints: TypeAlias = tuple[int, ...]

#: Values of acc[InAccumulator.ORDER]: positions in lpkernels.arithmetic.ORDERS.
SEQUENTIAL, NATIVE, PAIRWISE, COMPENSATED = range(4)


class InQuantizer:
    """The format comes first, in 8, 16 or 24 integers, so the rest is counted from the end."""

    FORMAT = slice(None, -4)
    MODE = slice(-4, None)
    ROUNDING, RANDOM_BITS, RNG = -4, -3, -2
    #: The rounding, as three integers.
    RULE = slice(-4, -1)


class InAccumulator:
    """An accumulator with operands has more than the PLAIN integers: behind them stand the formats
    of the operands and the other fields that belong to operands."""

    ORDER, CHUNK, ROUNDING, PRODUCT_ROUNDING, RANDOM_BITS, RNG, HAS_PRODUCT, HAS_OUTER = range(8)
    FORMAT = slice(8, 16)
    PRODUCT = slice(16, 24)
    OUTER = slice(24, 32)
    BLOCK, ALIGNED_BITS, OUTER_ROUNDING = 32, 33, 34
    PLAIN = 35
    LEFT = slice(35, 43)
    RIGHT = slice(43, 51)
    HAS_LEAST_EXPONENT, LEAST_EXPONENT, INTERLEAVED = 51, 52, 53
    ALL = 54


def has_running_sum(acc: Ints) -> bool:
    """Whether product after product joins one running sum."""
    return acc[InAccumulator.ORDER] in (SEQUENTIAL, NATIVE) and acc[InAccumulator.BLOCK] == 0
