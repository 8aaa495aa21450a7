"""One step of the certified kernels: each tier adds one product more to every sum."""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._launch import interpreting
from lpkernels.backends.triton.certified.certificate import (
    CUT,
    DIRECTED,
    FIXED,
    FLOOR,
    FUSED,
    FUSED64,
    HALF,
    NEAREST,
    PLAIN,
    RANGE,
    SPLIT,
)
from lpkernels.backends.triton.exact.sequential import is_absent
from lpkernels.backends.triton.rounding.bits import bits_of, double, single, value_of, zero_of
from lpkernels.backends.triton.rounding.round import (
    add_rounded,
    cut_sum,
    fixed_sum,
    floored,
    fused,
    own_zero,
    ranged,
    split32,
    summed,
)
from lpkernels.backends.triton.rounding.rule import WRAP

_INTERPRETED = tl.constexpr(interpreting())


@triton.jit
def as_sums(x, TIER: tl.constexpr):
    """x in the type in which a tier sums. The interpreter has no fused multiply-add of halves."""
    if TIER >= FUSED64:
        return double(x)
    elif (TIER >= PLAIN) or _INTERPRETED:
        return single(x)
    else:
        return tl.cast(x, tl.float16 if TIER == HALF else tl.bfloat16)


@triton.jit
def scale_of(N, PART: tl.constexpr):
    """Part 0 or 1 of the scale, two powers of two that multiply to it; part 2 is the whole scale.

    For -126 <= e <= 100, part 2 for e <= 0. Operands of usual sizes stay exact if each takes its
    part.
    """
    # -126 - e, from a biased exponent.
    scale = 1 - (bits_of(single(N.least)) >> 23)
    part = scale
    if PART == 0:
        part = scale >> 1
    elif PART == 1:
        part = scale - (scale >> 1)
    return value_of((part + 127) << 23)


@triton.jit
def unscaled(sums, N):
    """Sums without their scale, exactly: values of the format."""
    # 2^(126 + e) may be no float32.
    exponent = (bits_of(single(N.least)) >> 23) - 1
    half = exponent >> 1
    return (sums * value_of((half + 127) << 23)) * value_of((exponent - half + 127) << 23)


@triton.jit
def fixed_value(sums, N, R: tl.constexpr):
    """The values of sums of quanta as `fixed_sum` holds them; a zero is +0."""
    value = sums - zero_of(N, R)
    if R.overflow == WRAP:
        value = tl.where(value > single(N.max), value - single(N.unit) * single(N.least), value)
    return value


@triton.jit
def half_multiply_add(a, b, sums, C, R: tl.constexpr):
    """a b + sums rounded once to the half precision of all three: one instruction makes two of
    them.

    IEEE 754's fusedMultiplyAdd to nearest even, with subnormals and infinities, is a step of the
    contract for exact products. Interpreted, the same from float64.
    """
    if _INTERPRETED:
        return single(add_rounded(double(sums), double(a) * double(b), 0, C.sum, R.sum))
    else:
        return tl.fma(a, b, sums)


@triton.jit
def product_of(a, b, C, R: tl.constexpr, TIER: tl.constexpr):
    """Rounded products; a, b: broadcast to the tile."""
    return own_zero(floored(a * b, C.product, R.product), R.product)


@triton.jit
def rounded_sum(s, drawn, C, R: tl.constexpr, TIER: tl.constexpr):
    """Rounds a sum that is exact or rounded to nearest to the sums' format."""
    if (TIER == FUSED) or (TIER == FUSED64):
        return fused(s, C.sum)
    elif TIER == SPLIT:
        return split32(s, C.sum)
    elif (TIER == FLOOR) or (TIER == NEAREST):
        return floored(s, C.sum, R.sum)
    elif TIER == RANGE:
        return ranged(s, C.sum, R.sum)
    elif TIER == CUT:
        return cut_sum(s, drawn, C.sum, R.sum)
    else:
        return s


@triton.jit
def sum_with(a, b, sums, drawn, C, R: tl.constexpr, TIER: tl.constexpr):
    """a b + sums rounded, with a and b of `operand_at`; or a + sums, if a is a rounded product."""
    if TIER == DIRECTED:
        return summed(a, b, sums, drawn, C.sum, R.sum)
    elif TIER == FIXED:
        return fixed_sum(a, b, sums, C.sum, R.sum)
    elif TIER < PLAIN:
        return half_multiply_add(a, b, sums, C, R)
    elif R.product is not None:
        return rounded_sum(sums + a, drawn, C, R, TIER)
    else:
        # Exact as a product alone: fused or not gives the same.
        return rounded_sum(tl.fma(a, b, sums), drawn, C, R, TIER)


@triton.jit
def operand_at(
    at, PART: tl.constexpr, ZEROED: tl.constexpr, C, R: tl.constexpr, TIER: tl.constexpr
):
    """The values of one step, with their part of the tier's scale; with ZEROED absent taps become
    0."""
    x = tl.load(at)
    if ZEROED:
        x = tl.where(is_absent(x), 0.0, x)
    x = as_sums(x, TIER)
    if (TIER == DIRECTED) and (R.product is None):
        x = x * scale_of(C.sum, PART)
    return x


@triton.jit
def step(
    sums,
    left_at,
    right_at,
    drawn,
    C,
    R: tl.constexpr,
    TIER: tl.constexpr,
    LEFT_ABSENT: tl.constexpr,
    RIGHT_ABSENT: tl.constexpr,
):
    """The sums after one more product each."""
    # Where no sum is -0, an absent tap may be a zero, which adds nothing.
    SHORT: tl.constexpr = (TIER != PLAIN) and (TIER <= SPLIT)
    ZEROS: tl.constexpr = SHORT or (TIER == FUSED64) or (TIER == CUT)
    # [BM, 1] and [1, BN]
    a = operand_at(left_at, 0, LEFT_ABSENT and ZEROS, C, R, TIER)[:, None]
    b = operand_at(right_at, 1, RIGHT_ABSENT and ZEROS, C, R, TIER)
    if R.product is not None:
        a, b = product_of(a, b, C, R, TIER), 1.0
        if TIER == DIRECTED:
            b = scale_of(C.sum, 2)
    total = sum_with(a, b, sums, drawn, C, R, TIER)
    if LEFT_ABSENT and (not ZEROS):
        total = tl.where(is_absent(tl.load(left_at))[:, None], sums, total)
    if RIGHT_ABSENT and (not ZEROS):
        total = tl.where(is_absent(tl.load(right_at)), sums, total)
    return total


@triton.jit
def first_sums(C, R: tl.constexpr, TIER: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """The sums before the first product: 0 as a tier holds it."""
    zeros = as_sums(tl.zeros([BM, BN], tl.float32), TIER)
    if TIER == FIXED:
        zeros = zeros + zero_of(C.sum, R.sum)
    return zeros


@triton.jit
def values_of(sums, C, R: tl.constexpr, TIER: tl.constexpr):
    """The values of sums as a tier holds them. A tier may hold -0 in a format with one zero, where
    its sign decides about zeros alone."""
    if TIER == FIXED:
        sums = fixed_value(sums, C.sum, R.sum)
    elif TIER == DIRECTED:
        sums = unscaled(sums, C.sum)
    return own_zero(sums, R.sum)
