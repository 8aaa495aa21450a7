"""Rounding of float32 sums, nearest_even: what the certified kernels do at every step.

m is man_bits of the format, e its emin. Each rule is exact for one rounding of its argument, a
float32, to m + 1 bits; `_certificate` says when that is one rounding of the exact sum. Kernels that
use them must not be contracted (`_launch.EXACT`): contracted, Veltkamp's splitting is the identity.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton._rules import beyond_max, wide

_EXPONENT = tl.constexpr(0x7F800000)
_SIGN = tl.constexpr(-(2**31))


@triton.jit
def single(x):
    """A number or a tile as float32."""
    return tl.cast(x, tl.float32)


@triton.jit
def word(x):
    """The bits of a float32."""
    return tl.cast(x, tl.int32, bitcast=True)


@triton.jit
def with_sign(magnitude, s):
    return tl.cast(word(magnitude) | (word(s) & _SIGN), tl.float32, bitcast=True)


@triton.jit
def fused32(s, N):
    """The splitting by 2 multiply-adds, for 1 <= m <= 10; else as `split32`.

    For s in [1, 2) and D = 23 - m: c = 2^D s is a multiple of 2^-m, the place of the result, and in
    these units its significand, even at a tie. u = s - c has magnitude (2^D - 1) s. From 2^D on
    its last place is 2^-m: c + u is s on that grid, and exact; at a tie u is even where it is.
    Below, s < 1 + 2^(1 - D), and u is the nearest multiple of 2^(-m - 1), that for s = 1, as
    D - 1 >= m + 2. With c's sign turned s + c could pass 2^(D + 1), and be too coarse. Products are
    by a power of two, exact: fused or not gives the same.
    """
    scale = single(N.unit) * 8388608.0
    return tl.fma(s, scale, tl.fma(s, -scale, s))


@triton.jit
def split32(s, N):
    """Veltkamp's splitting: 3 operations; no floor of subnormals, no overflow, -0 becomes +0.

    g = s (2^(23 - m) + 1) lies on a grid of 2^(23 - m) ulps of s, or coarser; s - g is rounded to
    the same grid, g + (s - g) is s on it, and exact. A tie goes to even (Dekker 1971 has the
    splitting, Boldo 2006 its ties): s is even there, so g has the parity of the lower neighbour;
    where g falls into the next binade its grid is twice as coarse and s - g decides. For
    1 <= m <= 22 and |s| < 2^(103 + m), and where s is subnormal too: g and the rest are then
    multiples of 2^-149 that float32 holds.
    """
    g = s * (single(N.unit) * 8388608.0 + 1.0)
    return g + (s - g)


@triton.jit
def _on_grid(s, N):
    """s on the grid of its binade, or of 2^e below that.

    1.5 2^(23 - m) binades put the sum where float32's own ulp is the format's quantum, and taking
    them away is exact. For 1 <= m <= 21: at m = 22 the sum would leave its binade. The products are
    of a power of two and 1.5 times another: exact, so fused or not gives the same.
    """
    bits = tl.maximum(word(s) & _EXPONENT, word(single(N.least)))
    binade = tl.cast(bits, tl.float32, bitcast=True)
    magic = single(N.unit) * 12582912.0
    shifted = tl.fma(binade, magic, s)
    return tl.fma(binade, -magic, shifted)


@triton.jit
def floored32(s, N):
    """With subnormals and the sign of zero: 5 operations; no overflow; |s| < 2^(102 + m)."""
    return with_sign(_on_grid(s, N), s)


@triton.jit
def ranged32(s, N, R: tl.constexpr):
    """Every s, overflow, infinity and NaN included: 7 operations.

    Beyond the tie above max the result is what the format says, whatever the grid gave; below it
    the format must lie so low that the grid's arithmetic stays finite: 2^(25 - m) max < 2^128. The
    grid of an infinity is NaN and not used; a NaN compares false and stays.
    """
    tie = single(N.max) + single(N.low)
    a = tl.abs(s)
    if R.tie_stays:
        above = a > tie
    else:
        above = a >= tie
    beyond = single(beyond_max(wide(0.0), N, R))
    return with_sign(tl.where(above, beyond, _on_grid(s, N)), s)
