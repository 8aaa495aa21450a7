"""Proofs by the facts of two operands that their sums round right; the device decides by tile.

The proof is that of csrc/common/certificate.h: there are the notation (q, lx, r, l, h), and the
conditions (A) to (C) under which a sum in P = 24 or 53 bits may be rounded again to q bits. The two
are compared, bound for bound (tests/backends/triton/test_certificate.py). No operand is scaled here
and no sum is made odd.

The conditions hold while sums stay below a bound: that of (A) and (C), and the power of two below
which nothing overflows. The sums are looked at only once in `STRIDE` steps. A step to nearest moves
a sum by at most twice its product, because the rounding could also return the sum itself. So sums
below half the bound, with 2 STRIDE 2^h at most the other half, stay below the bound until they are
looked at again. Truncation moves a sum by less, a draw by one place more, and so do to_odd and
rounding away from zero: by (1 + 2^-man_bits)^STRIDE < 2^g in all, g = 1 from man_bits = 4 on, 2, 3,
5 and 8 for 3, 2, 1 and 0. Sums below 2^(-1 - g) of the bound, STRIDE 2^h and STRIDE 2^lx below half
of that again, stay below it; where subnormals have no places of their own to move by, 2^(-1 - g)
for both is enough.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.triton.operands.facts import HIGHEST, LOWEST, SPECIAL, WIDTH
from lpkernels.backends.triton.rounding.bits import double, exponent_of
from lpkernels.backends.triton.rounding.rule import NEAREST_AWAY, STOCHASTIC, TOWARD_ZERO, WRAP

#: The tiers of `triton_tiers`, for kernels.
HALF, BRAIN, PLAIN, FUSED, SPLIT, FLOOR, RANGE, DIRECTED, FIXED, FUSED64, NEAREST, CUT = map(
    tl.constexpr, range(len(_tiers.NAMES))
)

#: Steps between two looks at the sums, and its logarithm.
STRIDE = tl.constexpr(8)
_STRIDE_LOG2 = tl.constexpr(3)

# The largest bound of sums. Larger sums need no speed, and below the bound all numbers in the
# float32 rules stay finite.
_ENOUGH = tl.constexpr(100)
# A bound that no sum reaches: it is above every exponent.
_ALWAYS = tl.constexpr(4096)


@triton.jit
def plain_products(left, right):
    """h, l, r of exact products, and whether no operand is infinite or NaN; from two facts."""
    highest = tl.load(left + HIGHEST) + tl.load(right + HIGHEST) + 2
    lowest = -(tl.load(left + LOWEST) + tl.load(right + LOWEST))
    width = tl.load(left + WIDTH) + tl.load(right + WIDTH)
    finite = (tl.load(left + SPECIAL) != 1) & (tl.load(right + SPECIAL) != 1)
    return highest, lowest, width, finite


@triton.jit
def last_place(N):
    """lx of a format with subnormals."""
    return exponent_of(N.least) + exponent_of(N.unit)


@triton.jit
def room(N):
    """The exponent of the largest power of two below which nothing on the grid overflows."""
    return exponent_of(double(N.max) + double(N.low) * 2.0)


@triton.jit
def rounded_products(highest, lowest, N):
    """h, l, r once products are rounded in N's format, and whether none of them overflows."""
    r = 1 - exponent_of(N.unit)
    return highest, tl.maximum(lowest, last_place(N)), r, highest < room(N)


@triton.jit
def exact_in_float32(highest, lowest, width):
    """Whether products are exact in float32 and, like every sum of them, never subnormal there."""
    return (width <= 24) & (lowest >= -126) & (highest <= 126)


@triton.jit
def nearest_bound(lowest, width, N, P: tl.constexpr):
    """Sums in P bits below 2 to this power may be rounded again, to nearest_even."""
    q = 1 - exponent_of(N.unit)
    bound = lowest + P
    fits = q + width <= P - 1
    bound = tl.where(fits, tl.maximum(bound, last_place(N) + P), bound)
    always = (width <= q) & (2 * q <= P - 1)
    if P == 24:
        always = always | ((q == 12) & (width <= 11))
    return tl.where(always, _ALWAYS, bound)


@triton.jit
def no_floor(lowest, N, R: tl.constexpr):
    """Whether subnormals' floor never acts; in a format without them, whether none is needed."""
    if R.subnormals:
        return lowest >= last_place(N)
    else:
        return lowest >= exponent_of(N.least)


@triton.jit
def watched(bound, highest, N, R: tl.constexpr):
    """Whether sums can be held below 2^bound, and the exponent that they must not reach."""
    bound = tl.minimum(tl.minimum(bound, room(N)), _ENOUGH)
    limit = bound - 2 if R.mode == STOCHASTIC else bound - 1
    return (highest + _STRIDE_LOG2 + 2 <= bound) & (bound >= -_ENOUGH), limit


