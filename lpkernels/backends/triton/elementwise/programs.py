"""Scales as TransformerEngine, torchao and DeepGEMM compute them: `reference.programs`, on the
device.

Every line is one operation in float32, rounded to nearest even. Comparisons are written so that NaN
stays NaN.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from lpkernels.backends.triton.rounding.bits import (
    EXPONENT32,
    bits_of,
    double,
    single,
    value_of,
)
from lpkernels.backends.triton.rounding.round import round_to
from lpkernels.formats.integers import E8M0, FLOAT_SCALE, STEPS, TENSOR_SCALE

_TE, _TORCHAO = (tl.constexpr(STEPS.index(steps)) for steps in ("te", "torchao"))
POWER, _FLOATS, WITH_TENSOR = map(tl.constexpr, (E8M0, FLOAT_SCALE, TENSOR_SCALE))
LARGEST = tl.constexpr(2.0**128 - 2.0**104)
_HIGH32 = tl.constexpr(-(2**23))
_SIXTH = tl.constexpr(float(np.float32(1) / np.float32(6)))
_SMALL = tl.constexpr(float(np.float32(1e-4)))
_TINY = tl.constexpr(float(np.float32(1e-12)))
# 1e-12 in float64, which is no float32.
_TINY64 = tl.constexpr(int(np.float64(1e-12).view(np.int64)))


@triton.jit
def at_least(x, least):
    return tl.where(x < least, least, x)


@triton.jit
def at_most(x, most):
    return tl.where(x > most, most, x)


@triton.jit
def without_mantissa(x):
    return value_of(bits_of(x) & _HIGH32)


@triton.jit
def upward_code(x):
    """The byte of the power of two that float32 x is rounded up to; of a subnormal 0 or 1."""
    bits = bits_of(x)
    return (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)


@triton.jit
def power_of_code(code):
    """The value of a byte of e8m0."""
    s = value_of(tl.where(code == 0, 1 << 22, code << 23))
    return tl.where(code == 255, float("nan"), s)


@triton.jit
def scales(a, amax, one, target, bound, NS, S: tl.constexpr, FOUR: tl.constexpr):
    """s of tiles, t, and the number by which values are multiplied; if S.divides, divided.

    a: the largest magnitudes; amax: the tensor's or the lines', in float32; one: t of other
    formats; bound: the scale of the tile that holds the largest."""
    a = single(a)
    if S.candidates > 0:
        return te_candidate(a, amax, bound, NS, S, FOUR)
    elif (S.kind == _FLOATS) or (S.kind == WITH_TENSOR):
        return nvfp4(a, amax, one, NS, S)
    else:
        if S.steps == _TE:
            s, factor = te(a, target, S)
        elif S.steps == _TORCHAO:
            s, factor = torchao(a, target, S)
        else:
            s = tl.div_rn(at_least(a, _SMALL), target)
            if S.kind == POWER:
                s = power_of_code(tl.minimum(tl.maximum(upward_code(s), 1), 254))
            factor = tl.div_rn(1.0, s)
        return s, one, factor


@triton.jit
def narrow_scale(s, NS, S: tl.constexpr):
    return single(round_to(double(s), 0, NS, S.rounding))


@triton.jit
def nvfp4(a, amax, one, NS, S: tl.constexpr):
    """Scales in e4m3 of codes in e2m1; the largest product of both is 448 * 6."""
    if S.kind == _FLOATS:
        s = narrow_scale(at_most(at_least(tl.div_rn(a, 6.0), 2.0**-6), 448.0), NS, S)
        return s, one, tl.div_rn(1.0, s)
    elif S.steps == _TE:
        encode = te_encode(amax, 2688.0)
        s = narrow_scale(at_most(a * (encode * _SIXTH), LARGEST), NS, S)
        return s, tl.div_rn(amax, 2688.0), te_factor(s, encode)
    else:
        t = tl.div_rn(amax, 2688.0)
        s = tl.div_rn(tl.div_rn(a, 6.0), t)
        s = narrow_scale(at_most(at_least(s, 2.0**-6), 448.0), NS, S)
        return s, t, tl.div_rn(tl.div_rn(1.0, t), s)


@triton.jit
def te_encode(amax, number):
    encode = at_most(tl.div_rn(number, amax), LARGEST)
    return tl.where((amax == 0.0) | (encode == 0.0), 1.0, encode)


@triton.jit
def te_factor(s, encode):
    return at_most(tl.div_rn(1.0, s * tl.div_rn(1.0, encode)), LARGEST)


@triton.jit
def te_candidate(a, amax, bound, NS, S: tl.constexpr, FOUR: tl.constexpr):
    """Of NVFP4 with two candidates a tile. A tile that is not finite has no codes."""
    number = single(bound) * 6.0
    encode = te_encode(amax, number)
    b = tl.where(a < float("inf"), tl.div_rn(a, 6.0) * encode, float("nan"))
    if FOUR:
        b = b * 1.5
    s = narrow_scale(at_most(b, 448.0), NS, S)
    return s, tl.div_rn(amax, number), te_factor(s, encode)


@triton.jit
def te(a, target, S: tl.constexpr):
    if S.mx:
        quotient = a * tl.div_rn(1.0, target)
        bits = bits_of(quotient)
        code = tl.where(bits < 1 << 23, (bits > 1 << 22).to(tl.int32), upward_code(quotient))
        code = tl.where(bits_of(a) == EXPONENT32, 254, code)
        s = power_of_code(tl.where(a != a, 255, code))
        return s, tl.div_rn(1.0, s)
    else:
        encode = at_most(tl.div_rn(target, a), LARGEST)
        encode = tl.where((a > 0.0) & (a < float("inf")), encode, 1.0)
        if S.kind == POWER:
            encode = without_mantissa(encode)
        return tl.div_rn(1.0, encode), encode


@triton.jit
def torchao(a, target, S: tl.constexpr):
    if S.integers:
        s = tl.div_rn(a, target)
        if S.halfway:
            s = at_least(s, 2.0**-23)
            return s, tl.div_rn(1.0, s)
        elif S.divides:
            return s, s
        else:
            return s, tl.div_rn(1.0, at_least(s, _TINY))
    else:
        least = value_of(tl.full([], _TINY64, tl.int64))
        encode = single(double(target) / at_least(double(a), least))
        if S.kind == POWER:
            encode = without_mantissa(encode)
        return tl.div_rn(1.0, encode), encode
