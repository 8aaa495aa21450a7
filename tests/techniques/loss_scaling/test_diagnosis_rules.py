"""Histograms of exponents, and the rules on them: lost values, the scale and format that fit."""

import math
from fractions import Fraction

import numpy as np
import pytest

from lpkernels.formats import FloatFormat, parse_format
from lpkernels.techniques.loss_scaling import advice
from lpkernels.techniques.loss_scaling.rows import Histogram
from tests.loops import each, rows
from tests.techniques.loss_scaling.diagnosed import histogram

TINY = np.float32(2.0**-149)


def fmt(name: str) -> FloatFormat:
    found = parse_format(name)
    assert isinstance(found, FloatFormat)
    return found


def powers(**counts: int) -> Histogram:
    """A histogram by exponents: e_24=3 means three elements 2**-24, and e3=1 means one of 2**3."""
    pairs = [[int(name[1:].replace("_", "-")), count] for name, count in counts.items()]
    return Histogram.from_pairs(pairs, 0, 0)


@each("exponent, name", [-24, -3, 0, 8, 15], ["fp16", "e4m3fn", "e5m2", "fp4_e2m1"])
def test_fitting_exponent_is_the_largest_that_stays_below_max(exponent: int, name: str) -> None:
    """The scale is 2**floor(log2(max / largest)) for the top of the binade, in exact arithmetic."""
    held = [(powers(**{f"e{exponent}".replace("-", "_"): 1}), fmt(name))]
    found = advice.fitting_exponent(held, margin=0)
    top, most = Fraction(2 - 2.0**-23) * Fraction(2) ** exponent, Fraction(fmt(name).max)
    assert top * Fraction(2) ** found <= most < top * Fraction(2) ** (found + 1)
    assert advice.fitting_exponent(held) == found - 1


@rows(
    "held, margin, wanted",
    # That of the tensor with least room; without a number; a scale at most.
    ([(powers(e0=1), "fp16"), (powers(e0=1), "e4m3fn"), (powers(), "e2m1")], 0, 7),
    ([], 1, 0),
    ([(powers(e_24=1), "fp16")], 2, 36),
    ([(histogram([TINY]), "fp32")], 0, 126),
    ([(powers(e127=1), "e4m3fn_b100")], 0, -126),
    # The top of the binade is the largest value.
    ([(powers(e127=1), "fp32")], 0, 0),
)
def test_fitting_exponent_of(held: list, margin: int, wanted: int) -> None:
    found = advice.fitting_exponent([(of, fmt(name)) for of, name in held], margin=margin)
    assert found == wanted


@rows(
    "of, scaled, wanted",
    (powers(e_5=1, e0=1), False, ("e4m3fn", 0)),
    (powers(e_12=100, e0=1), False, ("e5m2", 0)),
    (powers(e_20=99999, e0=1), False, ("e5m10", 0)),
    (powers(e_20=9, e_22=1), False, ("e5m10", 0)),
    (powers(e_20=9, e_22=1), True, ("e4m3fn", 13)),
    (powers(e20=1), False, ("e8m7", 0)),
    (powers(e_100=1, e100=1), False, ("e8m7", 0)),
)
def test_narrowest_is_the_format_of_fewest_bits_that_holds_everything(of, scaled, wanted) -> None:
    candidates = [fmt(name) for name in ("fp32", "fp16", "bf16", "e5m2", "e4m3fn")]
    found = advice.narrowest("grad_input" if scaled else "input", [of], candidates)
    assert (str(found.format), math.log2(found.scale)) == wanted


def test_narrowest_may_saturate_but_not_overflow() -> None:
    """One of a million elements is beyond the range."""
    of, fn, sat = powers(e0=1_000_000, e9=1), fmt("e4m3fn"), fmt("e4m3fn_sat")
    assert advice.narrowest("input", [of], [fn]).format is None
    found = advice.narrowest("input", [of], [fn, sat])
    assert found.format == sat and found.lost == pytest.approx(2.0**9 / (10**6 + 2.0**9))
