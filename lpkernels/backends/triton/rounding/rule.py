"""How one rounding is compiled, and its arguments: the host's side of `round`.

A format comes in two parts. Its `Rule` is compiled in: it decides which instructions there are. Its
`Numbers` are kernel arguments, so formats with the same rule share one compiled kernel. float32
holds all of the numbers, because Triton passes a number as float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton.language as tl

from lpkernels.formats import FixedFormat, FloatFormat, TableFormat, format_from_ints
from lpkernels.formats.integers import InFloat
from lpkernels.rounding import ROUNDINGS

if TYPE_CHECKING:
    from lpkernels.backends.triton.rounding.table import TableNumbers

# The positions in lpkernels.rounding.ROUNDINGS.
(
    NEAREST_EVEN, NEAREST_AWAY, TOWARD_ZERO, TOWARD_POSITIVE, TOWARD_NEGATIVE, TO_ODD, STOCHASTIC,
) = map(tl.constexpr, range(len(ROUNDINGS)))  # fmt: skip

# The positions in lpkernels.formats.OVERFLOWS, and the wrap of fixed point.
INFINITY = tl.constexpr(0)
SATURATE = tl.constexpr(1)
WRAP = tl.constexpr(3)


class Rule(NamedTuple):
    """The part of a rounding that decides its instructions; it is hashable, and a constexpr of a
    kernel."""

    fixed: bool
    mode: int
    overflow: int
    subnormals: bool = True
    #: man_bits is 0: the exponent's parity is the code's.
    exponent_parity: bool = False
    #: The tie beyond max rounds to max.
    tie_stays: bool = False
    #: Whether results may be negative. Float formats without a sign have one zero.
    signed: bool = True
    #: +0 is the only zero of a float format.
    one_zero: bool = False
    #: Stochastic modes alone read these two.
    random_bits: int = 0
    philox: bool = False
    #: In directed modes too a value beyond max becomes what the format says, as in tensor cores.
    always_overflows: bool = False
    #: The format is a table; the steps of a search in it, and whether an infinity becomes NaN.
    table: bool = False
    steps: int = 0
    infinity_is_nan: bool = False


class Numbers(NamedTuple):
    """The constants of one format, arguments of a kernel.

    A float format has the smallest normal value, 2^-man_bits, the largest value, half of its
    quantum, and the exponent code of the smallest normal value less 1 when float64 holds it. A
    fixed format has its quantum, 2^word_bits, the largest and the lowest value, and 0.
    """

    least: float
    unit: float
    max: float
    low: float
    code: float


_CPU = torch.device("cpu")


def rule_of(
    fmt: tuple[int, ...],
    mode: int,
    random_bits: int = 0,
    rng: int = 0,
    *,
    device: torch.device = _CPU,
) -> tuple[Rule, Numbers | TableNumbers]:
    """The two parts of a format's integers, with a rounding mode's code: of floats, integers and
    tables. device: where a kernel will read a table's numbers."""
    parsed = format_from_ints(fmt)
    bits = random_bits if mode == STOCHASTIC.value else 0
    philox = bool(rng) and bits > 0
    if isinstance(parsed, TableFormat):
        return _table_rule(parsed, mode, bits, philox, device)
    if isinstance(parsed, FixedFormat):
        return _fixed_rule(parsed, mode, bits, philox)
    if not isinstance(parsed, FloatFormat):
        raise TypeError(f"rule_of: expected a float, fixed or table format, got {parsed}")
    emin = 1 - parsed.bias
    top_exponent = math.frexp(parsed.max)[1] - 1
    half_top = math.ldexp(1.0, top_exponent - parsed.man_bits - 1)
    rule = Rule(
        fixed=False,
        mode=mode,
        overflow=fmt[InFloat.OVERFLOW],
        subnormals=parsed.subnormals,
        exponent_parity=parsed.man_bits == 0,
        tie_stays=parsed.max_code % 2 == 0,
        signed=parsed.signed,
        one_zero=parsed.one_zero,
        random_bits=bits,
        philox=philox,
    )
    unit = math.ldexp(1.0, -parsed.man_bits)
    return rule, Numbers(math.ldexp(1.0, emin), unit, parsed.max, half_top, float(emin - 1 + 1023))


def _fixed_rule(fmt: FixedFormat, mode: int, bits: int, philox: bool) -> tuple[Rule, Numbers]:
    overflow = WRAP.value if fmt.overflow == "wrap" else SATURATE.value
    quantum = math.ldexp(1.0, -fmt.frac_bits)
    signed = int(fmt.signed)
    top = float(2 ** (fmt.word_bits - signed) - 1) * quantum
    lowest = -signed * 2.0 ** (fmt.word_bits - 1) * quantum
    numbers = Numbers(quantum, 2.0**fmt.word_bits, top, lowest, 0.0)
    rule = Rule(True, mode, overflow, signed=fmt.signed, random_bits=bits, philox=philox)
    return rule, numbers


def _table_rule(
    fmt: TableFormat, mode: int, bits: int, philox: bool, device: torch.device
) -> tuple[Rule, TableNumbers]:
    from lpkernels.backends.triton.rounding.table import search_steps, table_numbers

    rule = Rule(
        False,
        mode,
        SATURATE.value,
        random_bits=bits,
        philox=philox,
        table=True,
        steps=search_steps(fmt),
        infinity_is_nan=fmt.infinity == "nan",
    )
    return rule, table_numbers(fmt, mode, device)


#: The numbers of fp32.
FLOAT32 = rule_of(FloatFormat(8, 23).to_ints(), NEAREST_EVEN.value)[1]


def float32_fits(fmt: tuple[int, ...]) -> bool:
    """Whether `round.round_to_float` takes a format for float32 values, given as its integers.

    One spacing below 2^floor, a largest value not below that, 2^(q + 23) a float32.
    """
    parsed = format_from_ints(fmt)
    if not isinstance(parsed, FloatFormat):
        return False
    if parsed.emin - (parsed.man_bits if parsed.subnormals else 0) + 23 > 127:
        return False
    reaches = parsed.emin == -127 and parsed.subnormals and parsed.max >= 2.0**-126
    return parsed.emin >= -126 or reaches


def evenly_spaced(fmt: tuple[int, ...]) -> bool:
    """Whether values below 2^floor follow the rule of the values above: float32's own exponents."""
    parsed = format_from_ints(fmt)
    return isinstance(parsed, FloatFormat) and parsed.emin == -126 and parsed.subnormals
