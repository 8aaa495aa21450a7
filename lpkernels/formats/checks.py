"""What the format classes share, and the checks of arguments in them and in the arithmetic."""

import operator
from collections.abc import Sequence

from lpkernels.formats.elsewhere import LISTING, nearest, word_here

#: The rounding modes; the position is the code that crosses the op boundary.
ROUNDINGS = (
    "nearest_even",
    "nearest_away",
    "toward_zero",
    "toward_positive",
    "toward_negative",
    "to_odd",
    "stochastic",
)


def checked_int(owner: str, name: str, value: object, low: int, high: int | None = None) -> int:
    """``value`` as an int within ``low..high``, at most 2^62 without ``high``; bool is no int here.

    Raises:  TypeError: not an integer.  ValueError: out of range.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"{owner}: {name} must be an int, got {value!r} ({type(value).__name__}); pass a plain "
            "int"
        )
    number = operator.index(value)
    if number < low or (high is not None and number > high):
        range_text = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{owner}: {name} must be {range_text}, got {number}")
    # Kernels count in 64 bits and add sizes.
    if number > 2**62:
        raise ValueError(f"{owner}: {name} must be at most 2^62, got {number}")
    return number


def checked_bool(owner: str, name: str, value: object) -> bool:
    """``value`` if it is a bool.  Raises TypeError otherwise."""
    if not isinstance(value, bool):
        raise TypeError(
            f"{owner}: {name} must be True or False, got {value!r} ({type(value).__name__})"
        )
    return value


def checked_choice(
    owner: str, name: str, value: object, choices: Sequence[str], listing: str = LISTING
) -> str:
    """``value`` if it is one of ``choices``; ``listing`` says who lists all of many.

    Raises:  TypeError: not a str.  ValueError: no such choice; a word of other libraries is
        answered with the one here.
    """
    if isinstance(value, str) and value in choices:
        return value
    near = nearest(value, choices, listing)
    if not isinstance(value, str):
        raise TypeError(
            f"{owner}: {name} must be a str, one of {near}; got {value!r} ({type(value).__name__})"
        )
    advice = word_here(value, choices)
    raise ValueError(f"{owner}: {name} must be one of {near}; got {value!r}{advice}")


class Named:
    """A format whose text is its name."""

    @property
    def name(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.name

    def fits_in(self, exp_bits: int, man_bits: int) -> bool:
        """Whether the IEEE format of these widths holds every value, exactly: ``(5, 10)`` asks
        about float16, ``(8, 7)`` bfloat16, ``(8, 23)`` float32, which alone does here."""
        return (exp_bits, man_bits) == (8, 23)

    def _check_listable(self, bits: int) -> None:
        if bits > 16:
            raise ValueError(
                f"values: {self} has {bits} bits; a list of all values is made for at most 16"
            )


def set_fields(instance: object, **fields: object) -> None:
    """Set the fields of a frozen dataclass from its own ``__init__``."""
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


def check_rounding(rounding: object, owner: str = "rounding") -> str:
    """``rounding`` if it names a mode.

    Raises:  TypeError: not a str.  ValueError: no such mode; "nearest" is refused by name.
    """
    if rounding == "nearest":
        raise ValueError(
            f"{owner}: rounding 'nearest' does not say where ties go; use 'nearest_even' or "
            "'nearest_away'"
        )
    listing = "help(lpkernels.quantize) lists all"
    return checked_choice(owner, "rounding", rounding, ROUNDINGS, listing)
