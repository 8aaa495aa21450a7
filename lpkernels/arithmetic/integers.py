"""The places of the integers of `Quantizer.to_ints` and `Accumulator.to_ints`, for code that only
reads them: quantizer[InQuantizer.ROUNDING], acc[InAccumulator.CHUNK].
"""

from typing import Any

from lpkernels.formats.integers import Ints as Ints

#: Values of acc[InAccumulator.ORDER]: positions in lpkernels.arithmetic.ORDERS.
SEQUENTIAL, NATIVE, PAIRWISE, COMPENSATED = range(4)


SCALE = "scale"
#: How the sum c of a chunk meets the scales of its operands, where one is a float32: c times the
#: rounded product of both (DeepGEMM), or c times the left scale, rounded, times the right one
#: (cuBLAS), or the other way round.
SCALE_ORDERS = ("product", "left", "right")


class InQuantizer:
    """The format comes first, in 8, 16 or 24 integers, so the rest is counted from the end."""

    FORMAT = slice(None, -4)
    MODE = slice(-4, None)
    ROUNDING, RANDOM_BITS, RNG, HADAMARD = -4, -3, -2, -1
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


def chunk_to_int(chunk: int | str | None, scale_order: str, group: int | None) -> int:
    """acc[InAccumulator.CHUNK]: the length of chunks, or 0; below 0 where scales enter the sum: -1
    minus the position of the scale order, and below these minus the group."""
    if group is not None:
        return -len(SCALE_ORDERS) - group
    return -1 - SCALE_ORDERS.index(scale_order) if isinstance(chunk, str) else chunk or 0


def chunk_from_int(value: int) -> dict[str, Any]:
    """The arguments of an Accumulator that `chunk_to_int` has read."""
    if value >= 0:
        return {"chunk": value or None}
    if value < -len(SCALE_ORDERS):
        return {"group": -len(SCALE_ORDERS) - value}
    return {"chunk": SCALE, "scale_order": SCALE_ORDERS[-1 - value]}


def group_of(acc: Ints) -> int:
    """The group of an accumulator; 0 without one."""
    return max(0, -len(SCALE_ORDERS) - acc[InAccumulator.CHUNK])


def has_running_sum(acc: Ints) -> bool:
    """Whether product after product joins one running sum."""
    return acc[InAccumulator.ORDER] in (SEQUENTIAL, NATIVE) and acc[InAccumulator.BLOCK] == 0


def exchanged(acc: Ints) -> Ints:
    """The integers of an accumulator as they are after `Accumulator.exchanged`."""
    at = InAccumulator
    tail = acc[at.HAS_LEAST_EXPONENT :]
    return (*acc[: at.PLAIN], *acc[at.RIGHT], *acc[at.LEFT], *tail)
