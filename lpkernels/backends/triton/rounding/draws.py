"""Random words for Triton: csrc/common/rng.h, the same streams to the bit.

Keys are computed once a tile, words once for the draws they serve. All integers are unsigned and
wrap.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.backends.triton.rounding.rule import STOCHASTIC

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit
def _u64(x):
    return tl.cast(x, tl.uint64)


@triton.jit
def _u32(x):
    return tl.cast(x, tl.uint32)


@triton.jit
def mix64(z):
    """The finaliser of splitmix64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def mix32(x):
    """lowbias32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def derived_seed(seed_ptr, role):
    """The uint64 seed of one role of the call whose int64 seed lies at seed_ptr."""
    seed = tl.cast(tl.load(seed_ptr), tl.uint64, bitcast=True)
    mixed = mix64(seed + _u64(role) * _GOLDEN)
    return tl.where(role == 0, seed, mixed)


@triton.jit
def site_base(seed, site):
    return mix64(seed ^ mix64(_u64(site) + 1))


@triton.jit
def column_keys(base, col):
    """uint32 keys of int64 columns: a keyed permutation of their lower 32 bits."""
    high = _u64(col) >> 32
    key = mix64(base + _GOLDEN)
    keys = tl.where(high != 0, mix64(key + high * _GOLDEN), key)
    return mix32(mix32(_u32(_u64(col)) + _u32(keys)) ^ _u32(keys >> 32))


@triton.jit
def row_streams(base, row, word):
    """uint64 streams of int64 rows: the number that is added, and the bits that are flipped.

    Words from 2^32 on have other streams.
    """
    stream = mix64(base + _u64(row) * 2 * _GOLDEN)
    high = _u64(word) >> 32
    return tl.where(high != 0, mix64(stream + high * _GOLDEN), stream)


@triton.jit
def fast_words(columns, streams, word):
    """One word for each column key and row stream that broadcast; the lower 32 bits of word."""
    return mix32(columns + (mix32(_u32(streams) + _u32(word)) ^ _u32(streams >> 32)))


@triton.jit
def _philox_round(c0, c1, c2, c3, k0, k1):
    n0 = tl.umulhi(c2, tl.full([], 0xCD9E8D57, tl.uint32)) ^ c1 ^ k0
    n2 = tl.umulhi(c0, tl.full([], 0xD2511F53, tl.uint32)) ^ c3 ^ k1
    return n0, c2 * 0xCD9E8D57, n2, c0 * 0xD2511F53


@triton.jit
def philox_words(seed, site, row, col, word):
    """Words of the Philox4x32-10 stream; row, col and word broadcast, int64."""
    quad = _u64(word) >> 2
    row64, col64 = _u64(row), _u64(col)
    zero = quad * 0 + row64 * 0 + col64 * 0
    high = (
        _u64(site)
        | ((row64 >> 32) & 0x1FF) << 4
        | ((col64 >> 32) & 0x1FF) << 13
        | ((quad >> 32) & 0x3FF) << 22
    )
    c0, c1, c2, c3 = _u32(zero + quad), _u32(zero + row64), _u32(zero + col64), _u32(zero + high)
    k0, k1 = _u32(seed), _u32(seed >> 32)
    for _ in tl.static_range(10):
        c0, c1, c2, c3 = _philox_round(c0, c1, c2, c3, k0, k1)
        k0 = k0 + _u32(0x9E3779B9)
        k1 = k1 + _u32(0xBB67AE85)
    lane = _u64(word) & 3
    low = tl.where(lane == 0, c0, c1)
    return tl.where(lane < 2, low, tl.where(lane == 2, c2, c3))


@triton.jit
def lift_of_draw(draw, R: tl.constexpr):
    """int64: floor(f 2^33) + this >= 2^33 is  floor(f 2^(R+1)) + 2 draw + 1 >= 2^(R+1)."""
    return ((tl.cast(draw, tl.int64) << 1) | 1) << (32 - R)


@triton.jit
def words_log2(R: tl.constexpr):
    """log2 of how many draws of R bits a word serves."""
    return 2 if R <= 8 else (1 if R <= 16 else 0)


@triton.jit
def draw_of(words, k, R: tl.constexpr):
    """Draw number k out of its words, k // draws a word: the top R bits of its field."""
    # Written out: up to Triton 3.6 what a function returns is no constexpr.
    LOG2: tl.constexpr = 2 if R <= 8 else (1 if R <= 16 else 0)
    FIELD: tl.constexpr = 32 >> LOG2
    shift = _u32(k & ((1 << LOG2) - 1)) * FIELD + (FIELD - R)
    return (words >> shift) & (0xFFFFFFFF >> (32 - R))


# Words and lifts by a Rule.


@triton.jit
def column_of(seed, site, col, R: tl.constexpr):
    """The part of a rule's words that depends on the columns, computed once a tile."""
    if (R.mode == STOCHASTIC) and (not R.philox):
        return column_keys(site_base(seed, site), col)
    else:
        return col


@triton.jit
def words_of(seed, site, row, column, word, R: tl.constexpr):
    """Random word number ``word`` of every output; column: of `column_of`."""
    if R.philox:
        return philox_words(seed, site, row, column, word)
    else:
        return fast_words(column, row_streams(site_base(seed, site), row, word), word)


@triton.jit
def lift_of(words, position, R: tl.constexpr):
    """The lifts of draw number ``position`` out of its words."""
    return lift_of_draw(draw_of(words, position, R.random_bits), R.random_bits)


@triton.jit
def drawn_lift(seed, site, row, column, position, R: tl.constexpr):
    """Lifts of the draws at a position, int64, whose words serve no other draw here; column: of
    `column_of`."""
    if R.mode == STOCHASTIC:
        words = words_of(seed, site, row, column, position >> words_log2(R.random_bits), R)
        return lift_of(words, position, R)
    else:
        return 0
