"""Counter-based random bits: a draw is a pure function of (seed, site, row, col, k).

No state and no order: any backend computes the draws of any output alone, so threads, tiles and
devices do not change a bit. Every function exists for Python ints (readable) and, plural, for
numpy integer arrays.

"fast" mixes 64-bit keys of (seed, site, row, col) with the finaliser of splitmix64 (Steele, Lea,
Flood 2014, "Fast splittable pseudorandom number generators") and then spends one "lowbias32"
(Wellons 2018, "Prospecting for hash functions") twice per 32-bit word. "philox" is Philox4x32-10
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

from enum import IntEnum

import numpy as np

RNGS = ("fast", "philox")

SITE_SUM = 0
SITE_PRODUCT = 1
SITE_OUTER = 2
SITE_BIAS = 3
SITE_QUANTIZE = 4
SITE_OUTPUT = 5

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


def mix64(z: int) -> int:
    """The finaliser of splitmix64, a bijection of 64-bit integers."""
    z &= MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def mix32(x: int) -> int:
    """lowbias32, a bijection of 32-bit integers."""
    x &= _MASK32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)


def derive_seed(seed: int, role: int) -> int:
    """The seed of one role of a layer call; a negative int64 seed counts as its uint64 pattern."""
    seed &= MASK64
    return seed if role == 0 else mix64(seed + role * _GOLDEN)


def _column_key(base: int, col: int) -> int:
    """A keyed permutation of the column's lower 32 bits: no two of 2^32 columns share a key."""
    key = mix64(base + _GOLDEN)
    if col >> 32:
        key = mix64(key + (col >> 32) * _GOLDEN)
    return mix32(mix32(col + key) ^ (key >> 32))


def fast_word(seed: int, site: int, row: int, col: int, word: int) -> int:
    """Word number ``word`` of the "fast" stream of one output; seed is already derived."""
    base = mix64((seed & MASK64) ^ mix64(site + 1))
    col_key = _column_key(base, col)
    stream = mix64(base + 2 * row * _GOLDEN)
    if word >> 32:
        stream = mix64(stream + (word >> 32) * _GOLDEN)
    low, high = stream & _MASK32, stream >> 32
    return mix32(col_key + (mix32((word & _MASK32) + low) ^ high))


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
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


def philox_word(seed: int, site: int, row: int, col: int, word: int) -> int:
    """Word number ``word`` of the "philox" stream of one output; seed is already derived.

    The counter holds 41 bits of row and col and 42 of word // 4.
    """
    seed &= MASK64
    block = word >> 2
    last = (
        site
        | ((row >> 32) & 0x1FF) << 4
        | ((col >> 32) & 0x1FF) << 13
        | ((block >> 32) & 0x3FF) << 22
    )
    counter = (block & _MASK32, row & _MASK32, col & _MASK32, last)
    return philox4x32(counter, (seed & _MASK32, seed >> 32))[word & 3]


