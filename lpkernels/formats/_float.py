"""FloatFormat: sign, exponent and mantissa of any width, and its values."""

from dataclasses import dataclass

import numpy as np

from lpkernels.formats.checks import checked_bool, checked_choice, checked_int, set_fields
from lpkernels.formats.integers import FLOAT

SPECIALS = ("ieee", "fn", "none")
OVERFLOWS = ("infinity", "saturate", "nan")

# Every value travels as float32.
FLOAT32_LSB = -149
FLOAT32_MAX = float.fromhex("0x1.fffffep+127")

_OVERFLOW_SUFFIX = {"infinity": "inf", "saturate": "sat", "nan": "nan"}


@dataclass(frozen=True, init=False)
class FloatFormat:
    """A binary floating-point format: a sign bit, ``exp_bits`` and ``man_bits`` (no hidden bit).

    A normal value is ``(-1)^s * 2^(E - bias) * (1 + mant / 2^man_bits)`` for exponent codes E >= 1;
    code 0 holds the zeros and the subnormals ``(-1)^s * 2^(1 - bias) * mant / 2^man_bits``.

    Args:
        exp_bits:   1..8.
        man_bits:   0..23.
        bias:       exponent bias; default ``2^(exp_bits - 1) - 1`` (0 for one exponent bit, which
                    makes the format a sign-magnitude integer, the element of block floating point).
        specials:   "ieee": the top exponent code is infinity and NaN (with man_bits = 0 it is
                    infinity, NaN has no code). "fn": finite, NaN only in the all-ones code, as
                    OCP's E4M3. "none": no code is reserved.
        subnormals: without them, the neighbours of a value below ``min_normal`` are 0 and
                    ``min_normal``, and the rounding mode chooses.
        overflow:   what a result beyond ``max`` and an infinite input become: "infinity",
                    "saturate" (``max``) or "nan". Default "nan" for "fn", else "infinity".
                    Infinity and NaN are legal values of any format but "fn" (no infinity); where
                    no code is reserved for them they cannot be packed.

    Raises:
        TypeError: an argument has the wrong type.  ValueError: a field or a combination that no
        float32 can carry, or that has no normal value.
    """

    exp_bits: int
    man_bits: int
    bias: int
    specials: str
    subnormals: bool
    overflow: str

    def __init__(
        self,
        exp_bits: int,
        man_bits: int,
        *,
        bias: int | None = None,
        specials: str = "ieee",
        subnormals: bool = True,
        overflow: str | None = None,
    ) -> None:
        exp_bits = checked_int("FloatFormat", "exp_bits", exp_bits, 1, 8)
        man_bits = checked_int("FloatFormat", "man_bits", man_bits, 0, 23)
        if bias is None:
            bias = 2 ** (exp_bits - 1) - 1
        bias = checked_int("FloatFormat", "bias", bias, -1000, 1000)
        specials = checked_choice("FloatFormat", "specials", specials, SPECIALS)
        subnormals = checked_bool("FloatFormat", "subnormals", subnormals)
        if overflow is None:
            overflow = "nan" if specials == "fn" else "infinity"
        overflow = checked_choice("FloatFormat", "overflow", overflow, OVERFLOWS)
        set_fields(
            self,
            exp_bits=exp_bits,
            man_bits=man_bits,
            bias=bias,
            specials=specials,
            subnormals=subnormals,
            overflow=overflow,
        )
        self._check_combination()

    def _check_combination(self) -> None:
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
        if self.specials == "fn" and self.overflow == "infinity":
            raise ValueError(
                "FloatFormat: specials='fn' has no infinity, so overflow='infinity' cannot be; use "
                "overflow='nan' or 'saturate'"
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
        """Width of a code: sign, exponent and mantissa."""
        return 1 + self.exp_bits + self.man_bits

    @property
    def emin(self) -> int:
        """Exponent of ``min_normal``."""
        return 1 - self.bias

    @property
    def emax(self) -> int:
        """Exponent of ``max``."""
        top_is_special = self.specials == "ieee" or (self.specials == "fn" and self.man_bits == 0)
        return 2**self.exp_bits - 1 - top_is_special - self.bias

    @property
    def max(self) -> float:
        """The largest finite value."""
        # "fn" with mantissa bits loses only the all-ones mantissa of the top binade to NaN.
        steps_lost = 2 if self.specials == "fn" and self.man_bits > 0 else 1
        return 2.0**self.emax * (2.0 - steps_lost * 2.0**-self.man_bits)

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

        ``e<E>m<M>``, then "fn" or "none", then "_b<bias>", "_nosub" and "_inf", "_sat" or "_nan",
        each only where it differs from the default.
        """
        name = f"e{self.exp_bits}m{self.man_bits}"
        if self.specials != "ieee":
            name += self.specials
        if self.bias != 2 ** (self.exp_bits - 1) - 1:
            name += f"_b{self.bias}"
        if not self.subnormals:
            name += "_nosub"
        if self.overflow != ("nan" if self.specials == "fn" else "infinity"):
            name += f"_{_OVERFLOW_SUFFIX[self.overflow]}"
        return name

    def __str__(self) -> str:
        return self.name

    def values(self) -> np.ndarray:
        """Every finite value once, ascending, as float64; zero appears once.

        Raises:  ValueError: the format has more than 16 bits.
        """
        if self.bits > 16:
            raise ValueError(
                f"values: {self.name} has {self.bits} bits; a list of all values is made for at "
                "most 16"
            )
        mantissas = np.arange(2**self.man_bits, dtype=np.float64)
        exponents = np.arange(1, self.emax + self.bias + 1) - self.bias
        normals = np.ldexp(1.0 + mantissas * self.epsilon, exponents[:, None]).ravel()
        subnormals = np.ldexp(mantissas[1:] * self.epsilon, self.emin)
        positive = np.concatenate([subnormals, normals] if self.subnormals else [normals])
        positive = positive[positive <= self.max]
        return np.concatenate([-positive[::-1], [0.0], positive])

    def fits_in(self, exp_bits: int, man_bits: int) -> bool:
        """Whether the IEEE format of these widths holds every value of this one, exactly.

        ``(5, 10)`` asks about float16, ``(8, 7)`` bfloat16, ``(8, 23)`` float32.
        """
        host = FloatFormat(exp_bits, man_bits)
        return (
            self.man_bits <= host.man_bits
            and self.emin - self.man_bits >= host.emin - host.man_bits
            and self.max <= host.max
        )

    def to_ints(self) -> tuple[int, ...]:
        """Eight integers: FLOAT, exp_bits, man_bits, bias, specials, subnormals, overflow, 0."""
        return (
            FLOAT,
            self.exp_bits,
            self.man_bits,
            self.bias,
            SPECIALS.index(self.specials),
            int(self.subnormals),
            OVERFLOWS.index(self.overflow),
            0,
        )
