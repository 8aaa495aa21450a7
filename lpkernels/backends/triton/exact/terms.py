"""The terms of a sum, for the kernels of sums in other orders: products with their rounding, and
additions in the inner accumulator drawn at a position."""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._tile import (
    SITE_PRODUCT,
    SITE_SUM,
    position_of,
    step_offset,
)
from lpkernels.backends.triton.exact.sequential import is_absent
from lpkernels.backends.triton.rounding.bits import SIGN, bits_of, double, value_of
from lpkernels.backends.triton.rounding.draws import drawn_lift
from lpkernels.backends.triton.rounding.round import add_rounded, round_to


@triton.jit
def negated(x):
    """-x, of zeros too; Triton's minus subtracts from +0."""
    return value_of(bits_of(x) ^ SIGN)


@triton.jit
def add_inner(total, addend, seed, row, column, position, C, R: tl.constexpr):
    """total, a value of the inner accumulator, + such a value or a product, rounded."""
    lift = drawn_lift(seed, SITE_SUM, row, column, position, R.sum)
    return add_rounded(total, addend, lift, C.sum, R.sum)


@triton.jit
def term_at(
    left, left_at, left_step, right, right_at, right_step, out, k, seed, row, column, C,
    R: tl.constexpr, LEFT_ABSENT: tl.constexpr, RIGHT_ABSENT: tl.constexpr,
):  # fmt: skip
    """The products of step k, rounded if the accumulator rounds them, and where they are absent (an
    int1 tile)."""
    a = tl.load(left_at + step_offset(left, left_step, k))[:, None]
    b = tl.load(right_at + step_offset(right, right_step, k))[None, :]
    product = double(a) * double(b)
    if R.product is not None:
        position = position_of(out, k)
        lift = drawn_lift(seed, SITE_PRODUCT, row, column, position, R.product)
        product = round_to(product, lift, C.product, R.product)
    if LEFT_ABSENT and RIGHT_ABSENT:
        absent = is_absent(a) | is_absent(b)
    elif LEFT_ABSENT:
        absent = tl.broadcast_to(is_absent(a), product.shape)
    elif RIGHT_ABSENT:
        absent = tl.broadcast_to(is_absent(b), product.shape)
    else:
        absent = tl.full(product.shape, 0, tl.int1)
    return product, absent
