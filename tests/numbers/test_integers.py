"""The named positions of integers: each holds the argument that the object was made with."""

from typing import Any

import pytest

import lpkernels as lp
from lpkernels.arithmetic import ORDERS, integers
from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.formats import FIXED_OVERFLOWS, OVERFLOWS, SPECIALS
from lpkernels.formats.integers import (
    AFFINE,
    BLOCK,
    FIXED,
    FLOAT,
    KIND,
    InAffine,
    InBlock,
    InFixed,
    InFloat,
)
from lpkernels.rng import RNGS
from lpkernels.rounding import ROUNDINGS

E5M2 = lp.FloatFormat(5, 2, bias=14, specials="fn", subnormals=False, overflow="saturate")
FIXED12 = lp.FixedFormat(12, 7, signed=False, overflow="wrap")
AFFINE5 = lp.AffineFormat(5, symmetric=True, axis=-2)
BLOCKS = lp.BlockFormat(E5M2, 16, axis=-3)
SUM = lp.Accumulator(
    "e6m9", "stochastic", product="e5m3", product_rounding="toward_zero", chunk=48,
    outer="e8m11", outer_rounding="nearest_away", random_bits=7, rng="philox",
)  # fmt: skip
ALIGNED = lp.Accumulator(
    "e8m13", "toward_zero", chunk=128, block=32, aligned_bits=13, operands=("e4m3", "e5m2"),
    least_exponent=-20, interleaved=2,
)  # fmt: skip
AT = InAccumulator


def ints(fmt: str) -> tuple[int, ...]:
    return lp.parse_format(fmt).to_ints()


@pytest.mark.parametrize(
    "described, held",
    [
        (E5M2, [(KIND, FLOAT), (InFloat.EXP_BITS, 5), (InFloat.MAN_BITS, 2), (InFloat.BIAS, 14)]),
        (E5M2, [(InFloat.SPECIALS, SPECIALS.index("fn")), (InFloat.SUBNORMALS, 0)]),
        (E5M2, [(InFloat.OVERFLOW, OVERFLOWS.index("saturate"))]),
        (FIXED12, [(KIND, FIXED), (InFixed.WORD_BITS, 12), (InFixed.FRAC_BITS, 7)]),
        (FIXED12, [(InFixed.SIGNED, 0), (InFixed.OVERFLOW, FIXED_OVERFLOWS.index("wrap"))]),
        (AFFINE5, [(KIND, AFFINE), (InAffine.BITS, 5), (InAffine.SYMMETRIC, 1)]),
        (AFFINE5, [(InAffine.HAS_AXIS, 1), (InAffine.AXIS, -2)]),
        (lp.AffineFormat(5), [(InAffine.HAS_AXIS, 0)]),
        (BLOCKS, [(KIND, BLOCK), (InBlock.SIZE, 16), (InBlock.AXIS, -3)]),
        (BLOCKS, [(InBlock.ELEMENT, E5M2.to_ints())]),
        (SUM, [(AT.FORMAT, ints("e6m9")), (AT.PRODUCT, ints("e5m3")), (AT.OUTER, ints("e8m11"))]),
        (SUM, [(AT.HAS_PRODUCT, 1), (AT.HAS_OUTER, 1), (AT.CHUNK, 48), (AT.RANDOM_BITS, 7)]),
        (SUM, [(AT.RNG, RNGS.index("philox")), (AT.ROUNDING, ROUNDINGS.index("stochastic"))]),
        (SUM, [(AT.PRODUCT_ROUNDING, ROUNDINGS.index("toward_zero"))]),
        (SUM, [(AT.OUTER_ROUNDING, ROUNDINGS.index("nearest_away"))]),
        (ALIGNED, [(AT.BLOCK, 32), (AT.ALIGNED_BITS, 13), (AT.LEFT, ints("e4m3"))]),
        (ALIGNED, [(AT.RIGHT, ints("e5m2")), (AT.HAS_LEAST_EXPONENT, 1), (AT.LEAST_EXPONENT, -20)]),
        (ALIGNED, [(AT.INTERLEAVED, 2)]),
        (lp.accumulator("model_b200_nvf4"), [(AT.GROUP, 16), (AT.BLOCK, 64)]),
        (lp.accumulator("fp32_chunkscale:scale_order=right"), [(AT.CHUNK, 0), (AT.SCALE_ORDER, 3)]),
    ],
)
def test_a_named_position_holds_its_value(described: Any, held: list[tuple[Any, Any]]) -> None:
    integers = described.to_ints()
    assert [integers[at] for at, _ in held] == [value for _, value in held]


def test_orders() -> None:
    codes = [integers.SEQUENTIAL, integers.NATIVE, integers.PAIRWISE, integers.COMPENSATED]
    assert [ORDERS[code] for code in codes] == ["sequential", "native", "pairwise", "compensated"]
    for code in codes:
        acc = lp.Accumulator("fp32", order=ORDERS[code])
        assert acc.to_ints()[InAccumulator.ORDER] == code
        assert integers.has_running_sum(acc.to_ints()) is (code <= integers.NATIVE)
    aligned = lp.Accumulator("e8m13", "toward_zero", block=4, aligned_bits=13)
    assert not integers.has_running_sum(aligned.to_ints())
