"""FixedFormat: two's complement fixed point."""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from lpkernels.formats.checks import Named, checked_bool, checked_choice, checked_int, set_fields
from lpkernels.formats.integers import FIXED

FIXED_OVERFLOWS = ("saturate", "wrap")


@dataclass(frozen=True)
class FixedFormat(Named):
    """Integers of ``word_bits`` bits (the sign included) times ``2^-frac_bits``.

    Values are rounded to an integer multiple of ``quantum`` in the rounding mode (even and odd are
    said of the integer), then saturate, or wrap modulo ``2^word_bits``. Zero is always +0, NaN
    stays NaN, an infinity saturates and becomes NaN under wrap.

    Args:
        word_bits: 1..24.
        frac_bits: may exceed word_bits, or be negative; at most 149.
        signed:    two's complement, else 0 .. 2^word_bits - 1.
        overflow:  "saturate" or "wrap".

    Raises:
        TypeError: an argument has the wrong type.  ValueError: a value float32 cannot carry.

    >>> fmt = lp.FixedFormat(8, 4)
    >>> str(fmt), fmt.min, fmt.max
    ('fixed8_f4', -8.0, 7.9375)
    >>> lp.quantize(torch.tensor([0.3, 9.0]), fmt)
    tensor([0.3125, 7.9375])
    """

    word_bits: int
    frac_bits: int
    _: KW_ONLY
    signed: bool = True
    overflow: str = "saturate"

    def __post_init__(self) -> None:
        owner = "FixedFormat"
        set_fields(
            self,
            word_bits=checked_int(owner, "word_bits", self.word_bits, 1, 24),
            frac_bits=checked_int(owner, "frac_bits", self.frac_bits, -127, 149),
            signed=checked_bool(owner, "signed", self.signed),
            overflow=checked_choice(owner, "overflow", self.overflow, FIXED_OVERFLOWS),
        )
        if self.word_bits - 1 - self.frac_bits > 127:
            raise ValueError(
                f"FixedFormat: the top bit weighs 2^{self.word_bits - 1 - self.frac_bits}, beyond "
                f"float32's 2^127, in which values travel; got word_bits={self.word_bits}, "
                f"frac_bits={self.frac_bits}"
            )

    @property
    def bits(self) -> int:
        """Width of a code."""
        return self.word_bits

    @property
    def quantum(self) -> float:
        """The step between neighbouring values: ``2^-frac_bits``."""
        return 2.0**-self.frac_bits

    @property
    def epsilon(self) -> float:
        """The step, here the same everywhere: :attr:`quantum`."""
        return self.quantum

    @property
    def max_code(self) -> int:
        """The largest integer of the word."""
        return 2 ** (self.word_bits - self.signed) - 1

    @property
    def min_code(self) -> int:
        """The smallest integer of the word: 0 where unsigned."""
        return -(2 ** (self.word_bits - 1)) if self.signed else 0

    @property
    def max(self) -> float:
        """The largest value."""
        return self.max_code * self.quantum

    @property
    def min(self) -> float:
        """The smallest value: 0 where unsigned."""
        return self.min_code * self.quantum

    @property
    def name(self) -> str:
        """``fixed<word>_f<frac>``, "ufixed" where unsigned, "_wrap" where it wraps."""
        prefix = "fixed" if self.signed else "ufixed"
        suffix = "_wrap" if self.overflow == "wrap" else ""
        return f"{prefix}{self.word_bits}_f{self.frac_bits}{suffix}"

    def values(self) -> np.ndarray:
        """Every value once, ascending, as float64.

        Raises:  ValueError: the format has more than 16 bits.
        """
        self._check_listable(self.word_bits)
        return np.arange(self.min_code, self.max_code + 1, dtype=np.float64) * self.quantum

    def to_ints(self) -> tuple[int, ...]:
        """Eight integers (`integers.InFixed`)."""
        overflow = FIXED_OVERFLOWS.index(self.overflow)
        return (FIXED, self.word_bits, self.frac_bits, int(self.signed), overflow, 0, 0, 0)

    @staticmethod
    def from_ints(ints: tuple[int, ...]) -> "FixedFormat":
        """The format of `to_ints`."""
        _, word, frac, signed, overflow, *_ = ints
        return FixedFormat(word, frac, signed=bool(signed), overflow=FIXED_OVERFLOWS[overflow])
