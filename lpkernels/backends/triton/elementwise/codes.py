"""Codes of single values: sign | exponent | mantissa, an integer in two's complement, or a
table's own.

They are computed in float64, where every float32 value is normal, so that bits of the exponent and
exact scaling suffice.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from lpkernels.backends.triton.rounding.bits import EXPONENT, bits_of, magnitude_of, value_of
from lpkernels.backends.triton.rounding.table import number_of, search_steps, table_numbers
from lpkernels.formats import FixedFormat, FloatFormat, TableFormat, format_from_ints
from lpkernels.reference.packing import special_codes
from lpkernels.rounding import ROUNDINGS


class TableCodes(NamedTuple):
    """The arguments of a kernel for the codes of a table: the search for an entry, the entries and
    codes, and the value of every code, NaN for none."""

    thresholds: Any
    entries: Any
    codes: Any
    decoded: Any


class Codec(NamedTuple):
    """A float, fixed or table format, compiled in."""

    fixed: bool
    width: int
    #: Float formats alone read these.
    man_bits: int = 0
    emin: int = 0
    max: float = 0.0
    subnormals: bool = True
    signed: bool = True
    #: -0 has the code 0, and the code of -0, where there is one, is NaN's.
    one_zero: bool = False
    #: Magnitudes of the codes of infinity and NaN, -1 for none; larger ones than `last` are NaN.
    infinity: int = -1
    nan: int = -1
    last: int = 0
    #: Fixed formats alone read these: the exponent of the quantum, and both ends in quanta.
    quantum: int = 0
    lowest: float = 0.0
    highest: float = 0.0
    #: The steps of the search for a value of a table; 0: the format is no table.
    steps: int = 0


@functools.lru_cache(maxsize=64)
def table_codes(fmt: tuple[int, ...], device: torch.device) -> TableCodes | None:
    """The codes of a table on a device; None for other formats."""
    parsed = format_from_ints(fmt)
    if not isinstance(parsed, TableFormat):
        return None
    # The value at or below x, which is x where x is a value.
    below = table_numbers(parsed, ROUNDINGS.index("toward_negative"), device)
    tensors = parsed.tensors()
    codes, decoded = (
        torch.from_numpy(array.copy()).to(device) for array in (tensors.codes, tensors.decoded)
    )
    return TableCodes(below.thresholds, below.entries, codes, decoded)


def codec_of(fmt: tuple[int, ...]) -> Codec:
    """The Codec of the integers of a float, fixed or table format."""
    parsed = format_from_ints(fmt)
    if isinstance(parsed, TableFormat):
        nan = -1 if parsed.nan_code is None else parsed.nan_code
        return Codec(False, parsed.bits, nan=nan, steps=search_steps(parsed))
    if isinstance(parsed, FixedFormat):
        width = parsed.word_bits
        lowest = -(2.0 ** (width - 1)) if parsed.signed else 0.0
        return Codec(
            True, width, quantum=-parsed.frac_bits, lowest=lowest, highest=lowest + 2.0**width - 1
        )
    if not isinstance(parsed, FloatFormat):
        raise TypeError(f"codec_of: expected a float, fixed or table format, got {parsed}")
    infinity, nan = (-1 if code is None else code for code in special_codes(parsed))
    return Codec(
        False,
        parsed.bits,
        man_bits=parsed.man_bits,
        emin=parsed.emin,
        max=parsed.max,
        subnormals=parsed.subnormals,
        signed=parsed.signed,
        one_zero=parsed.one_zero,
        infinity=infinity,
        nan=nan,
        last=parsed.max_code + (infinity >= 0),
    )


@triton.jit
def power(EXPONENT: tl.constexpr):
    """2^EXPONENT in float64."""
    return value_of(tl.full([], (1023 + EXPONENT) << 52, tl.int64))


@triton.jit
def encode(x, F: tl.constexpr, T=None):
    """The code of float64 x as an int64, and whether it has one. T: `TableCodes`, of a table."""
    if F.steps > 0:
        return encode_in_table(x, F, T)
    elif F.fixed:
        return encode_fixed(x, F)
    else:
        return encode_float(x, F)


@triton.jit
def encode_in_table(x, F: tl.constexpr, T):
    number = number_of(x, T.thresholds, F.steps)
    has_code = tl.load(T.entries + number) == x
    code = tl.load(T.codes + number).to(tl.int64)
    if F.nan >= 0:
        code = tl.where(x == x, code, F.nan)
        has_code = has_code | (x != x)
    return code, has_code


@triton.jit
def encode_fixed(x, F: tl.constexpr):
    quanta = x * power(-F.quantum)
    has_code = (quanta >= F.lowest) & (quanta <= F.highest) & (quanta == tl.floor(quanta))
    return tl.where(has_code, quanta, 0.0).to(tl.int64) & ((1 << F.width) - 1), has_code


@triton.jit
def encode_float(x, F: tl.constexpr):
    a = magnitude_of(x)
    bits = bits_of(a)
    exponent = tl.maximum((bits >> 52) - 1023, F.emin)
    # A subnormal has less than 2^man_bits quanta at emin: its hidden bit and its exponent are 0.
    quanta = a * value_of((-exponent + (1023 + F.man_bits)) << 52)
    has_code = (a <= F.max) & (quanta == tl.floor(quanta))
    if not F.subnormals:
        has_code = has_code & ((a == 0.0) | (bits >= ((1023 + F.emin) << 52)))
    quanta = tl.where(has_code, quanta, 0.0).to(tl.int64)
    code = tl.where(has_code, ((exponent - F.emin) << F.man_bits) + quanta, 0)
    if F.infinity >= 0:
        infinite = bits == EXPONENT
        code = tl.where(infinite, F.infinity, code)
        has_code = has_code | infinite
    negative = bits_of(x) < 0
    if F.one_zero:
        negative = negative & (bits != 0)
    if F.signed:
        code = code | tl.where(negative, 1 << (F.width - 1), 0)
    else:
        has_code = has_code & (negative == 0)
    if F.nan >= 0:
        nan = bits > EXPONENT
        code = tl.where(nan, F.nan, code)
        has_code = has_code | nan
    return code, has_code


@triton.jit
def decode(code, F: tl.constexpr, T=None):
    """The value of an int64 code in float64; without subnormals exponent 0 means zero. T: as
    above."""
    if F.steps > 0:
        return tl.load(T.decoded + code)
    elif F.fixed:
        if F.lowest < 0:
            code = code - ((code >> (F.width - 1)) << F.width)
        return code.to(tl.float64) * power(F.quantum)
    else:
        magnitude = code & ((1 << (F.width - F.signed)) - 1)
        exponent = magnitude >> F.man_bits
        normal = exponent > 0
        mantissa = magnitude & ((1 << F.man_bits) - 1)
        if not F.subnormals:
            mantissa = tl.where(normal, mantissa, 0)
        mantissa = mantissa + tl.where(normal, 1 << F.man_bits, 0)
        scale = tl.maximum(exponent, 1) + (F.emin - 1 - F.man_bits + 1023)
        value = mantissa.to(tl.float64) * value_of(scale << 52)
        if F.infinity >= 0:
            value = tl.where(magnitude == F.infinity, float("inf"), value)
        # Triton's -0.0 is +0.0.
        if F.signed:
            value = value_of(bits_of(value) | ((code >> (F.width - 1)) << 63))
        if F.one_zero:
            value = tl.where(code == F.nan, float("nan"), tl.where(value == 0.0, 0.0, value))
        return tl.where(magnitude > F.last, float("nan"), value)