@triton.jit
def watched_directed(highest, N, R: tl.constexpr):
    """As `watched`, for `rounding.round.summed`: only the overflow bounds its sums."""
    bound = tl.minimum(room(N), _ENOUGH)
    if (R.mode == TOWARD_ZERO) or (R.mode == NEAREST_AWAY):
        growth = tl.full([], 0, tl.int32)
    else:
        m = -exponent_of(N.unit)
        growth = tl.where(m >= 2, tl.maximum(5 - m, 1), tl.where(m == 1, 5, 8))
    small = highest + _STRIDE_LOG2 + 2 + growth <= bound
    small = small & (last_place(N) + _STRIDE_LOG2 + 2 + growth <= bound)
    return small & (bound >= -_ENOUGH), bound - 1 - growth


@triton.jit
def scaled_exactly(left, right, N):
    """Whether float32 holds all operands with their parts of the scale (`steps.scale_of`)."""
    scale = -126 - exponent_of(N.least)
    half = scale >> 1
    return (tl.load(left + LOWEST) <= half + 149) & (tl.load(right + LOWEST) <= scale - half + 149)


@triton.jit
def safe_in_range(lowest, width, N):
    """Whether every sum that does not overflow may be rounded again from float32.

    Sums of max and a product may be finer than 2^l, but not finer than the last place of max.
    """
    return nearest_bound(lowest, width, N, 24) > room(N)


@triton.jit
def _representable(facts, highest: tl.constexpr, lowest: tl.constexpr, width: tl.constexpr):
    """Whether all values of an operand, infinities and NaN included, are in a format."""
    fits = (tl.load(facts + HIGHEST) <= highest) & (tl.load(facts + LOWEST) <= -lowest)
    return fits & (tl.load(facts + WIDTH) <= width)


@triton.jit
def operands_fit(facts, TIER: tl.constexpr):
    """Whether float16 or bfloat16 holds an operand; its own multiply-add is then the contract's."""
    if TIER == HALF:
        return _representable(facts, 15, -24, 11)
    else:
        return _representable(facts, 127, -133, 8)


@triton.jit
def certified(
    left_facts, right_facts, C, R: tl.constexpr, TIER: tl.constexpr, HAS_ABSENT: tl.constexpr
):
    """Whether the tier's sums are exact, and the exponent that they must not reach."""
    highest, lowest, width, finite = plain_products(left_facts, right_facts)
    if TIER < PLAIN:
        fit = operands_fit(left_facts, TIER) & operands_fit(right_facts, TIER)
        if HAS_ABSENT:
            # A zero for an absent tap adds nothing to sums that are never -0, by finite values.
            fit = fit & finite & no_floor(lowest, C.sum, R.sum)
        return fit, tl.full([], 0, tl.int32)
    if (TIER >= PLAIN) and (TIER < FUSED64) and (R.product is not None):
        holds = finite & exact_in_float32(highest, lowest, width)
    elif TIER == FIXED:
        # Infinities saturate.
        holds = finite | (R.sum.overflow != WRAP)
    elif (TIER == RANGE) or (TIER == PLAIN):
        holds = exact_in_float32(highest, lowest, width)
    elif TIER == DIRECTED:
        holds = finite & scaled_exactly(left_facts, right_facts, C.sum)
    elif TIER >= FUSED64:
        holds = finite
    else:
        holds = finite & exact_in_float32(highest, lowest, width)
    if R.product is not None:
        highest, lowest, width, inside = rounded_products(highest, lowest, C.product)
        holds = holds & inside
    limit = tl.full([], 0, tl.int32)
    if TIER == RANGE:
        holds = holds & safe_in_range(lowest, width, C.sum)
    elif TIER == FIXED:
        if R.sum.overflow == WRAP:
            places: tl.constexpr = 20 if R.sum.mode == NEAREST_AWAY else 21
            holds = holds & (highest <= exponent_of(C.sum.least) + places)
    elif TIER != PLAIN:
        floored: tl.constexpr = (TIER == FLOOR) or (TIER == NEAREST) or (TIER == DIRECTED)
        if (not floored) or (not R.sum.subnormals):
            holds = holds & no_floor(lowest, C.sum, R.sum)
        if TIER == DIRECTED:
            small, limit = watched_directed(highest, C.sum, R.sum)
        else:
            if TIER == CUT:
                bound = lowest + 53
            else:
                bound = nearest_bound(lowest, width, C.sum, 53 if TIER >= FUSED64 else 24)
            small, limit = watched(bound, highest, C.sum, R.sum)
        holds = holds & small
    return holds, limit