def draw(
    seed: int, site: int, row: int, col: int, k: int, random_bits: int, rng: str = "fast"
) -> int:
    """The ``random_bits``-bit draw of position k: the top bits of a byte, a half or a whole word.

    Up to 8 bits come from byte k % 4 (0 the least significant) of word k // 4, up to 16 from half
    k % 2 of word k // 2, more from word k. Elementwise sites use row = col = 0 and k = the
    row-major element index.

    Raises:  ValueError: random_bits not in 1..32, or an unknown rng.
    """
    width = _field_width(random_bits)
    per_word = 32 // width
    word_of = philox_word if check_rng(rng) == "philox" else fast_word
    word = word_of(seed, site, row, col, k // per_word)
    field = (word >> (width * (k % per_word))) & ((1 << width) - 1)
    return field >> (width - random_bits)


def check_rng(rng: object, owner: str = "rng") -> str:
    """``rng`` if it names a generator.  Raises TypeError (no str) or ValueError."""
    if not isinstance(rng, str):
        raise TypeError(
            f"{owner}: rng must be 'fast' or 'philox', got {rng!r} ({type(rng).__name__})"
        )
    if rng not in RNGS:
        raise ValueError(f"{owner}: rng must be 'fast' or 'philox', got {rng!r}")
    return rng


def _field_width(random_bits: int) -> int:
    if not 1 <= random_bits <= 32:
        raise ValueError(f"draw: random_bits must be in 1..32, got {random_bits}")
    return 8 if random_bits <= 8 else 16 if random_bits <= 16 else 32


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
    width = _field_width(random_bits)
    per_word = 32 // width
    rows, cols, ks = (np.atleast_1d(np.asarray(v).astype(np.uint64)) for v in (row, col, k))
    words_of = philox_words if check_rng(rng) == "philox" else fast_words
    words = words_of(seed, site, rows, cols, ks // np.uint64(per_word))
    shift = (ks % np.uint64(per_word)).astype(np.uint32) * np.uint32(width)
    # Shifting the field to the top drops what lies above it, then its own low bits go.
    top = words << (np.uint32(32 - width) - shift)
    shape = np.broadcast_shapes(np.shape(row), np.shape(col), np.shape(k))
    return np.broadcast_to(top >> np.uint32(32 - random_bits), shape or (1,)).reshape(shape).copy()


def column_keys(base: int, col: np.ndarray) -> np.ndarray:
    """The part of the "fast" words that depends on the column alone: uint32, for uint64 columns."""
    key = np.full(np.shape(col), mix64(base + _GOLDEN), np.uint64)
    high = col >> np.uint64(32)
    if high.any():
        key = np.where(high > 0, _mix64_array(key + high * np.uint64(_GOLDEN)), key)
    low = col.astype(np.uint32) + key.astype(np.uint32)
    return _mix32_array(_mix32_array(low) ^ (key >> np.uint64(32)).astype(np.uint32))


def fast_words(
    seed: int, site: int, row: np.ndarray, col: np.ndarray, word: np.ndarray
) -> np.ndarray:
    """:func:`fast_word` for uint64 arrays of at least one dimension; uint32."""
    golden = np.uint64(_GOLDEN)
    base = np.uint64(mix64((seed & MASK64) ^ mix64(site + 1)))
    col_key = column_keys(int(base), col)
    stream = _mix64_array(base + np.uint64(2) * row * golden)
    high_word = word >> np.uint64(32)
    if high_word.any():
        stream = np.where(high_word > 0, _mix64_array(stream + high_word * golden), stream)
    low = stream.astype(np.uint32)
    high = (stream >> np.uint64(32)).astype(np.uint32)
    return _mix32_array(col_key + (_mix32_array(word.astype(np.uint32) + low) ^ high))


def philox_words(
    seed: int, site: int, row: np.ndarray, col: np.ndarray, word: np.ndarray
) -> np.ndarray:
    """:func:`philox_word` for uint64 arrays of at least one dimension; uint32."""
    seed &= MASK64
    mask, upper = np.uint64(_MASK32), np.uint64(32)
    block = word >> np.uint64(2)
    last = (
        np.uint64(site)
        | ((row >> upper) & np.uint64(0x1FF)) << np.uint64(4)
        | ((col >> upper) & np.uint64(0x1FF)) << np.uint64(13)
        | ((block >> upper) & np.uint64(0x3FF)) << np.uint64(22)
    )
    c0, c1, c2, c3 = block & mask, row & mask, col & mask, last
    k0, k1 = seed & _MASK32, seed >> 32
    for _ in range(_PHILOX_ROUNDS):
        p0 = np.uint64(_PHILOX_MULTIPLIERS[0]) * c0
        p1 = np.uint64(_PHILOX_MULTIPLIERS[1]) * c2
        c0, c1 = (p1 >> upper) ^ c1 ^ np.uint64(k0), p1 & mask
        c2, c3 = (p0 >> upper) ^ c3 ^ np.uint64(k1), p0 & mask
        k0 = (k0 + _PHILOX_WEYL[0]) & _MASK32
        k1 = (k1 + _PHILOX_WEYL[1]) & _MASK32
    which = word & np.uint64(3)
    picked = np.where(which < 2, np.where(which == 0, c0, c1), np.where(which == 2, c2, c3))
    return picked.astype(np.uint32)


def _mix64_array(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _mix32_array(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))
