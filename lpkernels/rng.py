"""Counter-based random bits: a draw is a pure function of (seed, site, row, col, k).

No state and no order: any backend computes the draws of any output alone, so threads, tiles and
devices do not change a bit. Words and mixers take Python ints, or uint64 arrays of one dimension or
more, whose sums and products wrap.

"fast" mixes 64-bit keys of (seed, site, row, col) with the finaliser of splitmix64 (Steele, Lea,
Flood 2014, "Fast splittable pseudorandom number generators") and then spends one "lowbias32"
(Wellons 2018, "Prospecting for hash functions") twice per 32-bit word. "philox" is Philox4x32-10
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np

#: An int, or a uint64 array of at least one dimension.
Integer: TypeAlias = Any

RNGS = ("fast", "philox")

SITE_SUM = 0
SITE_PRODUCT = 1
SITE_OUTER = 2
SITE_BIAS = 3
SITE_QUANTIZE = 4
SITE_OUTPUT = 5

#: The keys of the seeds of second derivatives, which no Role and no other product of a call has: of
#: the products with the incoming gradient of dx, and of those with that of dw. In each of the two a
#: tensor and a sum have the Role of their place (docs/contract.md, "Second derivatives").
SECOND_OF_DX = 1 << 20
SECOND_OF_DW = SECOND_OF_DX + 1

MASK64 = 0xFFFFFFFFFFFFFFFF
_MASK32 = 0xFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15

_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10


class Role(IntEnum):
    """The uses of draws in one layer call; each role derives its own seed from the call's one seed.

    lp.matmul uses DIRECT forward, DGRAD for the left operand's gradient, WGRAD for the right's.
    """

    DIRECT = 0
    INPUT = 1
    WEIGHT = 2
    BIAS = 3
    FPROP = 4
    OUTPUT = 5
    GRAD_OUTPUT = 6
    DGRAD = 7
    GRAD_INPUT = 8
    WGRAD = 9
    GRAD_WEIGHT = 10
    GRAD_BIAS = 11
    SIGNS = 12
    DGRAD_WEIGHT = 13
    WGRAD_INPUT = 14
    WGRAD_GRAD_OUTPUT = 15


def mix64(z: Integer) -> Integer:
    """The finaliser of splitmix64, a bijection of 64-bit integers."""
    z = z & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def mix32(x: Integer) -> Integer:
    """lowbias32, a bijection of 32-bit integers."""
    x = x & _MASK32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)


def derive_seed(seed: int, role: int) -> int:
    """The seed of one role of a layer call; a negative int64 seed counts as its uint64 pattern."""
    seed &= MASK64
    return seed if role == 0 else int(mix64(seed + role * _GOLDEN))


def _with_upper_half(key: Integer, position: Integer) -> Integer:
    """The key, mixed with the upper 32 bits of a position where these are not 0."""
    upper = position >> 32
    if not np.any(upper):
        return key
    mixed = mix64(key + upper * _GOLDEN)
    return mixed if isinstance(position, int) else np.where(upper > 0, mixed, key)


def fast_word(seed: int, site: int, row: Integer, col: Integer, word: Integer) -> Integer:
    """Word number ``word`` of the "fast" stream of one output; seed is already derived.

    A column's key is a permutation of its lower 32 bits: no two of 2^32 columns share a key.
    """
    base = mix64((seed & MASK64) ^ mix64(site + 1))
    key = _with_upper_half(mix64(base + _GOLDEN), col)
    column_key = mix32(mix32((col & _MASK32) + (key & _MASK32)) ^ (key >> 32))
    stream = _with_upper_half(mix64(base + 2 * row * _GOLDEN), word)
    low, high = stream & _MASK32, stream >> 32
    return mix32(column_key + (mix32((word & _MASK32) + low) ^ high))


def philox4x32(
    counter: tuple[Integer, Integer, Integer, Integer], key: tuple[int, int]
) -> tuple[Integer, ...]:
    """The four words of Philox4x32-10 for one counter and key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_PHILOX_ROUNDS):
        p0 = _PHILOX_MULTIPLIERS[0] * c0
        p1 = _PHILOX_MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK32
        k0 = (k0 + _PHILOX_WEYL[0]) & _MASK32
        k1 = (k1 + _PHILOX_WEYL[1]) & _MASK32
    return c0, c1, c2, c3


def philox_word(seed: int, site: int, row: Integer, col: Integer, word: Integer) -> Integer:
    """Word number ``word`` of the "philox" stream of one output; seed is already derived.

    The counter holds 41 bits of row and col and 42 of word // 4.
    """
    seed &= MASK64
    block = word >> 2
    top = (
        ((row >> 32) & 0x1FF) << 4 | ((col >> 32) & 0x1FF) << 13 | ((block >> 32) & 0x3FF) << 22
    ) | site
    counter = (block & _MASK32, row & _MASK32, col & _MASK32, top)
    words = philox4x32(counter, (seed & _MASK32, seed >> 32))
    which = word & 3
    if isinstance(which, int):
        return words[which]
    return np.choose(which.astype(np.intp), words)


def draw(
    seed: int,
    site: int,
    row: Integer,
    col: Integer,
    k: Integer,
    random_bits: int,
    rng: str = "fast",
) -> Integer:
    """The ``random_bits``-bit draw of position k: the top bits of a byte, a half or a whole word.

    Up to 8 bits come from byte k % 4 (0 the least significant) of word k // 4, up to 16 from half
    k % 2 of word k // 2, more from word k. Elementwise sites use row = col = 0 and k = the
    row-major element index.

    Raises:  ValueError: random_bits not in 1..32, or an unknown rng.
    """
    if not 1 <= random_bits <= 32:
        raise ValueError(f"draw: random_bits must be in 1..32, got {random_bits}")
    width = 8 if random_bits <= 8 else 16 if random_bits <= 16 else 32
    per_word = 32 // width
    word_of = philox_word if check_rng(rng) == "philox" else fast_word
    word = word_of(seed, site, row, col, k // per_word)
    field = (word >> (width * (k % per_word))) & ((1 << width) - 1)
    return field >> (width - random_bits)


def draws(
    seed: int,
    site: int,
    row: np.ndarray | int,
    col: np.ndarray | int,
    k: np.ndarray | int,
    random_bits: int,
    rng: str = "fast",
) -> np.ndarray:
    """:func:`draw` for integer arrays row, col and k, broadcast together; uint32."""
    rows, cols, ks = (np.atleast_1d(np.asarray(v).astype(np.uint64)) for v in (row, col, k))
    values = draw(seed, site, rows, cols, ks, random_bits, rng).astype(np.uint32)
    shape = np.broadcast_shapes(np.shape(row), np.shape(col), np.shape(k))
    return np.broadcast_to(values, shape or (1,)).reshape(shape).copy()


def check_rng(rng: object, owner: str = "rng") -> str:
    """``rng`` if it names a generator.  Raises TypeError (no str) or ValueError."""
    if isinstance(rng, str) and rng in RNGS:
        return rng
    error = ValueError if isinstance(rng, str) else TypeError
    raise error(f"{owner}: rng must be 'fast' or 'philox', got {rng!r} ({type(rng).__name__})")
