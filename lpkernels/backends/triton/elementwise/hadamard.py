"""Hadamard transforms with random signs, rounded to bfloat16: `reference.hadamard`.

Sums are made in float64. Where some sum may need more bits, or a quotient lies too near to the
middle between two results, the program makes its sums once more as integers of 320 bits, digit by
digit, and compares them with this middle.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.backends.triton._launch import EXACT, on_device
from lpkernels.backends.triton.rounding.bits import (
    EXPONENT,
    EXPONENT32,
    MAGNITUDE32,
    SIGN,
    bits_of,
    double,
    magnitude_of,
    narrow,
    value_of,
    widened,
    with_sign,
)

# More values of a thread do not fit into its registers.
_ELEMENTS = 256
#: Digits of 32 bits: those of a float32 in units of 2^-149, and one more for a sum.
_DIGITS = tl.constexpr(9)
#: Digits of 1 or of the root of 2 below the point, and in all. A middle is at most 2^9 digits of
#: 32 bits away from a sum's last place; the last two guard the carries.
_BELOW, _CONSTANT = 11, 13
_BELOW_POINT, _CONSTANT_DIGITS = tl.constexpr(_BELOW), tl.constexpr(_CONSTANT)
_GUARD = tl.constexpr(2)
_DIGIT = tl.constexpr(2**32 - 1)
#: Of a double's 52 places bfloat16 has 7: its last place is 2^45 of theirs, and half more, so that
#: a negative number is met in the same binade.
_BEYOND = tl.constexpr((45 << 52) + (1 << 51))
_LEAST_PLACES = tl.constexpr(1.5 * 2.0**-81)


@triton.jit
def sylvester(x, RUNS: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr):
    """x [RUNS, SIZE] times H. Every step takes pairs that differ in the last bit of their place,
    and moves this bit to the front: after all steps each bit is where it was."""
    for _ in tl.static_range(STEPS):
        first, second = tl.split(tl.reshape(x, [RUNS, SIZE // 2, 2]))
        pairs = tl.join(first + second, first - second)
        x = tl.reshape(tl.permute(pairs, (0, 2, 1)), [RUNS, SIZE])
    return x


@triton.jit
def as_bfloat16(y):
    """Float64 rounded to bfloat16's places, but for the sign of zero and the largest exponent."""
    places = tl.maximum(value_of((bits_of(y) & EXPONENT) + _BEYOND), _LEAST_PLACES)
    return (y + places) - places


@triton.jit
def digit_of(x, k, negate, RUNS: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr):
    """Digit k, not yet carried, of the sums of float32 x as integers in units of 2^-149."""
    bits = bits_of(x)
    field = (bits & MAGNITUDE32) >> 23
    shift = tl.maximum(field - 1, 0)
    fraction = (bits & 0x7FFFFF) | tl.where(field > 0, 0x800000, 0)
    word = tl.cast(fraction, tl.int64) << tl.cast(shift % 32, tl.int64)
    at = k - shift // 32
    digit = tl.where(at == 0, word & _DIGIT, tl.where(at == 1, word >> 32, 0))
    sums = sylvester(tl.where(bits < 0, -digit, digit), RUNS, SIZE, STEPS)
    return tl.where(negate, -sums, sums)


@triton.jit
def exact_quotients(
    x,
    constant_ptr,
    FACTOR: tl.constexpr,
    RUNS: tl.constexpr,
    SIZE: tl.constexpr,
    STEPS: tl.constexpr,
):
    """The rounded quotients of finite float32 x; +0 for 0."""
    none = tl.zeros([RUNS, SIZE], tl.int64)
    carry = none
    for k in tl.static_range(_DIGITS):
        carry = (digit_of(x, k, none < 0, RUNS, SIZE, STEPS) + carry) >> 32
    negative = carry < 0
    carry, total = none, double(none)
    for k in tl.static_range(_DIGITS + 1):
        carry += digit_of(x, k, negative, RUNS, SIZE, STEPS)
        total += double(carry & _DIGIT) * 2.0 ** (32 * k - 149)
        carry = carry >> 32
    # Ten roundings, and those of the factor and the product.
    y = total * FACTOR
    low, high = as_bfloat16(y * (1 - 2.0**-48)), as_bfloat16(y * (1 + 2.0**-48))
    middle = (low + high) * 0.5
    # The sum at the middle: F 2^(32 q + r) times the constant, F of 9 bits.
    bits = bits_of(middle)
    f = ((bits >> 44) & 0xFF) | 0x100
    power = (bits >> 52) - 1023 - 8 + 149 + STEPS // 2
    q, r = power // 32, power % 32
    sign, carry, product = none, none, none
    for step in tl.static_range(_GUARD + _DIGITS + 1):
        place = step - _GUARD - q + _BELOW_POINT
        exists = (place >= 0) & (place < _CONSTANT_DIGITS) & (total > 0)
        digit = tl.load(constant_ptr + r * _CONSTANT_DIGITS + place, mask=exists, other=0)
        product = (product >> 32) + f * digit
        if step >= _GUARD:
            carry = (carry >> 32) + digit_of(x, step - _GUARD, negative, RUNS, SIZE, STEPS)
            rest = (carry & _DIGIT) - (product & _DIGIT)
            sign = tl.where(rest == 0, sign, rest)
    # Equal digits: a tie, or a middle that goes on behind the last digit.
    equal = low if STEPS % 2 == 1 else as_bfloat16(middle)
    y = tl.where(sign > 0, high, tl.where(sign < 0, low, equal))
    signed = value_of(bits_of(y) | tl.where(negative, SIGN, 0))
    return tl.where(total == 0, 0.0, signed)


