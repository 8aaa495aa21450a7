"""The choice between the two codes of a tile whose largest is mapped to 6 or to 4:
`reference.candidates`, on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton.rounding.bits import bits_of, double, value_of
from lpkernels.formats.integers import CANDIDATES, STEPS

_MAE = tl.constexpr(CANDIDATES["4or6mae"])
_EXACT = tl.constexpr(STEPS.index("exact"))
_LOW32, _LOW31 = tl.constexpr(2**32 - 1), tl.constexpr(2**31 - 1)
#: The rows and the columns of TransformerEngine's tiles.
SIDE = 16
_SIDE = tl.constexpr(SIDE)


@triton.jit
def is_nearer(
    x, six, four, s_6, s_4, t, amax, largest, number, S: tl.constexpr, TILES: tl.constexpr,
    BLOCKS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Whether the codes of 4 are nearer to the values x [BLOCKS, PART] of each tile.

    s_6, s_4, t, amax: of each tile, t and amax also of all; largest: its magnitude; number: the
    largest number divided by t. TILES: whether a tile has several rows, all of `SIDE` columns."""
    if S.steps == _EXACT:
        # Codes have 2 bits, the scales 24 at most: the products are exact.
        v_6 = double(six) * double(s_6)[:, None] * double(t)
        v_4 = double(four) * double(s_4)[:, None] * double(t)
        return exactly(double(x), v_6, v_4, double(largest), S) & (s_6 < s_4)
    else:
        error_6 = error_of(x, six * s_6[:, None], amax, number, S)
        error_4 = error_of(x, four * s_4[:, None], amax, number, S)
        sum_6 = te_sum(error_6, TILES, BLOCKS, PART)
        return te_sum(error_4, TILES, BLOCKS, PART) < sum_6


@triton.jit
def error_of(x, product, amax, number, S: tl.constexpr):
    u = tl.div_rn(product * amax, number) - x
    return tl.abs(u) if S.candidates == _MAE else u * u


@triton.jit
def te_sum(e, TILES: tl.constexpr, BLOCKS: tl.constexpr, PART: tl.constexpr):
    """The sums [BLOCKS] of errors as TransformerEngine makes them: in order along a row, then the
    rows in a tree. Elements that do not exist have no errors."""
    if TILES:
        rows = tl.reshape(e, [BLOCKS * _SIDE, _SIDE])
        sums = tl.reshape(in_order(rows, BLOCKS * _SIDE, _SIDE), [BLOCKS, 2, 8])
        sums = tl.reshape(tl.sum(sums, axis=1), [BLOCKS, 2, 4])
        sums = tl.reshape(tl.sum(sums, axis=1), [BLOCKS, 2, 2])
        return tl.sum(tl.sum(sums, axis=1), axis=1)
    else:
        return in_order(e, BLOCKS, PART)


@triton.jit
def in_order(e, ROWS: tl.constexpr, COLS: tl.constexpr):
    place = tl.arange(0, COLS)[None, :]
    total = tl.sum(tl.where(place == 0, e, 0.0), axis=1)
    for i in tl.static_range(1, COLS):
        total = total + tl.sum(tl.where(place == i, e, 0.0), axis=1)
    return total


@triton.jit
def exactly(x, v_6, v_4, largest, S: tl.constexpr):
    """The choice in whole numbers. An element whose codes are zeros has the same error twice; of
    the others everything is a multiple of 2^(top - 58) below 2^(top + 3)."""
    finite = (largest > 0.0) & (largest < float("inf"))
    top = tl.where(finite, (bits_of(largest) >> 52) - 1023, 0)
    unit = value_of((58 - top + 1023) << 52)[:, None]
    nonzero = ((v_6 != 0.0) | (v_4 != 0.0)) & finite[:, None]
    whole = tl.where(nonzero, x * unit, 0.0).to(tl.int64)
    to_6 = tl.where(nonzero, v_6 * unit, 0.0).to(tl.int64) - whole
    to_4 = tl.where(nonzero, v_4 * unit, 0.0).to(tl.int64) - whole
    if S.candidates == _MAE:
        high, low = wide_sum(tl.abs(to_4) - tl.abs(to_6))
        return high + (low >> 32) < 0
    else:
        return products_are_negative(to_4 - to_6, to_4 + to_6)


@triton.jit
def wide_sum(x):
    """The sums of int64 tiles along the last axis, as high * 2^32 + low."""
    return tl.sum(x >> 32, axis=1), tl.sum(x & _LOW32, axis=1)


@triton.jit
def products_are_negative(a, b):
    """Whether the sum of a b, of at most 124 bits each, is below zero: by limbs of 31 bits."""
    a_1, a_0, b_1, b_0 = a >> 31, a & _LOW31, b >> 31, b & _LOW31
    high_0, low_0 = wide_sum(a_0 * b_0)
    high_1, low_1 = wide_sum(a_1 * b_0)
    high_2, low_2 = wide_sum(a_0 * b_1)
    high_3, low_3 = wide_sum(a_1 * b_1)
    limb_1 = 2 * high_0 + (low_0 >> 31) + low_1 + low_2
    limb_2 = 2 * (high_1 + high_2) + low_3 + (limb_1 >> 31)
    return 2 * high_3 + (limb_2 >> 31) < 0
