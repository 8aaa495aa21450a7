"""`rule.rounded` in an SMT solver's doubles, beside the solver's own IEEE 754 conversion."""

from __future__ import annotations

from typing import Any

import z3

from lpkernels.formats import FloatFormat
from proofs.rule import MODES, rounded

_DOUBLE = z3.Float64()
_NEAREST = z3.RNE()
_MODES = {
    "nearest_even": z3.RNE(),
    "nearest_away": z3.RNA(),
    "toward_zero": z3.RTZ(),
    "toward_positive": z3.RTP(),
    "toward_negative": z3.RTN(),
}


class SolverNumbers:
    """Doubles of z3, whose operators round to nearest."""

    def of(self, value: float) -> Any:
        return z3.FPVal(value, _DOUBLE)

    where = staticmethod(z3.If)
    both = staticmethod(z3.And)
    either = staticmethod(z3.Or)
    negated = staticmethod(z3.Not)
    equal = staticmethod(z3.fpEQ)

    def last_bit(self, x: Any) -> Any:
        return z3.Extract(0, 0, z3.fpToIEEEBV(x)) == 1


def counterexample(f: FloatFormat, exponent: int, mantissa_bits: int) -> float | None:
    """A value that `rounded` and IEEE 754 round differently in some mode; None: there is none.

    exponent: values are looked for from 2^exponent up to 2^(exponent + 1), of either sign.
    mantissa_bits: the bits of these values, 23 for the values of float32 and 52 for all doubles.
    """
    mantissa = z3.BitVec("mantissa", mantissa_bits)
    sign = z3.BitVec("sign", 1)
    biased = z3.BitVecVal(exponent + 1023, 11)
    rest = [z3.BitVecVal(0, 52 - mantissa_bits)] if mantissa_bits < 52 else []
    x = z3.fpBVToFP(z3.Concat(sign, biased, mantissa, *rest), _DOUBLE)
    a = z3.fpBVToFP(z3.Concat(z3.BitVecVal(0, 1), biased, mantissa, *rest), _DOUBLE)
    negative = sign == 1
    solver = z3.Solver()
    wrong = []
    for mode in MODES:
        r = rounded(SolverNumbers(), a, 2.0**exponent, negative, f, mode)
        wrong.append(z3.If(negative, z3.fpNeg(r), r) != _converted(f, x, negative, mode))
    solver.add(z3.Or(*wrong))
    found = solver.check()
    if found == z3.unsat:
        return None
    if found != z3.sat:
        raise RuntimeError(f"{f}, exponent {exponent}: the solver says {found}")
    model = solver.model()
    whole = model.eval(mantissa, model_completion=True).as_long() / 2.0**mantissa_bits
    value = (1 + whole) * 2.0**exponent
    return -value if model.eval(sign, model_completion=True).as_long() else value


def _converted(f: FloatFormat, x: Any, negative: Any, mode: str) -> Any:
    """x in the format, as a double. The mode to_odd rounds x toward zero, or away from zero if the
    result toward zero is inexact and its last bit is 0."""
    if mode != "to_odd":
        return _back(_in(f, x, _MODES[mode]))
    down = _in(f, x, z3.RTZ())
    away = z3.If(negative, _in(f, x, z3.RTN()), _in(f, x, z3.RTP()))
    stays = z3.Or(_back(down) == x, z3.Extract(0, 0, z3.fpToIEEEBV(down)) == 1)
    return _back(z3.If(stays, down, away))


def _in(f: FloatFormat, x: Any, mode: Any) -> Any:
    return z3.fpFPToFP(mode, x, z3.FPSort(f.exp_bits, f.man_bits + 1))


def _back(value: Any) -> Any:
    return z3.fpFPToFP(_NEAREST, value, _DOUBLE)