@triton.jit(do_not_specialize=["runs"])
def hadamard_kernel(
    x_ptr,
    out_ptr,
    signs_ptr,
    constant_ptr,
    runs,
    inner,
    FACTOR: tl.constexpr,
    RUNS: tl.constexpr,
    SIZE: tl.constexpr,
    STEPS: tl.constexpr,
):
    """out = round(x D H / sqrt(SIZE)): a program owns RUNS runs, whose values are `inner` apart."""
    run = tl.cast(tl.program_id(0), tl.int64) * RUNS + tl.arange(0, RUNS)
    place = tl.arange(0, SIZE)
    first = run // inner * (inner * SIZE) + run % inner
    offset = first[:, None] + (place * tl.cast(inner, tl.int64))[None, :]
    inside = tl.broadcast_to((run < runs)[:, None], [RUNS, SIZE])
    x = widened(tl.load(x_ptr + offset, mask=inside, other=0.0))
    x = x * tl.load(signs_ptr + place)[None, :]
    words = bits_of(x) & MAGNITUDE32
    largest = tl.max(words, axis=1)
    smallest = tl.min(tl.where(words == 0, largest[:, None], words), axis=1)
    finite = (largest < EXPONENT32)[:, None]
    # Sums are below 2^(F - 126 + STEPS) and multiples of 2^(f - 150), F and f the exponent fields.
    exact = ((largest >> 23) - (smallest >> 23) <= 53 - 24 - STEPS)[:, None]
    y = sylvester(double(x), RUNS, SIZE, STEPS) * FACTOR
    magnitude = magnitude_of(y)
    # Each step is wrong by at most 2^-53 times the sum of all magnitudes.
    bound = double(value_of(largest))[:, None] * (FACTOR * SIZE * 2.0**-49)
    wrong = tl.where(exact, 0.0, bound)
    if STEPS % 2 == 1:
        # The factor and the product are rounded.
        wrong += magnitude * 2.0**-50
    low, high = as_bfloat16(magnitude - wrong), as_bfloat16(magnitude + wrong)
    decided = (low == high) & ((magnitude > wrong) | (wrong == 0))
    result = tl.where(magnitude == 0, 0.0, with_sign(high, y))
    result = tl.where(finite, result, y)
    undecided = finite & (decided == 0)
    if tl.max(tl.max(tl.cast(undecided, tl.int32), axis=1), axis=0) > 0:
        again = exact_quotients(x, constant_ptr, FACTOR, RUNS, SIZE, STEPS)
        result = tl.where(undecided, again, result)
    tl.store(out_ptr + offset, narrow(result), mask=inside)


@lru_cache(maxsize=64)
def _signs(signs: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(signs, dtype=torch.float32, device=device)


@lru_cache(maxsize=8)
def _constant(odd: bool, device: torch.device) -> Tensor:
    """Digits, the lowest first, of 2^r, or of 2^r times the root of 2, for r = 0 .. 31."""
    rows = []
    for r in range(32):
        square = (2 if odd else 1) << 2 * (r + 32 * _BELOW)
        root = math.isqrt(square)
        rows.append([root >> 32 * i & (2**32 - 1) for i in range(_CONSTANT)])
    return torch.tensor(rows, dtype=torch.int64, device=device)


def hadamard(x: Tensor, size: int, signs: tuple[int, ...], axis: int) -> Tensor:
    """`Backend.hadamard`."""
    x = x.contiguous()
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    inner = math.prod(x.shape[axis + 1 :])
    runs, side, steps = x.numel() // size, _ELEMENTS // size, size.bit_length() - 1
    constant = _constant(steps % 2 == 1, x.device)
    with on_device(x):
        hadamard_kernel[(triton.cdiv(runs, side),)](
            x, out, _signs(signs, x.device), constant, runs, inner,
            FACTOR=1 / math.sqrt(size), RUNS=side, SIZE=size, STEPS=steps, **EXACT,
        )  # fmt: skip
    return out
