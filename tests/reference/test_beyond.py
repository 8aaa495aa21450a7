"""Sums beyond the largest value: the reference's own rule, and the rounding's, written apart."""

import numpy as np

from lpkernels.formats import FixedFormat, FloatFormat, parse_format
from lpkernels.reference.events import beyond
from lpkernels.rounding import ROUNDINGS, overflows_array
from tests.cases import ROUND_FORMATS
from tests.loops import each, rows


# Each tie is halfway from the largest value to the step after it, and goes to the even one of the
# two. "fn" gives the last code to NaN, so that the largest value has an even code.
@rows(
    "name, tie, leaves",
    ("e4m3fn", 464.0, False), ("e4m3fn_sat", -464.0, False),
    ("e4m3", 248.0, True), ("e2m1", 3.5, True), ("e2m3", -3.875, True), ("fixed8_f0", 127.5, True),
    ("fixed8_f0", -128.5, False),
)  # fmt: skip
def test_ties_at_the_end(name: str, tie: float, leaves: bool) -> None:
    fmt = parse_format(name)
    assert isinstance(fmt, FloatFormat | FixedFormat)
    further = np.nextafter(tie, 2 * tie)
    assert beyond(np.array([tie, further]), fmt, "nearest_even").tolist() == [leaves, True]


@each("rounding, fmt", ROUNDINGS, ROUND_FORMATS)
def test_beyond_is_what_the_rounding_says(fmt, rounding, rng):
    fixed = isinstance(fmt, FixedFormat)
    step = fmt.quantum if fixed else 2.0 ** (fmt.emax - fmt.man_bits)
    steps = np.array([-1, -0.5, -1 / 8, 0, 2.0**-20, 1 / 4, 1 / 2, 0.5 + 2.0**-20, 7 / 8, 1, 9])
    least = fmt.min if fixed else -fmt.max
    x = np.concatenate([fmt.max + steps * step, least - steps * step, [np.inf, -np.inf]])
    for bits in (1, 8, 32) if rounding == "stochastic" else (32,):
        draws = rng.integers(0, 2**bits, x.shape, dtype=np.uint64).astype(np.uint32)
        asked = {"draws": draws, "random_bits": bits}
        np.testing.assert_array_equal(
            beyond(x, fmt, rounding, **asked), overflows_array(x, fmt, rounding, **asked)
        )
