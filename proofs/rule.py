"""``round_to_float`` of csrc/common/round.h, line by line, for any kind of numbers.

The lines are the kernel's, and the caller says what a number is: one of numpy's doubles, by which
tests/project/test_proofs.py holds the lines to the kernel's bits, or one of a solver's, by which
`proofs` compares them with IEEE 754's conversion. Formats have subnormals and at least one bit of
mantissa, and overflow to infinity; magnitudes are finite and not 0.
"""

from __future__ import annotations

from typing import Any, Protocol

from lpkernels.formats import FloatFormat

#: The modes of IEEE 754, and to_odd, which is defined by two of them.
MODES = (
    "nearest_even",
    "nearest_away",
    "toward_zero",
    "toward_positive",
    "toward_negative",
    "to_odd",
)


class Numbers(Protocol):
    """Doubles and truth values that a rule is evaluated in. + - * > >= of doubles are IEEE's."""

    def of(self, value: float) -> Any:
        """A constant."""
        ...

    def where(self, condition: Any, yes: Any, no: Any) -> Any: ...

    def both(self, one: Any, other: Any) -> Any: ...

    def either(self, one: Any, other: Any) -> Any: ...

    def negated(self, condition: Any) -> Any: ...

    def equal(self, one: Any, other: Any) -> Any:
        """Whether two doubles are equal as numbers."""
        ...

    def last_bit(self, x: Any) -> Any:
        """Whether the last bit of a double is set."""
        ...


def rounded(
    numbers: Numbers, a: Any, binade: float, negative: Any, f: FloatFormat, mode: str
) -> Any:
    """The rounded magnitude of a, for binade <= a < 2 binade.

    binade: a power of two.
    negative: whether the value is negative.
    """
    quantum = max(binade, 2.0**f.emin) * 2.0**-f.man_bits
    inverse, magic = numbers.of(1.0 / quantum), numbers.of(quantum * 2.0**52)
    below = (a + magic) - magic
    below = numbers.where(below > a, below - numbers.of(quantum), below)
    fraction = (a - below) * inverse
    n = below * inverse
    odd = numbers.last_bit(n + numbers.of(2.0**52))

    r = _fraction_rounded(numbers, below, fraction, quantum, odd, negative, mode)
    return numbers.where(r > numbers.of(f.max), _overflowed(numbers, f, mode, negative), r)


def _fraction_rounded(
    numbers: Numbers, below: Any, fraction: Any, quantum: float, odd: Any, negative: Any, mode: str
) -> Any:
    """What `round_fraction` returns."""
    following = below + numbers.of(quantum)
    half, some = numbers.of(0.5), fraction > numbers.of(0.0)
    if mode == "toward_zero":
        return below
    if mode == "nearest_even":
        tie = numbers.both(numbers.equal(fraction, half), odd)
        up = numbers.either(fraction > half, tie)
    elif mode == "nearest_away":
        up = fraction >= half
    elif mode == "toward_positive":
        up = numbers.both(some, numbers.negated(negative))
    elif mode == "toward_negative":
        up = numbers.both(some, negative)
    else:
        up = numbers.both(some, numbers.negated(odd))
    return numbers.where(up, following, below)


def _overflowed(numbers: Numbers, f: FloatFormat, mode: str, negative: Any) -> Any:
    """What `overflowed` returns, for finite magnitudes."""
    most, beyond = numbers.of(f.max), numbers.of(float("inf"))
    if mode in ("toward_zero", "to_odd"):
        return most
    if mode == "toward_positive":
        return numbers.where(negative, most, beyond)
    if mode == "toward_negative":
        return numbers.where(negative, beyond, most)
    return beyond
