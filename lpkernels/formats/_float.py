"""FloatFormat: sign, exponent and mantissa of any width, and its values."""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from lpkernels.formats.checks import Named, checked_bool, checked_choice, checked_int, set_fields
from lpkernels.formats.integers import FLOAT

SPECIALS = ("ieee", "fn", "none", "fnuz", "p3109")
OVERFLOWS = ("infinity", "saturate", "nan")

# Every value travels as float32.
FLOAT32_LSB = -149

# Formats with one zero: their NaN has the code that would be -0's, and they may lack the sign.
ONE_ZERO = ("fnuz", "p3109")

#: The ending of a name that gives a format's overflow.
OVERFLOW_SUFFIX = {"infinity": "inf", "saturate": "sat", "nan": "nan"}


@dataclass(frozen=True)
class FloatFormat(Named):
    """A binary floating-point format: a sign bit, ``exp_bits`` and ``man_bits`` (no hidden bit).

    Formats of specials "fnuz" and "p3109" have one zero: every result that is zero is +0, also of
    -0 and of a negative value that underflows.

    A normal value is ``(-1)^s * 2^(E - bias) * (1 + mant / 2^man_bits)`` for exponent codes E >= 1;
    code 0 holds the zeros and the subnormals ``(-1)^s * 2^(1 - bias) * mant / 2^man_bits``.

    Args:
        exp_bits:   1..8.
        man_bits:   0..23.
        bias:       exponent bias; default ``2^(exp_bits - 1) - 1`` (0 for one exponent bit, which
                    makes the format a sign-magnitude integer, the element of block floating point),
                    and ``2^(exp_bits - 1)`` for "fnuz" and "p3109".
        specials:   "ieee": the top exponent code is infinity and NaN (with man_bits = 0 it is
                    infinity, NaN has no code). "fn": finite, NaN only in the all-ones code, as
                    OCP's E4M3. "none": no code is reserved. "fnuz": finite, NaN in the code of -0,
                    as AMD's formats. "p3109": the same with an infinity of each sign in the last
                    code, as the formats of IEEE's working group P3109 (gfloat's
                    ``format_info_p3109``). These two have 3..16 bits.
        subnormals: without them, the neighbours of a value below ``min_normal`` are 0 and
                    ``min_normal``, and the rounding mode chooses.
        overflow:   what a result beyond ``max`` and an infinite input become: "infinity",
                    "saturate" (``max``) or "nan". Default "nan" for "fn" and "fnuz", else
                    "infinity". Infinity and NaN are legal values of any format but "fn" and "fnuz"
                    (no infinity); where no code is reserved for them they cannot be packed.
        signed:     False, for "fnuz" and "p3109" alone: no sign bit. NaN is the last code, behind
                    the infinity of "p3109". A result that is still negative after rounding,
                    -infinity too, becomes 0 under overflow "saturate" and NaN else, in every mode,
                    and counts as overflow.

    Raises:
        TypeError: an argument has the wrong type.  ValueError: a field or a combination that no
        float32 can carry, or that has no normal value.

    >>> fmt = lp.FloatFormat(4, 3, specials="fn", overflow="saturate")
    >>> str(fmt), fmt.bits, fmt.max, fmt.min_subnormal
    ('e4m3fn_sat', 8, 448.0, 0.001953125)
    """

    exp_bits: int
    man_bits: int
    _: KW_ONLY
    # None stands for the default until __post_init__ has put it there.
    bias: int = None  # type: ignore[assignment]
    specials: str = "ieee"
    subnormals: bool = True
    overflow: str = None  # type: ignore[assignment]
    signed: bool = True

    def __post_init__(self) -> None:
        owner = "FloatFormat"
        exp_bits = checked_int(owner, "exp_bits", self.exp_bits, 1, 8)
        specials = checked_choice(owner, "specials", self.specials, SPECIALS)
        bias = default_bias(exp_bits, specials) if self.bias is None else self.bias
        overflow = default_overflow(specials) if self.overflow is None else self.overflow
        set_fields(
            self,
            exp_bits=exp_bits,
            man_bits=checked_int(owner, "man_bits", self.man_bits, 0, 23),
            bias=checked_int(owner, "bias", bias, -1000, 1000),
            subnormals=checked_bool(owner, "subnormals", self.subnormals),
            overflow=checked_choice(owner, "overflow", overflow, OVERFLOWS),
            signed=checked_bool(owner, "signed", self.signed),
        )
        self._check_combination()

    def _check_combination(self) -> None:
        if not self.signed and self.specials not in ONE_ZERO:
            raise ValueError(
                f"FloatFormat: signed=False needs specials='fnuz' or 'p3109', got specials="
                f"{self.specials!r}"
            )
        if self.specials in ONE_ZERO and not 3 <= self.bits <= 16:
            raise ValueError(
                f"FloatFormat: specials={self.specials!r} is of 3 to 16 bits, got {self.bits} "
                f"(exp_bits={self.exp_bits}, man_bits={self.man_bits}, signed={self.signed})"
            )
        if self.specials == "ieee" and self.exp_bits == 1:
            raise ValueError(
                "FloatFormat: specials='ieee' reserves the top exponent code, so exp_bits=1 leaves "
                "no normal value; use exp_bits >= 2, or specials='none'"
            )
        if self.specials == "fn" and self.exp_bits == 1 and self.man_bits == 0:
            raise ValueError(
                "FloatFormat: specials='fn' with exp_bits=1, man_bits=0 has NaN as its only normal "
                "code; use more bits, or specials='none'"
            )
        if self.specials in ("fn", "fnuz") and self.overflow == "infinity":
            raise ValueError(
                f"FloatFormat: specials={self.specials!r} has no infinity, so overflow="
                "'infinity' cannot be; use overflow='nan' or 'saturate'"
            )
        if self.emin - self.man_bits < FLOAT32_LSB:
            raise ValueError(
                f"FloatFormat: the smallest step is 2^{self.emin - self.man_bits}, below float32's "
                f"2^{FLOAT32_LSB}, in which values travel; use a smaller bias (got {self.bias}) or "
                f"fewer man_bits (got {self.man_bits})"
            )
        if self.emax > 127:
            raise ValueError(
                f"FloatFormat: the largest exponent is {self.emax}, beyond float32's 127, in which "
                f"values travel; use a larger bias (got {self.bias}), fewer exp_bits (got "
                f"{self.exp_bits}) or specials='ieee' (got {self.specials!r})"
            )

    @property
    def bits(self) -> int:
        """Width of a code: sign, if there is one, exponent and mantissa."""
        return self.signed + self.exp_bits + self.man_bits

    @property
    def one_zero(self) -> bool:
        """Whether +0 is the only zero."""
        return self.specials in ONE_ZERO

    @property
    def emin(self) -> int:
        """Exponent of ``min_normal``."""
        return 1 - self.bias

    @property
    def max_code(self) -> int:
        """The code of ``max``: of all codes without sign, the last that is a number."""
        # Infinity and NaN. A signed format with one zero has its NaN in -0's code.
        lost = {"ieee": 2**self.man_bits, "fn": 1, "none": 0, "fnuz": 0, "p3109": 1}
        return 2 ** (self.exp_bits + self.man_bits) - 1 - lost[self.specials] - (not self.signed)

    @property
    def emax(self) -> int:
        """Exponent of ``max``."""
        return (self.max_code >> self.man_bits) - self.bias

    @property
    def max(self) -> float:
        """The largest finite value."""
        mantissa = self.max_code % 2**self.man_bits
        return 2.0**self.emax * (1.0 + mantissa * self.epsilon)

    @property
    def min_normal(self) -> float:
        """The smallest positive normal value."""
        return 2.0**self.emin

    @property
    def min_subnormal(self) -> float:
        """The smallest positive value; ``min_normal`` where there are no subnormals."""
        return 2.0 ** (self.emin - self.man_bits) if self.subnormals else self.min_normal

    @property
    def epsilon(self) -> float:
        """The step of the binade of 1: ``2^-man_bits``."""
        return 2.0**-self.man_bits

    @property
    def name(self) -> str:
        """The name that :func:`lpkernels.parse_format` reads back into this format.

        ``e<E>m<M>``, then "fn", "none" or "fnuz"; of "p3109" and of unsigned formats gfloat's
        name, ``p3109_k<bits>p<man_bits + 1>`` and "se", "ue" or "uf" (signed or unsigned, extended
        or finite). Then "_b<bias>", "_nosub" and "_inf", "_sat" or "_nan", each only where it
        differs from the default.
        """
        name = f"e{self.exp_bits}m{self.man_bits}"
        if self.specials == "p3109" or not self.signed:
            kind = ("s" if self.signed else "u") + ("e" if self.specials == "p3109" else "f")
            name = f"p3109_k{self.bits}p{self.man_bits + 1}{kind}"
        elif self.specials != "ieee":
            name += self.specials
        if self.bias != default_bias(self.exp_bits, self.specials):
            name += f"_b{self.bias}"
        if not self.subnormals:
            name += "_nosub"
        if self.overflow != default_overflow(self.specials):
            name += f"_{OVERFLOW_SUFFIX[self.overflow]}"
        return name

    def values(self) -> np.ndarray:
        """Every finite value once, ascending, as float64; zero appears once.

        Raises:  ValueError: the format has more than 16 bits.
        """
        self._check_listable(self.bits)
        mantissas = np.arange(2**self.man_bits, dtype=np.float64)
        exponents = np.arange(1, self.emax + self.bias + 1) - self.bias
        normals = np.ldexp(1.0 + mantissas * self.epsilon, exponents[:, None]).ravel()
        subnormals = np.ldexp(mantissas[1:] * self.epsilon, self.emin)
        positive = np.concatenate([subnormals, normals] if self.subnormals else [normals])
        positive = positive[positive <= self.max]
        negative = -positive[::-1] if self.signed else positive[:0]
        return np.concatenate([negative, [0.0], positive])

    def fits_in(self, exp_bits: int, man_bits: int) -> bool:
        emax = 2 ** (exp_bits - 1) - 1
        return (
            self.man_bits <= man_bits
            and self.emin - self.man_bits >= 1 - emax - man_bits
            and self.max <= 2.0**emax * (2 - 2.0**-man_bits)
        )

    def to_ints(self) -> tuple[int, ...]:
        """Eight integers (`integers.InFloat`)."""
        return (
            FLOAT,
            self.exp_bits,
            self.man_bits,
            self.bias,
            SPECIALS.index(self.specials),
            int(self.subnormals),
            OVERFLOWS.index(self.overflow),
            int(not self.signed),
        )

    @staticmethod
    def from_ints(ints: tuple[int, ...]) -> "FloatFormat":
        """The format of `to_ints`."""
        _, exp_bits, man_bits, bias, specials, subnormals, overflow, unsigned = ints
        return FloatFormat(
            exp_bits, man_bits, bias=bias, specials=SPECIALS[specials],
            subnormals=bool(subnormals), overflow=OVERFLOWS[overflow], signed=not unsigned,
        )  # fmt: skip


def default_bias(exp_bits: int, specials: str) -> int:
    """The bias of a format that is given none."""
    return 2 ** (exp_bits - 1) - (specials not in ONE_ZERO)


def default_overflow(specials: str) -> str:
    """What overflow becomes in a format that does not say it."""
    return "nan" if specials in ("fn", "fnuz") else "infinity"
