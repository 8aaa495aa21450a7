"""From the rounding that the theory speaks of to the Accumulator that does it, and back."""

from __future__ import annotations

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FloatFormat

ALIGNED_TRUNCATION = "aligned_truncation"


def accumulator_of(
    fmt: FloatFormat, rounding: str, *, chunk: int | None = None, block: int = 1
) -> Accumulator:
    """The accumulator whose sums round as `rounding` of :func:`min_mantissa_bits` says.

    "aligned_truncation" cuts the running sum and each of the next `block` products toward zero at
    the sum's last place, adds what is left and cuts the result; sums of chunks are added with
    rounding to nearest even, because cutting those would drift. Other names are an Accumulator's
    own, and block is not used.

    Args:
        fmt:      of the sums, inner and outer.
        rounding: "nearest_even", "aligned_truncation", or any other of an Accumulator.
        chunk:    length of the inner sums; None: one sum.
        block:    1..256.

    Raises:
        ValueError: no such rounding; "aligned_truncation" with 0 mantissa bits.
    """
    if rounding != ALIGNED_TRUNCATION:
        return Accumulator(fmt, rounding, chunk=chunk)
    return Accumulator(
        fmt,
        "toward_zero",
        chunk=chunk,
        outer_rounding=None if chunk is None else "nearest_even",
        block=block,
        aligned_bits=fmt.man_bits,
    )


def with_format(acc: Accumulator, fmt: FloatFormat) -> Accumulator:
    """An accumulator that `accumulator_of` made, with another format."""
    if acc.block is None:
        return accumulator_of(fmt, acc.rounding, chunk=acc.chunk)
    return accumulator_of(fmt, ALIGNED_TRUNCATION, chunk=acc.chunk, block=acc.block)
