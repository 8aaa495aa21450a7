"""The places of the integers of `Quantizer.to_ints` and `Accumulator.to_ints`, for code that only
reads them: quantizer[InQuantizer.ROUNDING], acc[InAccumulator.CHUNK].
"""

from lpkernels.formats.integers import Ints as Ints

#: Values of acc[InAccumulator.ORDER]: positions in lpkernels.arithmetic.ORDERS.
SEQUENTIAL, NATIVE, PAIRWISE, COMPENSATED = range(4)


SCALE = "scale"
#: How the sum c of a chunk meets the scales of its operands, where one is a float32: c times the
#: rounded product of both (DeepGEMM), or c times the left scale, rounded, times the right one
#: (cuBLAS), or the other way round.
SCALE_ORDERS = ("product", "left", "right")
#: How a block of products joins the running sum: `Accumulator.adder`.
ADDERS = ("aligned", "tree", "floored", "floored_halves", "opposed", "pairs", "pairs_swapped")


class InQuantizer:
    """The format comes first, in 8, 16 or 24 integers, so the rest is counted from the end."""

    FORMAT = slice(None, -4)
    MODE = slice(-4, None)
    ROUNDING, RANDOM_BITS, RNG, HADAMARD = -4, -3, -2, -1
    #: The rounding, as three integers.
    RULE = slice(-4, -1)


class InAccumulator:
    """An accumulator with operands has more than the PLAIN integers: behind them stand the formats
    of the operands and the other fields that belong to operands. 0 stands for no CHUNK, also where
    chunks end with scales, for no BLOCK and for no GROUP; OUTER is the outermost format, and a
    PRODUCT that is exact has zeros."""

    ORDER, CHUNK, ROUNDING, PRODUCT_ROUNDING, RANDOM_BITS, RNG, HAS_PRODUCT, HAS_OUTER = range(8)
    FORMAT = slice(8, 16)
    PRODUCT = slice(16, 24)
    OUTER = slice(24, 32)
    BLOCK, ALIGNED_BITS, OUTER_ROUNDING = 32, 33, 34
    #: 1 plus the position in SCALE_ORDERS, 0 unless chunks end where scales change; the products
    #: that a unit sums at once before scales.
    SCALE_ORDER, GROUP = 35, 36
    PLAIN = 37
    LEFT = slice(37, 45)
    RIGHT = slice(45, 53)
    HAS_LEAST_EXPONENT, LEAST_EXPONENT, INTERLEAVED = 53, 54, 55
    #: The position in ADDERS.
    ADDER = 56
    ALL = 57


def sums_by_scale(acc: Ints) -> bool:
    """Whether the scales of the operands enter the sum."""
    return acc[InAccumulator.SCALE_ORDER] > 0 or acc[InAccumulator.GROUP] > 0


def has_running_sum(acc: Ints) -> bool:
    """Whether product after product joins one running sum."""
    return acc[InAccumulator.ORDER] in (SEQUENTIAL, NATIVE) and acc[InAccumulator.BLOCK] == 0


def has_core(acc: Ints) -> bool:
    """Whether the sums of blocks are exact, or those of an adder of AMD."""
    at = InAccumulator
    return (acc[at.BLOCK] > 0 and acc[at.ALIGNED_BITS] == 0) or (
        len(acc) > at.PLAIN and acc[at.ADDER] > 0
    )


def exchanged(acc: Ints) -> Ints:
    """The integers of an accumulator as they are after `Accumulator.exchanged`."""
    at = InAccumulator
    tail = acc[at.HAS_LEAST_EXPONENT :]
    return (*acc[: at.PLAIN], *acc[at.RIGHT], *acc[at.LEFT], *tail)
