"""The named positions of integers: each position holds what the packed value was made with."""

from __future__ import annotations

import lpkernels as lp
from lpkernels.arithmetic import ORDERS, integers
from lpkernels.arithmetic.integers import InAccumulator, InQuantizer
from lpkernels.formats import FIXED_OVERFLOWS, OVERFLOWS, SPECIALS
from lpkernels.formats import integers as of_formats
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
from tests.loops import each, rows

E5M2 = lp.FloatFormat(5, 2, bias=14, specials="fn", subnormals=False, overflow="saturate")
FIXED12 = lp.FixedFormat(12, 7, signed=False, overflow="wrap")
AFFINE5 = lp.AffineFormat(5, symmetric=True, axis=-2)
BLOCKS = lp.BlockFormat(E5M2, 16, axis=-3)


def test_float() -> None:
    ints = E5M2.to_ints()
    assert ints[KIND] == FLOAT
    found = [
        ints[InFloat.EXP_BITS], ints[InFloat.MAN_BITS], ints[InFloat.BIAS],
        SPECIALS[ints[InFloat.SPECIALS]], bool(ints[InFloat.SUBNORMALS]),
        OVERFLOWS[ints[InFloat.OVERFLOW]],
    ]  # fmt: skip
    assert found == [5, 2, 14, "fn", False, "saturate"]


def test_fixed() -> None:
    ints = FIXED12.to_ints()
    assert ints[KIND] == FIXED
    found = [
        ints[InFixed.WORD_BITS], ints[InFixed.FRAC_BITS], bool(ints[InFixed.SIGNED]),
        FIXED_OVERFLOWS[ints[InFixed.OVERFLOW]],
    ]  # fmt: skip
    assert found == [12, 7, False, "wrap"]


def test_affine() -> None:
    ints = AFFINE5.to_ints()
    assert ints[KIND] == AFFINE
    found = [
        ints[InAffine.BITS], ints[InAffine.SYMMETRIC], ints[InAffine.HAS_AXIS], ints[InAffine.AXIS],
    ]  # fmt: skip
    assert found == [5, 1, 1, -2]
    assert lp.AffineFormat(5).to_ints()[InAffine.HAS_AXIS] == 0


def test_block() -> None:
    ints = BLOCKS.to_ints()
    assert ints[KIND] == BLOCK
    assert (ints[InBlock.SIZE], ints[InBlock.AXIS]) == (16, -3)
    assert ints[InBlock.ELEMENT] == E5M2.to_ints()


@rows(
    "fmt, axis, element, bits, scaled",
    (E5M2, None, E5M2, 8, False),
    (FIXED12, None, FIXED12, 12, False),
    (BLOCKS, -3, E5M2, 8, True),
)
def test_what_is_asked_of_every_kind(
    fmt: lp.Format, axis: int | None, element: lp.Format, bits: int, scaled: bool
) -> None:
    ints = fmt.to_ints()
    assert of_formats.axis(ints) == axis
    assert of_formats.element(ints) == element.to_ints()
    assert of_formats.code_bits(ints) == bits
    assert of_formats.takes_scales(ints) is scaled


@each("fmt, axis", [(AFFINE5, -2), (lp.AffineFormat(5), None)])
def test_axis_of_affine_slices(fmt: lp.AffineFormat, axis: int | None) -> None:
    assert of_formats.axis(fmt.to_ints()) == axis
    assert of_formats.takes_scales(fmt.to_ints())


@each("fmt", [E5M2, FIXED12, AFFINE5, BLOCKS])
def test_quantizer(fmt: lp.Format) -> None:
    ints = lp.Quantizer(fmt, "stochastic", random_bits=9, rng="philox").to_ints()
    assert ints[InQuantizer.FORMAT] == fmt.to_ints()
    rounding, bits, rng = ints[InQuantizer.RULE]
    assert (ROUNDINGS[rounding], bits, RNGS[rng]) == ("stochastic", 9, "philox")
    at = (InQuantizer.ROUNDING, InQuantizer.RANDOM_BITS, InQuantizer.RNG)
    assert tuple(ints[one] for one in at) == (rounding, bits, rng)


def test_accumulator() -> None:
    acc = lp.Accumulator(
        "e6m9", "stochastic", product="e5m3", product_rounding="toward_zero", chunk=48,
        outer="e8m11", outer_rounding="nearest_away", random_bits=7, rng="philox",
    )  # fmt: skip
    ints, at = acc.to_ints(), InAccumulator
    assert len(ints) == at.PLAIN
    assert ints[at.FORMAT] == acc.fmt.to_ints()
    assert ints[at.PRODUCT] == lp.parse_format("e5m3").to_ints()
    assert ints[at.OUTER] == lp.parse_format("e8m11").to_ints()
    assert (ints[at.HAS_PRODUCT], ints[at.HAS_OUTER]) == (1, 1)
    assert (ints[at.CHUNK], ints[at.RANDOM_BITS], RNGS[ints[at.RNG]]) == (48, 7, "philox")
    modes = (at.ROUNDING, at.PRODUCT_ROUNDING, at.OUTER_ROUNDING)
    found = [ROUNDINGS[ints[one]] for one in modes]
    assert found == ["stochastic", "toward_zero", "nearest_away"]


def test_accumulator_of_aligned_operands() -> None:
    acc = lp.Accumulator(
        "e8m13", "toward_zero", chunk=128, block=32, aligned_bits=13,
        operands=("e4m3", "e5m2"), least_exponent=-20, interleaved=2,
    )  # fmt: skip
    ints, at = acc.to_ints(), InAccumulator
    assert len(ints) == at.ALL
    assert (ints[at.BLOCK], ints[at.ALIGNED_BITS]) == (32, 13)
    assert ints[at.LEFT] == lp.parse_format("e4m3").to_ints()
    assert ints[at.RIGHT] == lp.parse_format("e5m2").to_ints()
    assert (ints[at.HAS_LEAST_EXPONENT], ints[at.LEAST_EXPONENT]) == (1, -20)
    assert ints[at.INTERLEAVED] == 2


def test_orders() -> None:
    codes = [integers.SEQUENTIAL, integers.NATIVE, integers.PAIRWISE, integers.COMPENSATED]
    assert [ORDERS[code] for code in codes] == ["sequential", "native", "pairwise", "compensated"]
    for code in codes:
        acc = lp.Accumulator("fp32", order=ORDERS[code])
        assert acc.to_ints()[InAccumulator.ORDER] == code
        assert integers.has_running_sum(acc.to_ints()) is (code <= integers.NATIVE)
    aligned = lp.Accumulator("e8m13", "toward_zero", block=4, aligned_bits=13)
    assert not integers.has_running_sum(aligned.to_ints())
